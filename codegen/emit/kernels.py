"""The kernels that a plan's rows launch, of backends whose toolchain compiles kernels: builds.yaml of the backend."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from codegen.plan.plan import Plan
from codegen.schema import yaml_types
from codegen.schema.axes import Family
from codegen.schema.select import Clause
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


def of_target(root: Tree, target: str, family: str | None = None) -> list[Kernel]:
    """Those that libraries for a target may hold, in the order of the file; of one family alone, if it is named."""
    place = f"kernels/backends/{root.target(target).backend}/builds.yaml"
    if not os.path.isfile(os.path.join(root.root, place)):
        return []
    entries = Document(root.places, place).load(dict[str, yaml_types.KernelFile])
    listed = [
        (name, file, _families(root, file))
        for name, file in entries.items()
        if target in ([file.target] if isinstance(file.target, str) else file.target)
    ]
    return [
        Kernel(f"{name}-{dtype}", file, dtype, families, target)
        for name, file, families in listed
        for dtype in file.dtypes
        if family is None or family in families
    ]


def of_engine(root: Tree, target: str, family: str) -> list[Kernel]:
    """Those that instances of a family launch, and of every family that its engines hold."""
    held = {name for name, other in root.families.items() if other.engine_family.name == family}
    return [kernel for kernel in of_target(root, target) if held & set(kernel.families)]


def of_plan(plan: Plan) -> dict[str, Kernel]:
    """By symbol, those that an instance of the plan launches."""
    return {kernel.symbol: kernel for held in of_instances(plan) for kernel in held}


def of_instances(plan: Plan) -> Iterator[list[Kernel]]:
    """Of each instance those that it may launch."""
    known: dict[tuple[str, str], list[tuple[Kernel, list[Clause]]]] = {}
    for instance in plan.instances:
        key = (instance.target.name, instance.family)
        if key not in known:
            known[key] = [(kernel, _clauses(instance.family_, kernel)) for kernel in of_target(plan.tree, *key)]
        yield [
            kernel
            for kernel, clauses in known[key]
            if any(_meets(instance.family_, instance.packed, clause) for clause in clauses)
        ]


def serving(root: Tree, target: str, family: Family, packed: Iterable[int]) -> dict[str, int]:
    """How many signatures of a family each kernel of a target serves, by its name; of backends that have kernels."""
    held = [(kernel.name, _clauses(family, kernel)) for kernel in of_target(root, target, family.name)]
    found: dict[str, int] = {}
    for one in packed:
        for name in [name for name, clauses in held if any(_meets(family, one, clause) for clause in clauses)]:
            found[name] = found.get(name, 0) + 1
    return found


def _clauses(family: Family, kernel: Kernel) -> list[Clause]:
    said_of = kernel.families[family.name]
    chosen = kernel.file.when if said_of.name == kernel.file.family else (kernel.file.also or {})[said_of.name]
    when = [chosen] if isinstance(chosen, str) else chosen or [""]
    dtype = "" if kernel.dtype == "any" else f" dtype={kernel.dtype}"
    path = (kernel.name, "when")
    return family.bind_of(said_of, [f"{text}{dtype}".strip() for text in when], path, family.document)


def _meets(family: Family, packed: int, clause: Clause) -> bool:
    return all(allowed >> axis.code_in(packed) & 1 for axis, allowed in zip(family.axes, clause, strict=True))
