# SPDX-License-Identifier: MIT
"""Number of jobs at once: as many as there are cores. Memory holds some of them back (memory.Gate)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from codegen.schema import sizes

from . import memory
from .measured import Measured


def choose(mode: str, known: Mapping[str, Measured]) -> tuple[int, str]:
    """The number of jobs, and the sentence that says why. `known`: what jobs took in the last build."""
    cores, free = len(os.sched_getaffinity(0)), memory.free()
    if free == float("inf"):
        return cores, _sentence(cores, "memory unknown")
    largest = max((entry.peak for entry in known.values()), default=0) or memory.UNMEASURED["engine"][mode]
    hold = int(free * (1 - memory.HEADROOM) / largest)
    why = f"{sizes.shown(free)} of free memory"
    if hold < cores:
        of = "took in the last build" if known else "may take"
        why += f", which holds {hold or 'not even one'} of the largest job ({of} {sizes.shown(largest)})"
    return cores, _sentence(cores, why)


def _sentence(count: int, why: str) -> str:
    jobs, cores = (f"{count} {word}{'s' if count > 1 else ''}" for word in ("job", "core"))
    return f"{jobs} at once: {cores}, {why} (-j to change)"
