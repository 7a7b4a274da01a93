"""How this machine is asked whether it can run a target, by the word that a backend says under `machine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from codegen.schema import cpu
from codegen.schema.errors import nearest

if TYPE_CHECKING:
    from codegen.schema.targets import Target


class Machine(NamedTuple):
    check: Callable[[Target], None]  # CodegenError for what a target says wrongly
    has: Callable[[Target], bool]


def _check_cpuid(target: Target) -> None:
    if target.backend_.host and not target.isa:
        raise target.document.error((), f"'isa' is missing here: a target of backend {target.backend} needs one")
    for index, feature in enumerate(target.cpuid):
        if feature not in cpu.KNOWN:
            near = nearest(feature, cpu.KNOWN, 3) or sorted(cpu.KNOWN)
            raise target.document.error(("cpuid", index), f"no CPU feature '{feature}'; nearest: {', '.join(near)}")


def _has_cpuid(target: Target) -> bool:
    return cpu.has(target.arch, target.cpuid)


PLANNED = "planned"
"""That of a backend whose targets nothing here runs yet."""
MACHINES = {"cpuid": Machine(_check_cpuid, _has_cpuid), PLANNED: Machine(lambda target: None, lambda target: False)}
