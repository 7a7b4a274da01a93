# SPDX-License-Identifier: MIT
"""Build of `tilekiln.jit` in the tree: from kernels as people ask for them to libraries, by everybody's build.

Reads JSON from standard input: {"kernels": ["fmha_fwd dtype=bf16 ...", ...], "operators": [folder, ...],
"options": ["launcher=ccache"], "target": native, a backend or a target's name}. Says the build's own lines on standard
error; the answer is JSON on standard output:
{"libraries": [path, ...]}, by kernel and then by operator from outside, or {"error": text, "wrong": whether it is what
was asked that is wrong}.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from codegen.plan.plan import resolve, sieve
from codegen.schema import select
from codegen.schema.axes import Family
from codegen.schema.errors import CodegenError
from codegen.schema.language import Condition
from codegen.schema.targets import Target
from codegen.schema.tree import Tree, take_kernel_sets, tree
from codegen.tell.explain import explain

from .kernel_sets import FOLDER
from .variant import variant

NAME = "jit"
MODE = "release"


class Asked(NamedTuple):
    """A kernel, in the words of selections."""

    family: Family
    selected: list[select.Selected]
    text: str  # as where= takes it


def read(root: Tree, text: str) -> Asked:
    """CodegenError for a wrong word. Head dims that no kernel has exactly are those of the smallest that takes them."""
    first, _, rest = text.strip().partition(" ")
    family = root.family(first)
    if family.main:
        raise CodegenError(f"{first} comes with {family.main.name}: ask for that")
    clauses = [_rounded(family, clause) for clause in select.parse(rest)]
    written = " or ".join(" ".join([f"family={family.name}", *map(str, clause)]) for clause in clauses)
    return Asked(family, select.typed([family], written, "jit", root.hows_of([family]))[family.name], written)


def _rounded(family: Family, conditions: Sequence[Condition]) -> list[Condition]:
    table = family.table
    held = [axis for axis in (table.columns if table else []) if axis.holds == "at_least"]
    wanted = {c.axis: c.values[0] for c in conditions if c.sign == "=" and len(c.values) == 1}
    if not table or not all(wanted.get(axis.name, "").isdecimal() for axis in held):
        return list(conditions)
    least = [int(wanted[axis.name]) for axis in held]
    rows = [row for by, row in table.rows if wanted.get(table.by.name, table.by.values[by]) == table.by.values[by]]
    fits = [row for row in rows if all(has >= want for has, want in zip(row, least, strict=True))]
    if tuple(least) in rows or not fits:
        return list(conditions)
    best = dict(zip((axis.name for axis in held), map(str, min(fits, key=sum)), strict=True))
    return [c._replace(values=(best[c.axis],)) if c.axis in best else c for c in conditions]


def targets_of(root: Tree, word: str) -> list[Target]:
    """Targets of `native`, the best of a backend that a device here runs, or the one that is named. CodegenError."""
    if word == "native":
        return root.natives()
    if word not in root.backends:
        named = root.target(word)
        if named.planned:
            raise CodegenError(f"target {word} is planned: it is listed, and nothing builds it yet")
        return [named]
    known = root.of_backend(word)
    usable = [one for one in known.values() if one.usable]
    if not usable:
        raise CodegenError(f"no device here runs a target of {word}: name one, {', '.join(known)}")
    return [max(usable, key=lambda one: one.order)]


def groups(root: Tree, asked: Sequence[Asked], natives: Sequence[Target]) -> dict[str, list[int]]:
    """By receipt which of the kernels it is built with, few receipts. CodegenError where none lists one."""
    listed = {
        receipt.name: [
            at
            for at, one in enumerate(asked)
            if one.family.name in receipt.clauses
            and any(sieve(root, receipt, one.family, native, one.selected).count() for native in natives)
        ]
        for receipt in root.sound_receipts
    }
    left, found = set(range(len(asked))), dict[str, list[int]]()
    while left:
        best = max(listed, key=lambda name: len(left & set(listed[name])))
        if not left & set(listed[best]):
            text = asked[min(left)].text.removeprefix("family=")
            names = [native.name for native in natives]
            raise CodegenError(explain(root, root.sound_receipts[0].name, text, names).text)
        found[best] = sorted(left & set(listed[best]))
        left -= set(found[best])
    return found


def declaration(root: Tree, text: str) -> dict[str, object] | None:
    """A kernel with numbers of its own, such as the tile of a product, as a kernel set declares it; None of others."""
    first, _, rest = text.strip().partition(" ")
    family = root.family(first)
    free = {name for axis in family.algorithm_axes for name in axis.most}
    clauses = select.parse(rest) if free else []
    if not any(condition.axis in free for clause in clauses for condition in clause):
        return None
    if len(clauses) != 1 or any(condition.sign != "=" or condition.negated for condition in clauses[0]):
        raise CodegenError(f"{text}: a kernel with {', '.join(sorted(free))} of its own is one clause of axis=value")
    said: dict[str, list[str]] = {condition.axis: list(condition.values) for condition in clauses[0]}
    signature = {axis: said.pop(axis, ["any"]) for axis in family.axis_of}
    return {"family": family.name, "signature": signature, "algorithm": said}


def _as_set(declarations: Sequence[dict[str, object]]) -> tuple[str, str]:
    """The name and the file of a kernel set of these."""
    lines = [f"  - {json.dumps(one)}" for one in declarations]
    name = f"{NAME}_{hashlib.blake2b(''.join(lines).encode(), digest_size=6).hexdigest()}"
    path = f"{FOLDER}/{name}.yaml"
    os.makedirs(FOLDER, exist_ok=True)
    head = [f"kernel_set: {name}", "about: Kernels that a program asked for.", "kernels:"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*head, *lines, ""]))
    return name, path


def build(root: Tree, kernels: Sequence[str], options: Sequence[str], targets: Sequence[Target]) -> list[str]:
    """The library of each kernel. CodegenError for what is asked wrongly, CalledProcessError where the build fails."""
    declared = [declaration(root, text) for text in kernels]
    listed = [at for at, one in enumerate(declared) if one is None]
    asked = [read(root, kernels[at]) for at in listed]
    made = [""] * len(kernels)
    for receipt, places in groups(root, asked, targets).items():
        where = " or ".join(dict.fromkeys(asked[place].text for place in places))
        library = _built(targets, receipt, [f"receipt={receipt}", f"where={where}", *options])
        made = [library if at in {listed[place] for place in places} else one for at, one in enumerate(made)]
    if own := [one for one in declared if one is not None]:
        name, path = _as_set(own)
        with taken(path):
            resolve(name, [one.name for one in targets])  # what is wrong in it is what was asked
        library = _built(targets, name, [f"kernel_set={path}", *options])
        made = [library if one is not None else other for one, other in zip(declared, made, strict=True)]
    return made


def build_operators(folders: Sequence[str], options: Sequence[str], targets: Sequence[Target]) -> list[str]:
    """The library of each operator from outside. CalledProcessError where the build fails."""
    return [_built(targets, os.path.basename(folder), [f"operators={folder}", *options]) for folder in folders]


@contextlib.contextmanager
def taken(path: str) -> Iterator[None]:
    """The tree has a kernel set while it lasts."""
    take_kernel_sets([path])
    try:
        yield
    finally:
        take_kernel_sets([])


def _built(targets: Sequence[Target], receipt: str, words: Sequence[str]) -> str:
    names = [target.name for target in targets]
    folder = f"{NAME}_{platform.machine().lower()}"  # machines of two kinds may share a disk, or one emulates the other
    if not targets[0].backend_.host:
        folder += f"_{targets[0].name.replace('-', '_')}"
    place = variant(names, names, MODE, named=folder)
    goals = [place.library(receipt), place.manifest(receipt)]
    common = [f"target={','.join(names)}", f"variant={folder}", "progress=yes"]
    subprocess.run([sys.executable, "-m", "SCons", "-Q", *words, *common, *goals], stdout=sys.stderr, check=True)
    return goals[0]


def main() -> None:
    """The program."""
    asked = json.load(sys.stdin)
    answer: dict[str, object]
    try:
        targets = targets_of(tree(), asked["target"])
        kernels = build(tree(), asked["kernels"], asked["options"], targets)
        answer = {"libraries": [*kernels, *build_operators(asked["operators"], asked["options"], targets)]}
    except CodegenError as error:
        answer = {"error": str(error), "wrong": True}
    except subprocess.CalledProcessError as error:
        answer = {"error": f"exit status {error.returncode}", "wrong": False}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
