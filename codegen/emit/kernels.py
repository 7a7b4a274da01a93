# SPDX-License-Identifier: MIT
"""The kernels that a plan's rows launch, of backends whose toolchain compiles kernels: builds.yaml of the backend."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import msgspec

from codegen.plan.plan import Plan
from codegen.schema import yaml_types
from codegen.schema.axes import Axis, Family
from codegen.schema.errors import no_such
from codegen.schema.select import Clause
from codegen.schema.targets import Target
from codegen.schema.tree import Tree
from codegen.schema.yaml_io import Document


class Kernel(NamedTuple):
    """One cubin: an entry of builds.yaml and a dtype."""

    name: str  # as tools/gpu names it: fmha_fwd_d128-bf16
    file: yaml_types.KernelFile
    dtype: str
    families: Mapping[str, Family]  # whose instances launch it, by name: the one whose selection says which of them do
    target: str

    @property
    def symbol(self) -> str:
        return f"tilekiln_{self.target.replace('-', '_')}_{self.name.replace('-', '_')}"


def _families(root: Tree, file: yaml_types.KernelFile) -> dict[str, Family]:
    named = {name: root.family(name) for name in (file.family, *(file.also or {})) if name}
    held = {one.name: one.answered_as for one in root.families.values() if one.answered_as}
    return {name: of for name, of in held.items() if of.name in named} | named


class _Build(NamedTuple):
    name: str
    file: yaml_types.KernelFile
    families: dict[str, Family]
    targets: list[str]


@cache
def _builds(root: Tree, backend: str) -> list[_Build]:
    """Builds of a backend from its builds.yaml and those of operators from outside: read once, as every kernel of a
    build asks for them."""
    place = f"kernels/backends/{backend}/builds.yaml"
    own = [place] if os.path.isfile(os.path.join(root.root, place)) else []
    further = [path for folder in root.places.outside for path in root.places.walk(folder.path)]
    documents = [*own, *(path for path in further if path.endswith(f"/{backend}/builds.yaml"))]
    return [one for path in documents for one in _builds_of(root, backend, Document(root.places, path))]


def _builds_of(root: Tree, backend: str, document: Document) -> list[_Build]:
    # The target of each architecture, in the order of targets.
    known = {one.arch: one.name for one in root.every_target.values() if one.backend == backend}
    found = []
    for name, file in document.load(dict[str, yaml_types.KernelFile]).items():
        families = _families(root, file)
        if _EACH in name:
            _check_architectures(document, name, file, known)
            found += [
                _Build(name.replace(_EACH, arch), _of_architecture(file, arch), families, [known[arch]])
                for arch in file.architectures or known
            ]
            continue
        for key in ("architectures", "vary", "further"):
            if getattr(file, key):
                raise document.error((name, key), f"'{key}' is of kernels with {_EACH} in their names, was {name}")
        if file.target is None:
            raise document.error((name,), f"'target' is missing here, or {_EACH} in the name")
        found.append(_Build(name, file, families, [file.target] if isinstance(file.target, str) else file.target))
    return found


_EACH = "{architecture}"
"""In the name of an entry: a kernel for each architecture, named by it."""


def _of_architecture(file: yaml_types.KernelFile, arch: str) -> yaml_types.KernelFile:
    define, dtypes = file.define | file.vary.get(arch, {}), (*file.dtypes, *file.further.get(arch, []))
    return msgspec.structs.replace(file, define=define, dtypes=dtypes)


def _check_architectures(document: Document, name: str, file: yaml_types.KernelFile, known: Mapping[str, str]) -> None:
    if file.target is not None:
        said = f"'target' says what {_EACH} in the name does: leave it out, or name architectures"
        raise document.error((name, "target"), said)
    chosen = file.architectures or list(known)
    for keys, word, choices in [
        *((("architectures", at), arch, list(known)) for at, arch in enumerate(file.architectures)),
        *(((key, arch), arch, chosen) for key in ("vary", "further") for arch in getattr(file, key)),
        *((("vary", arch, macro), macro, list(file.define)) for arch, own in file.vary.items() for macro in own),
    ]:
        if word not in choices:
            what = "macro of define" if len(keys) == 3 else "architecture of its targets"
            raise document.error((name, *keys), no_such(what, word, choices) + f"; it has {', '.join(choices)}")


def of_target(root: Tree, target: str, family: str | None = None) -> list[Kernel]:
    """Those that libraries for a target may hold, in the order of the file; of one family alone, if it is named."""
    return [
        Kernel(f"{one.name}-{dtype}", one.file, dtype, one.families, target)
        for one in _builds(root, root.target(target).backend)
        if target in one.targets
        for dtype in one.file.dtypes
        if family is None or family in one.families
    ]


@cache
def _by_name(root: Tree, target: str) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in of_target(root, target)}


def named(root: Tree, target: str, name: str) -> Kernel:
    """The kernel of that name that libraries for a target may hold."""
    return _by_name(root, target)[name]


def of_engine(root: Tree, target: str, family: str) -> list[Kernel]:
    """Those that instances of a family launch, and of every family that its engines hold."""
    held = {name for name, other in root.families.items() if family in owners(root, target, other)}
    return [kernel for kernel in of_target(root, target) if held & set(kernel.families)]


def owners(root: Tree, target: str, family: Family) -> set[str]:
    """Families in whose rooms the engines of a family stand that answer it on a target."""
    return {family.owner(how.pipeline).name for how in root.algorithms(root.target(target), family)}


def absent(target: Target, family: str) -> str:
    """A sentence: a target says that it answers a family, and nothing is compiled for it."""
    place = f"kernels/backends/{target.backend}/builds.yaml"
    return f"{place}: no kernel of family {family} is for {target.name}, whose file lists the family: add an entry"


def of_plan(plan: Plan) -> dict[str, Kernel]:
    """By symbol, those that an instance of the plan launches."""
    return {kernel.symbol: kernel for held in of_instances(plan) for kernel in held}


def of_instances(plan: Plan) -> Iterator[list[Kernel]]:
    """Of each instance those that it may launch."""
    known: dict[tuple[str, str], _Launched] = {}
    for instance in plan.instances:
        key = (instance.target.name, instance.family)
        if key not in known:
            known[key] = _Launched(plan.tree, key[0], instance.family_)
        yield [one for one in known[key].by(instance.packed) if one.file.pipeline in (None, instance.how.pipeline)]


def serving(root: Tree, target: str, family: Family, packed: Iterable[int]) -> dict[str, int]:
    """Number of a family's signatures served by each kernel of a target, by name; of backends that have kernels."""
    launched = _Launched(root, target, family)
    found: dict[str, int] = {}
    for one in packed:
        for kernel in launched.by(one):
            found[kernel.name] = found.get(kernel.name, 0) + 1
    return found


