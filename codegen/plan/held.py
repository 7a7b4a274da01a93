# SPDX-License-Identifier: MIT
"""Parts of the tree that a library holds beside its engines: the operators of its plan, and their host code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from codegen.plan.plan import Plan
from codegen.schema.operators import COMMON, Operator

ALWAYS = "kernels/runtime/*.cpp"
"""The host code of every library: dispatch, threads, streams, what the C ABI says of the library itself."""


def operators(plan: Plan) -> list[Operator]:
    """Those with a stage of their own in the plan, and those whose stages they may run.

    Of an area whose operators stay together all, unless where= left out a family of the receipt.
    """
    families = {instance.family for instance in plan.instances}
    every = plan.tree.operators.values()
    main = [one for one in every if not families.isdisjoint(set(one.file.stages) - set(one.file.optional))]
    used = [one for one in every if any(set(one.file.stages) <= set(of.file.stages) for of in main)]
    if plan.where and not families.issuperset(plan.source.clauses):
        return used
    whole = {operator.area_room for operator in used if operator.area.together and not operator.file.area}
    return [one for one in every if one in used or (one.area_room in whole and not one.file.area)]


def host(held: Iterable[Operator], backends: Iterable[str]) -> list[str]:
    """The host code of a library of these operators and backends, as patterns from the tree's root."""
    held = list(held)
    sides = [f"kernels/backends/{backend}/*.cpp" for backend in ("cpu", *backends)]
    areas = [f"{operator.area_room}/*.cpp" for operator in held if not operator.file.area]
    calls = [f"{os.path.dirname(operator.file.call.header)}/*.cpp" for operator in held]
    return [*dict.fromkeys([ALWAYS, *sides, *areas, *calls, *(f"{operator.room}/*.cpp" for operator in held)])]


def sources(plan: Plan, hashes: Mapping[str, str]) -> dict[str, str]:
    """Of the hashes of the tree's folders, those of what the library is made from."""
    held = operators(plan)
    families = [instance.family_ for instance in {i.family: i for i in plan.instances}.values()]
    every, all_families = plan.tree.operators.values(), plan.tree.families
    rooms = {operator.room for operator in every} | {family.room for family in all_families.values()}
    rooms |= {operator.area_room for operator in every}
    own = {COMMON} | {room for operator in held for room in (operator.room, operator.area_room)}
    own |= {all_families[stage].room for operator in held for stage in operator.file.stages}
    own |= {room for family in families for room in (family.room, family.engine_family.room)}
    # The folder that rooms lie in is theirs, whether it is an area with arguments of its own or not.
    rooms, own = ({*some, *(os.path.dirname(room) for room in some)} for some in (rooms, own))
    others = {
        one.path for one in plan.tree.places.outside if not any(f"{room}/".startswith(f"{one.path}/") for room in own)
    }
    not_ours = {folder for folder in hashes for other in others if f"{folder}/".startswith(f"{other}/")}
    return {folder: digest for folder, digest in hashes.items() if folder not in (rooms - own) | not_ours}
