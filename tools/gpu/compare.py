# SPDX-License-Identifier: MIT
"""Machine code of one kernel before and after a change, main loop by main loop, from two folders of cubins."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tools.gpu import builds, sass

MORE = 2
"""Instructions that a main loop may grow by: less than ptxas's noise of one line elsewhere moves."""


@dataclass(frozen=True)
class Function:
    instructions: int
    local: int  # LDL and STL in all of it
    loops: tuple[sass.Loop, ...]


def functions(text: str, products: re.Pattern[str]) -> dict[str, Function]:
    """Each function of a disassembly; empty where the text has none."""
    loops = sass.find_loops(text, products)
    found = {}
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name = part.split(maxsplit=1)[0]
        lines = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\w+)", part, re.M)
        count = Counter(lines)
        own = tuple(loop for loop in loops if loop.function == name)
        found[name] = Function(len(lines), count["LDL"] + count["STL"], own)
    return found


def worse(before: Function, after: Function, wgmma: bool = True) -> list[str]:
    """Sentences about main loops of `after` that are worse than those of `before`, each from the shortest: ptxas may
    lay them out in another order.

    A local access that is gone was no work under the last product: `covered` may fall by as many. Loops of mma.sync
    may keep the WARPSYNC that they had, and nothing runs under their products.
    """
    if len(before.loops) != len(after.loops):
        return [f"{len(after.loops)} main loops, before {len(before.loops)}: compare them by hand"]
    said = []
    by_length = [sorted(side.loops, key=lambda loop: loop.instructions) for side in (before, after)]
    for number, (old, new) in enumerate(zip(*by_length, strict=True)):
        limits = (
            ("instructions", new.instructions, old.instructions + MORE),
            ("local accesses", new.local, old.local),
            ("WARPSYNC", new.warpsync, 0 if wgmma else old.warpsync),
            ("R2UR", new.r2ur, old.r2ur),
        )
        said += [f"main loop {number}: {now} {what}, at most {most} may be" for what, now, most in limits if now > most]
        least = min(old.covered - max(0, old.local - new.local), sass.LEAST_COVERED)
        if wgmma and new.covered < least:
            said.append(
                f"main loop {number}: {new.covered} instructions under the last product, at least {least} must be"
            )
    return said


def run(before: Path, after: Path, names: list[str]) -> None:
    """Prints both sides of every kernel that `after` holds; raises with every main loop that is worse."""
    cuobjdump, failures, compared = builds.tool("cuobjdump"), [], 0
    for each in builds.builds(names):
        pair = each.cubin(before), each.cubin(after)
        if not pair[1].exists():
            continue
        if not pair[0].exists():
            raise builds.GpuError(f"before: {pair[0]} is missing, must be built by tools/gpu build of the tree before")
        products = sass.PRODUCTS if each.wgmma else sass.PRODUCTS_OF_WARPS
        old, new = (functions(sass.disassemble(cuobjdump, cubin), products) for cubin in pair)
        sizes = [cubin.stat().st_size / 1000 for cubin in pair]
        print(f"{each.name}: {sizes[0]:.0f} -> {sizes[1]:.0f} kB", flush=True)
        for name, now in new.items():
            if name not in old:
                failures.append(f"{each.name}, {name}: is not in the cubin before")
                continue
            was, compared = old[name], compared + 1
            print(f"  {name:16} {was.instructions} -> {now.instructions} instructions, LDL + STL", end=" ")
            print(f"{was.local} -> {now.local}; {_loops(was)} -> {_loops(now)}", flush=True)
            failures += [f"{each.name}, {name}: {text}" for text in worse(was, now, each.wgmma)]
        failures += [f"{each.name}, {name}: is not in the cubin after" for name in old if name not in new]
    if not compared:
        raise builds.GpuError(
            f"after: {after} has no cubin of these kernels, must be a folder that tools/gpu build wrote"
        )
    if failures:
        raise builds.GpuError("\n".join(failures))


def _loops(of: Function) -> str:
    each = (f"{one.instructions} ({one.local} local, {one.r2ur} R2UR, {one.covered} covered)" for one in of.loops)
    return "loops " + ", ".join(each)
