# SPDX-License-Identifier: MIT
"""Questions to this machine, whether it can run a target, by the word under `machine` in backend.yaml."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from codegen.schema import amd, cpu, nvidia
from codegen.schema.errors import nearest

if TYPE_CHECKING:
    from codegen.schema.targets import Target


class Machine(NamedTuple):
    """Check and question of one kind of machine. A library's table holds the same: a function of cpuid, else `arch`."""

    check: Callable[[Target], None]  # CodegenError for what a target says wrongly
    has: Callable[[Target], bool]


def _check_cpuid(target: Target) -> None:
    if target.backend_.host and not target.isa:
        raise target.document.error((), f"'isa' is missing here: a target of backend {target.backend} needs one")
    for index, feature in enumerate(target.cpuid):
        known = cpu.known(target.arch)
        if feature not in known:
            near = nearest(feature, known, 3) or sorted(known)
            raise target.document.error(("cpuid", index), f"no CPU feature '{feature}'; nearest: {', '.join(near)}")


def _has_cpuid(target: Target) -> bool:
    return cpu.has(target.arch, target.cpuid)


def _check_cuda(target: Target) -> None:
    if nvidia.ARCH.fullmatch(target.arch) is None:
        what = f"'{target.arch}' must be an architecture of NVIDIA's, as sm_80 or sm_90a"
        raise target.document.error(("arch",), what)
    _check_no_cpu(target)


def _check_hip(target: Target) -> None:
    if amd.ARCH.fullmatch(target.arch) is None:
        raise target.document.error(
            ("arch",), f"'{target.arch}' must be an architecture of AMD's, as gfx90a or gfx1201"
        )
    _check_no_cpu(target)


def _check_no_cpu(target: Target) -> None:
    for key in ("isa", "cpuid"):
        if getattr(target, key):
            raise target.document.error((key,), f"'{key}' is of CPUs: a target of backend {target.backend} has none")


PLANNED = "planned"
"""The word of a backend whose targets nothing here runs yet."""
MACHINES = {
    "cpuid": Machine(_check_cpuid, _has_cpuid),
    "cuda": Machine(_check_cuda, lambda target: nvidia.has(target.arch)),
    "hip": Machine(_check_hip, lambda target: amd.has(target.arch)),
    PLANNED: Machine(lambda target: None, lambda target: False),
}
