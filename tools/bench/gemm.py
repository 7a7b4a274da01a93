"""gemm: matrix products against PyTorch and NumPy, share of the peak of the same moment, one core.

Each sample of ours stands between samples of a burst of multiply-adds and of each peer, in one process, by thread CPU
time, pinned; the medians of the ratios are shown. int8 is measured against bf16's peak twice over: the machine has one
rate for a register of either. Wants the receipt gemm_default built for this machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tilekiln as tk

from tools.bench.peak import peak

KINDS = {"fp32": ("fma", 1), "fp16": ("fma", 1), "bf16": ("bf16", 1), "int8": ("bf16", 2)}
NUMPY = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "int8": np.int8}


def _seconds(call: Callable[[], Any], least: float) -> float:
    """Thread CPU time of one call, over as many as take `least` seconds."""
    count, start = 0, time.thread_time()
    while True:
        call()
        count += 1
        spent = time.thread_time() - start
        if spent >= least:
            return spent / count


def _calls(library: tk.Library, dtype: str, m: int, n: int, k: int) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    if dtype == "int8":
        a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    else:
        a, b = (random.standard_normal(shape).astype(NUMPY[dtype]) for shape in ((m, k), (k, n)))
    out = np.empty((m, n), np.int32 if dtype == "int8" else NUMPY[dtype])
    calls: dict[str, Callable[[], Any]] = {"tilekiln": lambda: library.gemm(a, b, out=out, num_threads=1)}
    if dtype == "fp32":
        calls["numpy"] = lambda: np.matmul(a, b, out=out)
    if dtype == "bf16":
        ta, tb = (torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in (a, b))
    else:
        ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    if dtype == "int8":
        calls["torch"] = lambda: torch._int_mm(ta, tb)
    elif dtype == "fp16":  # torch.mm of fp16 is a hundred times slower
        weight = tb.T.contiguous()
        calls["torch"] = lambda: torch.nn.functional.linear(ta, weight)
    else:
        to = torch.empty(m, n, dtype=ta.dtype)
        calls["torch"] = lambda: torch.mm(ta, tb, out=to)
    return calls


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench gemm", description=__doc__)
    parser.add_argument("--sizes", default="256,512,1024,2048", help="squares, or MxNxK [%(default)s]")
    parser.add_argument("--dtypes", default="fp32,bf16,int8", help="[%(default)s]; fp16 too")
    parser.add_argument("--repeat", type=int, default=7, help="samples of each [%(default)s]")
    given = parser.parse_args(argv)
    dtypes = given.dtypes.split(",")
    for dtype in dtypes:
        if dtype not in KINDS:
            parser.error(f"--dtypes: was {dtype!r}, must be of {', '.join(KINDS)}")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    library = tk.load("gemm_default")
    print(f"{library.isa}; share of the peak of the moment, and the peer's time over ours (1.5: we take two thirds)")
    for dtype in dtypes:
        kind, factor = KINDS[dtype]
        if not peak(kind, 0.01):
            print(f"{dtype}: this CPU has no {kind} to measure a peak of")
            continue
        for size in given.sizes.split(","):
            numbers = [int(part) for part in size.split("x")]
            m, n, k = numbers * 3 if len(numbers) == 1 else numbers
            calls = _calls(library, dtype, m, n, k)
            for call in calls.values():
                call()
            shares: dict[str, list[float]] = {name: [] for name in calls}
            ratios: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(given.repeat):
                spent = {}
                for name, call in calls.items():
                    before = peak(kind, 0.02)
                    spent[name] = _seconds(call, 0.03)
                    best = factor * (before + peak(kind, 0.02)) / 2
                    shares[name].append(2 * m * n * k / spent[name] / best)
                for name in calls:
                    ratios[name].append(spent[name] / spent["tilekiln"])
            text = ", ".join(
                f"{name} {statistics.median(shares[name]):4.0%}"
                + ("" if name == "tilekiln" else f" ({statistics.median(ratios[name]):.2f}x)")
                for name in calls
            )
            print(f"{dtype} {size:>12}: {text}", flush=True)
    return 0
