"""The kernels that a plan's rows launch, of backends whose toolchain compiles kernels: builds.yaml of the backend."""

from __future__ import annotations

import os
from typing import NamedTuple

from codegen.plan.plan import Instance, Plan
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

    @property
    def symbol(self) -> str:
        assert self.file.target is not None
        return f"tilekiln_{self.file.target.replace('-', '_')}_{self.name.replace('-', '_')}"


DTYPES = ("bf16", "fp16")


def of_target(root: Tree, target: str, family: str | None = None) -> list[Kernel]:
    """Those that libraries for a target may hold, in the order of the file; of one family alone, if it is named."""
    place = f"kernels/backends/{root.target(target).backend}/builds.yaml"
    if not os.path.isfile(os.path.join(root.root, place)):
        return []
    entries = Document(root.places, place).load(dict[str, yaml_types.KernelFile])
    return [
        Kernel(f"{name}-{dtype}", file, dtype)
        for name, file in entries.items()
        if file.target == target and family in (None, file.family)
        for dtype in DTYPES
    ]


def of_plan(plan: Plan) -> dict[str, Kernel]:
    """By symbol, those that an instance of the plan launches."""
    found: dict[str, Kernel] = {}
    known: dict[tuple[str, str], list[tuple[Kernel, list[Clause]]]] = {}
    for instance in plan.instances:
        key = (instance.target.name, instance.family)
        if key not in known:
            known[key] = [(kernel, _clauses(instance.family_, kernel)) for kernel in of_target(plan.tree, *key)]
        for kernel, clauses in known[key]:
            if kernel.symbol not in found and any(_meets(instance, clause) for clause in clauses):
                found[kernel.symbol] = kernel
    return found


def _clauses(family: Family, kernel: Kernel) -> list[Clause]:
    when = [kernel.file.when] if isinstance(kernel.file.when, str) else kernel.file.when or [""]
    return family.bind([f"{text} dtype={kernel.dtype}".strip() for text in when], (kernel.name, "when"))


def _meets(instance: Instance, clause: Clause) -> bool:
    axes = instance.family_.axes
    return all(allowed >> axis.code_in(instance.packed) & 1 for axis, allowed in zip(axes, clause, strict=True))
