# SPDX-License-Identifier: MIT
"""Timing of kernels: cold runs, repeats, a flushed cache, rotating buffers."""

from __future__ import annotations

import time
from collections import namedtuple

from .words import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class Times(namedtuple("Times", "min median max runs mean", defaults=(0.0, 0.0, 0.0, 0, 0.0))):
    """Milliseconds of wall time; all 0 when nothing was timed."""

    __slots__ = ()

    if TYPE_CHECKING:
        min: float = 0.0
        median: float = 0.0
        max: float = 0.0
        runs: int = 0
        mean: float = 0.0


class Timing:
    """Settings of a timed run.

    cold: runs before the clock. repeat: runs that are timed, each by itself. flush_bytes: memory that is written before
    each timed run, so that nothing of the problem is left in the cache; 0: none. rotating: sets of buffers that runs
    take in turn, so that none finds its own in the cache. on: False runs once, without a clock.
    """

    __slots__ = ("cold", "flush_bytes", "on", "repeat", "rotating")

    def __init__(self, cold: int = 5, repeat: int = 10, flush_bytes: int = 0, on: bool = False) -> None:
        self.set(cold, repeat, flush_bytes)
        self.on, self.rotating = on, 1

    def set(self, cold: int, repeat: int, flush_bytes: int = 0) -> Self:
        """Turns it on. ArgumentError for what is less than 0, or no repeat."""
        for name, number, least in (("cold", cold, 0), ("repeat", repeat, 1), ("flush_bytes", flush_bytes, 0)):
            if number < least:
                raise refusal(name, number, f"at least {least}")
        self.on, self.cold, self.repeat, self.flush_bytes = True, cold, repeat, flush_bytes
        return self


def measure(timing: Timing, run: Callable[[int], object]) -> Times:
    """Runs what is given: run(i) with i counting through the sets of buffers."""
    if not timing.on:
        run(0)
        return Times()
    sets = max(1, timing.rotating)
    for i in range(timing.cold):
        run(i % sets)
    flushed, lines = bytearray(timing.flush_bytes), -(-timing.flush_bytes // 64)
    taken = []
    for i in range(timing.repeat):
        flushed[::64] = bytes([i % 256]) * lines
        begin = time.perf_counter()
        run(i % sets)
        taken.append(1e3 * (time.perf_counter() - begin))
    taken.sort()
    half = len(taken) // 2
    median = taken[half] if len(taken) % 2 else (taken[half - 1] + taken[half]) / 2
    return Times(taken[0], median, taken[-1], len(taken), sum(taken) / len(taken))
