# SPDX-License-Identifier: MIT
"""size_budget: what a library may weigh, checked after its link."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen.schema import sizes
from codegen.tell import elf

SHOWN = 12  # contributors that are listed


@dataclass(frozen=True)
class Budget:
    bytes: int
    receipt: str

    def exceeded(self, target: str, new: str, objects: Sequence[str]) -> str:
        """Text on the file `new`, which would become `target`, where it is over the budget; "" where it is not."""
        found = os.path.getsize(new)
        if found <= self.bytes:
            return ""
        parts = contributors(objects)
        width = max(len(part) for part in parts)
        lines = [
            f"{target} is {sizes.shown(found)}, over the size_budget of {sizes.shown(self.bytes)} of receipt "
            f"{self.receipt}. Its largest parts:"
        ]
        lines += [f"  {part:<{width}}  {sizes.shown(size):>9}" for part, size in parts.most_common(SHOWN)]
        lines += [
            f"Keep fewer instances, build for fewer targets, or raise size_budget in receipts/{self.receipt}.yaml."
        ]
        return "\n".join(lines) + "\n"


def of(bytes_: int | None, receipt: str, mode: str) -> Budget | None:
    """Budget of a release library; None in other modes, whose debug information nobody ships."""
    return Budget(bytes_, receipt) if bytes_ and mode == "release" else None


def contributors(objects: Iterable[str]) -> Counter[str]:
    """Bytes of code and data by part of the library, from the objects it is linked from."""
    found: Counter[str] = Counter()
    for path in objects:
        found[part(path)] += elf.weight(path)
    return found


def part(path: str) -> str:
    """Name of an object for people: its engine or its rows' family and target, else its source."""
    words = path.removesuffix(".o").rpartition("/obj/")[2].split("/")
    if words[0] == "engine":
        return f"engines for {re.sub('-[0-9a-f]{8}$', '', words[1])}"
    if words[0] == "rows":
        return f"rows of {words[1]} for {words[2]}"
    if words[0] == "runtime":
        return "runtime"
    return " of ".join(reversed(words))