class _Launched:
    """The kernels that signatures of a family launch on a target, decided by few axes: those alike share an answer."""

    def __init__(self, root: Tree, target: str, family: Family) -> None:
        self._kernels = [(one, _clauses(family, one)) for one in of_target(root, target, family.name)]
        self._known: dict[int, list[Kernel]] = {}
        deciding = {axis for _, clauses in self._kernels for clause in clauses for axis, _ in clause}
        self._deciding = sum(axis.field << axis.shift for axis in deciding)

    def by(self, packed: int) -> list[Kernel]:
        key = packed & self._deciding
        if key not in self._known:
            self._known[key] = [
                kernel
                for kernel, clauses in self._kernels
                if any(all(codes >> axis.code_in(packed) & 1 for axis, codes in clause) for clause in clauses)
            ]
        return self._known[key]


def _clauses(family: Family, kernel: Kernel) -> list[list[tuple[Axis, int]]]:
    """Of each clause the axes that it narrows, with the codes that it leaves."""
    said_of = kernel.families[family.name]
    own = kernel.dtype == "any" or kernel.dtype in said_of.axis_of["dtype"].values
    if said_of.name != kernel.file.family and not own:
        return []  # a family beside the kernel's has fewer dtypes
    chosen = kernel.file.when if said_of.name == kernel.file.family else (kernel.file.also or {})[said_of.name]
    when = [chosen] if isinstance(chosen, str) else chosen or [""]
    dtype = "" if kernel.dtype == "any" else f" dtype={kernel.dtype}"
    path = (kernel.name, "when")
    bound: list[Clause] = family.bind_of(said_of, [f"{text}{dtype}".strip() for text in when], path, family.document)
    return [
        [(axis, codes) for axis, codes in zip(family.axes, clause, strict=True) if codes != axis.all_codes]
        for clause in bound
    ]
