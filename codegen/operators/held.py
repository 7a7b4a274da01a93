"""What a library holds of the tree beside its engines: the operators of its plan, and their host code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from codegen.operators.model import COMMON, Operator
from codegen.plan import Plan

ALWAYS = "kernels/library/*.cpp"
"""The host code of every library: dispatch, threads, streams, what the C ABI says of the library itself."""


def operators(plan: Plan) -> list[Operator]:
    """Those with a stage in the plan; of an area whose operators stay together, all."""
    families = {instance.family for instance in plan.instances}
    every = plan.tree.operators.values()
    used = [operator for operator in every if not families.isdisjoint(operator.file.stages)]
    whole = {operator.file.area for operator in used if operator.area.together}
    return [operator for operator in every if operator in used or operator.file.area in whole]


def host(held: Iterable[Operator]) -> list[str]:
    """The host code of a library of these operators, as patterns from the tree's root."""
    held = list(held)
    areas = dict.fromkeys(f"kernels/{operator.file.area}/*.cpp" for operator in held)
    return [*dict.fromkeys([ALWAYS, *areas]), *(f"kernels/{operator.name}/host.cpp" for operator in held)]


def sources(plan: Plan, hashes: Mapping[str, str]) -> dict[str, str]:
    """Of the hashes of the tree's folders, those of what the library is made from."""
    held = operators(plan)
    families = [instance.family_ for instance in {i.family: i for i in plan.instances}.values()]
    rooms = {operator.name for operator in plan.tree.operators.values()} | {*plan.tree.families}
    rooms |= {operator.file.area for operator in plan.tree.operators.values()}
    own = {COMMON} | {word for operator in held for word in (operator.name, operator.file.area, *operator.file.stages)}
    own |= {word for family in families for word in (family.name, family.engine_family.name)}
    others = {f"kernels/{room}" for room in rooms - own}
    return {folder: digest for folder, digest in hashes.items() if folder not in others}
