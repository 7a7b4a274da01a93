# SPDX-License-Identifier: MIT
"""Times programs on a GPU beside each other: rounds in turn with pauses in one process, medians; the host of a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tilekiln as tk
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


HDIMS = (32, 64, 96, 128, 192, 256)


def held(library: tk.Library) -> list[int]:
    """The head dims of HDIMS for which a library has the forward in bf16."""
    names = [one.name for one in library.instances("family=fmha_fwd dtype=bf16")]
    return [hdim for hdim in HDIMS if any(f"_d{hdim}x{hdim}_" in name for name in names)]


def first_uses(library: tk.Library) -> None:
    """Host time of each kernel's first call, then of its second. To be the first calls of a process."""
    calls = []
    for hdim in held(library):
        q, k, v = (torch.randn(1, 64, 1, hdim, device="cuda").bfloat16() for _ in range(3))
        out = torch.empty_like(q)
        torch.cuda.synchronize()
        took = []
        for _ in range(2):
            begun = time.perf_counter()
            library.fmha_fwd(q, k, v, out=out)
            took.append((time.perf_counter() - begun) * 1e6)
            torch.cuda.synchronize()
        calls.append(f"d{hdim} {took[0]:.0f}/{took[1]:.0f}")
    print("first/second call, us:", ", ".join(calls), "(the first of all also finds the driver)", flush=True)


def call_times(library: tk.Library) -> None:
    q, k, v = (torch.randn(1, 64, 1, 64, device="cuda").bfloat16() for _ in range(3))
    out = torch.empty_like(q)
    lse = torch.empty(1, 1, 64, device="cuda")
    nn = torch.nn.functional
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    programs: dict[str, Callable[[], Any]] = {
        "library, out given": lambda: library.fmha_fwd(q, k, v, out=out),
        "library, causal, lse, both given": lambda: library.fmha_fwd(q, k, v, out=out, lse=lse, causal=True),
        "library, out made": lambda: library.fmha_fwd(q, k, v),
        "torch sdpa": lambda: nn.scaled_dot_product_attention(*heads),
    }
    for name, program in programs.items():
        rounds = []
        for _ in range(21):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(100):
                program()
            rounds.append((time.perf_counter() - begun) * 1e4)
        torch.cuda.synchronize()
        print(f"host time of a call, {name}: {sorted(rounds)[10]:.2f} us", flush=True)
