# SPDX-License-Identifier: MIT
"""Times programs on a GPU beside each other: rounds in turn with pauses in one process, medians."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

PAUSE = (
    0.05  # s. A GPU at its power limit slows down: without pauses the order of the programs changes the result by 10 %
)
BURST = 4.0  # ms of work that one timing spans


def interleaved(programs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds a call: the median over rounds, the programs in turn and every other round backwards."""
    repeats = {}
    for name, program in programs.items():
        program()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        program()
        program()
        torch.cuda.synchronize()
        repeats[name] = max(1, int(BURST / max(1e-3, (time.perf_counter() - begun) * 500)))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(rounds):
        for name in list(programs) if turn % 2 == 0 else list(programs)[::-1]:
            time.sleep(PAUSE)
            program, count = programs[name], repeats[name]
            program()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(count):
                program()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / count)
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def line(title: str, values: list[float]) -> None:
    print(f"{title:44}", *(f"{value:6.0f}" for value in values), flush=True)
