# SPDX-License-Identifier: MIT
"""Every file of the tree that is generated and committed: from declarations, reference pages, golden files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from codegen.emit import files
from codegen.emit.manifest import source_hash, source_hashes
from codegen.emit.operators import written
from codegen.emit.render import render
from codegen.plan import held
from codegen.plan.plan import resolve
from codegen.schema.tree import Tree
from codegen.tell import docs, listing

GOLDEN = "tests/codegen/golden"  # the folder of golden files: a review sees in them what a change did
INFO = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ["-O2"]}
TARGETS = ["cpu-avx512bf16"]
RECEIPT, WHERE = "linear_attention", "family=gated_delta_rule dtype=bf16"
"""Its library's table, rows and manifest are shown."""
OPERATORS = ("softmax",)
"""Headers are shown of the plainest. tests/python compiles and runs those of all; every family's packing and table has
tests, and `codegen diff` shows what a change does to any."""


MIXED = ("include/tilekiln", "python/tilekiln", docs.FOLDER)
"""Folders of generated files and of files by hand."""
MADE = b"Made by `python -m codegen"


def contents(root: Tree, commands: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """By path. `commands`: titles and texts of their help. Golden files are of a tree that has its tests."""
    made = written.of_tree(root)
    made |= {f"{docs.FOLDER}/{name}": text for name, text in docs.pages(root, commands).items()}
    if os.path.isdir(os.path.join(root.root, GOLDEN)):
        made |= {f"{GOLDEN}/{name}": text for name, text in (plans(root) | sources(root)).items()}
    return {path: text.encode() for path, text in sorted(made.items())}


def stale(root: Tree, commands: Sequence[tuple[str, str]]) -> list[str]:
    """Those that are not what would be written now, and files that would be removed."""
    made = contents(root, commands)
    changed = [path for path, text in made.items() if not files.unchanged(os.path.join(root.root, path), text)]
    return sorted([*changed, *_gone(root, made)])


def write(root: Tree, commands: Sequence[tuple[str, str]]) -> list[str]:
    """Writes them; what was done to each that was not as it is now."""
    made = contents(root, commands)
    done = [f"{path}: written" for path in files.write_changed(root.root, made)]
    for path in _gone(root, made):
        files.remove(root.root, path)
        done.append(f"{path}: removed")
    return done


def _gone(root: Tree, made: dict[str, bytes]) -> list[str]:
    """Files of what is no more: golden ones, and those that say of themselves that codegen made them."""
    left = [path for path in root.places.walk(GOLDEN) if path not in made]
    for path in [path for folder in MIXED for path in root.places.walk(folder) if path not in made]:
        with open(root.places.at(path), "rb") as file:
            if MADE in file.read(400):
                left.append(path)
    return left


def plans(root: Tree) -> dict[str, str]:
    """plans/<receipt>.txt: counts by axis value, a digest of all names. Clauses are on the page of receipts.

    A plan of the same instances as that of a receipt before it says which.
    """
    first: dict[str, str] = {}
    made: dict[str, str] = {}
    for receipt in root.all_receipts():
        text = _joined(listing.counts(resolve(receipt.name, ["all"], root=root)))
        same = first.setdefault(text, receipt.name)
        made[f"plans/{receipt.name}.txt"] = text if same == receipt.name else f"as {same}\n"
    return made


def _joined(counts: str) -> str:
    """Counts in which families of the same numbers share a paragraph."""
    families = dict[str, list[str]]()
    for paragraph in counts.split("\n\n"):
        name, colon, rest = paragraph.partition(": ")
        families.setdefault(colon + rest, []).append(name)
    return "".join(f"{', '.join(names)}{rest}\n" for rest, names in families.items())


def sources(root: Tree) -> dict[str, str]:
    """sources/*.txt: what is generated for RECEIPT and OPERATORS. Hashes, which any edit changes, are zeroed."""
    hashes = source_hashes(root.places)
    plan = resolve(RECEIPT, TARGETS, WHERE, root=root)
    real = re.compile("|".join([source_hash(held.sources(plan, hashes)), *hashes.values()]).encode())
    made = render([plan], INFO)
    paths = [
        *(source.path for source in made.generated.sources if source.kind != "manifest"),
        *(path for path in made.generated.headers if _shown(path)),
        f"{RECEIPT}/manifest.json",
    ]
    return {
        f"sources/{path}.txt": real.sub(lambda found: b"0" * len(found[0]), made.contents[path]).decode()
        for path in paths
    }


def _shown(header: str) -> bool:
    """Whether it is one of OPERATORS or of their families, which have the same names."""
    return re.sub("_(table|entries)$", "", os.path.basename(header)[: -len(".h")]) in OPERATORS
