"""call: what one call costs past the kernel, in ns of thread CPU time: lib.fmha_fwd and tk.attention, NumPy and torch.

Every case runs an empty problem (seqlen_q = 0: all checks, dispatch, no kernel), so that the figure is the overhead
itself, and a tiny one, (1, 1, 1, 16). Rounds of all cases are interleaved; a figure is the median over rounds. Pin it:
taskset -c 1 tools/dev --with torch python tools/bench call
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

CALLS, ROUNDS = 2000, 41


def _shapes(name: str) -> tuple[int, ...]:
    return (1, 0, 1, 16) if name == "empty" else (1, 1, 1, 16)


def _cases(library: Any) -> dict[str, Callable[[int], None]]:
    """Each case as a loop of n calls, so that the clock is read twice only."""
    import numpy as np
    import tilekiln as tk

    frameworks: dict[str, Callable[..., Any]] = {"NumPy": lambda *shape: np.ones(shape, np.float32)}
    if importlib.util.find_spec("torch"):
        import torch

        frameworks["torch"] = torch.ones
    cases: dict[str, Callable[[int], None]] = {}
    for framework, ones in frameworks.items():
        for size in ("empty", "tiny"):
            q, k, v, out = (ones(*_shapes(size)), ones(1, 1, 1, 16), ones(1, 1, 1, 16), ones(*_shapes(size)))

            def given(n: int, lib: Any = library, q: Any = q, k: Any = k, v: Any = v, out: Any = out) -> None:
                for _ in range(n):
                    lib.fmha_fwd(q, k, v, out=out)

            def causal(n: int, lib: Any = library, q: Any = q, k: Any = k, v: Any = v, out: Any = out) -> None:
                for _ in range(n):
                    lib.fmha_fwd(q, k, v, out=out, causal=True, softmax_scale=0.25)

            def allocates(n: int, lib: Any = library, q: Any = q, k: Any = k, v: Any = v) -> None:
                for _ in range(n):
                    lib.fmha_fwd(q, k, v)

            def attention(n: int, q: Any = q, k: Any = k, v: Any = v, out: Any = out) -> None:
                for _ in range(n):
                    tk.attention(q, k, v, out=out)

            cases[f"{framework} lib.fmha_fwd out= {size}"] = given
            if size == "empty":
                cases[f"{framework} lib.fmha_fwd out= causal= softmax_scale= {size}"] = causal
                cases[f"{framework} lib.fmha_fwd new out {size}"] = allocates
            cases[f"{framework} tk.attention out= {size}"] = attention
    return cases


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench call", description=__doc__)
    parser.add_argument("receipt", nargs="?", default="flash")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(argv)
    import tilekiln as tk

    library = tk.load(arguments.receipt)
    cases = {"an empty Python loop": lambda n: [None for _ in range(n)], **_cases(library)}
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(arguments.rounds):
        for name, case in cases.items():
            begin = time.thread_time_ns()
            case(CALLS)
            samples[name].append((time.thread_time_ns() - begin) / CALLS)
    print(f"{library!r}: ns of thread CPU time per call, median of {arguments.rounds} rounds of {CALLS}")
    for name, values in samples.items():
        low, high = (statistics.quantiles(values, n=10)[i] for i in (0, -1))
        print(f"  {name:58} {statistics.median(values):8.0f}   p10 {low:.0f} p90 {high:.0f}")
    return 0
