# SPDX-License-Identifier: MIT
"""gemm: matrix products against PyTorch, NumPy, ONNX Runtime, OpenVINO, JAX; share of the peak of the moment, one core.

Each sample of ours stands between samples of a burst of multiply-adds and of each peer, in one process, by CPU time,
pinned; the medians are shown. int8 is measured against bf16's peak twice over: the machine has one rate for a register
of either; fp8 against bf16's, fp16 against fp32's. `packed` is flatmm; ONNX Runtime and OpenVINO have b packed too.
--threads 2 shows what a second thread gains, by the median wall time of a call; --epilogues what they cost beyond the
product (c alone: reading c without using it). Wants the receipts gemm_default and gemm_fp8 built for this machine;
peers other than PyTorch: tools/dev --with "torch jax peers".
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY

from tools.bench import peers
from tools.bench.decode import fastest_loop, read
from tools.bench.peak import peak

KINDS = {"fp32": ("fma", 1), "fp16": ("fma", 1), "bf16": ("bf16", 1), "int8": ("bf16", 2), "fp8": ("bf16", 1)}
OWN_THREADS = ("openvino", "jax")
"""Peers whose threads are not the caller's: the process is timed."""


def _seconds(call: Callable[[], Any], least: float, clock: Callable[[], float] = time.thread_time) -> float:
    """Time of one call, over as many as take `least` seconds."""
    count, start = 0, clock()
    while True:
        call()
        count += 1
        spent = clock() - start
        if spent >= least:
            return spent / count


def _operands(dtype: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    if dtype == "int8":
        return tuple(random.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    return tuple(random.standard_normal(shape).astype(NUMPY[dtype]) for shape in ((m, k), (k, n)))


def _ours(dtype: str, a: Any, b: Any, threads: int = 1) -> dict[str, Callable[[], Any]]:
    library = tk.load("gemm_fp8" if dtype == "fp8" else "gemm_default")
    to = NUMPY[{"int8": "int32", "fp8": "bf16"}.get(dtype, dtype)]
    out = np.empty((a.shape[0], b.shape[1]), to)
    calls: dict[str, Callable[[], Any]] = {"tilekiln": lambda: library.gemm(a, b, out=out, num_threads=threads)}
    if dtype not in ("int8", "fp8"):
        panels = tk.PackedWeight(np.ascontiguousarray(b.T)).panels
        tiles = np.empty((a.shape[0], panels.shape[0], 64), to)
        calls["packed"] = lambda: library.flatmm(a, panels, out=tiles, num_threads=threads)
    return calls


def _torch(dtype: str, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(1)
    if dtype in ("bf16", "fp8"):
        bits, kind = (np.int16, torch.bfloat16) if dtype == "bf16" else (np.int8, torch.float8_e4m3fn)
        ta, tb = (torch.from_numpy(x.view(bits)).view(kind) for x in (a, b))
    else:
        ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    if dtype == "int8":
        return {"torch": lambda: torch._int_mm(ta, tb)}
    if dtype == "fp8":
        one, weight = torch.ones(1), tb.T.contiguous().T
        scaled = lambda: torch._scaled_mm(ta, weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: E731
        return {"torch": scaled, "torch, widened": lambda: torch.mm(ta.bfloat16(), tb.bfloat16())}
    if dtype == "fp16":  # torch.mm of fp16 is a hundred times slower
        weight = tb.T.contiguous()
        return {"torch": lambda: torch.nn.functional.linear(ta, weight)}
    to = torch.empty(a.shape[0], b.shape[1], dtype=ta.dtype)
    return {"torch": lambda: torch.mm(ta, tb, out=to)}


def _calls(dtype: str, m: int, n: int, k: int, names: list[str]) -> dict[str, Callable[[], Any]]:
    a, b = _operands(dtype, m, n, k)
    calls = _ours(dtype, a, b)
    if "numpy" in names and dtype == "fp32":
        out = np.empty((m, n), np.float32)
        calls["numpy"] = lambda: np.matmul(a, b, out=out)
    if "torch" in names:
        calls |= _torch(dtype, a, b)
    for name, make in (
        ("onnxruntime", peers.onnxruntime_product),
        ("openvino", peers.openvino_product),
        ("jax", peers.jax_product),
    ):
        call = make(a, b) if name in names else None
        if call:
            calls[name] = call
    return calls


def _paired(dtype: str, m: int, n: int, k: int, names: list[str], repeat: int, least: float) -> str:
    """Shares of the peak and times over ours, of one shape."""
    kind, factor = KINDS[dtype]
    calls = _calls(dtype, m, n, k, names)
    for call in calls.values():
        call()
    shares: dict[str, list[float]] = {name: [] for name in calls}
    ratios: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        spent = {}
        for name, call in calls.items():
            before = peak(kind, least / 2)
            spent[name] = _seconds(call, least, time.process_time if name in OWN_THREADS else time.thread_time)
            best = factor * (before + peak(kind, least / 2)) / 2
            shares[name].append(2 * m * n * k / spent[name] / best)
        for name in calls:
            ratios[name].append(spent[name] / spent["tilekiln"])
    return ", ".join(
        f"{name} {statistics.median(shares[name]):4.0%}"
        + ("" if name == "tilekiln" else f" ({statistics.median(ratios[name]):.2f}x)")
        for name in calls
    )


def _typical(call: Callable[[], Any], least: float) -> float:
    """Median wall time of the calls of `least` seconds: a few of two threads lose a core to the system for a turn."""
    taken, end = list[int](), time.perf_counter_ns() + int(1e9 * least)
    while not taken or time.perf_counter_ns() < end:
        start = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - start)
    return statistics.median(taken)


def _shape(size: str) -> tuple[int, int, int]:
    """m, n and k of a square's side, or of MxNxK."""
    numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in size.split("x")]
    if len(numbers) not in (1, 3) or min(numbers) < 1:
        raise ValueError(f"--sizes: was {size!r}, must be a side such as 256, or MxNxK such as 16x4096x4096")
    m, n, k = numbers * 3 if len(numbers) == 1 else numbers
    return m, n, k


def _threaded(dtype: str, m: int, n: int, k: int, threads: int, repeat: int, least: float) -> str:
    """Gain of threads, by the median wall time of a call."""
    a, b = _operands(dtype, m, n, k)
    one, many = _ours(dtype, a, b), _ours(dtype, a, b, threads)
    texts = []
    for name in one:
        one[name](), many[name]()
        gains = [_typical(one[name], least) / _typical(many[name], least) for _ in range(repeat)]
        texts.append(f"{name} {statistics.median(gains):.2f}x of one thread")
    return ", ".join(texts)


def _epilogues(dtype: str, m: int, n: int, k: int, repeat: int, least: float) -> str:
    """Times of a product with an epilogue over those of one without, and of reading c, paired."""
    a, b = _operands(dtype, m, n, k)
    c = _operands(dtype, m, n, n)[0]
    bias, out, library = np.ones(n, np.float32), np.empty((m, n), NUMPY[dtype]), tk.load("gemm_default")
    whole = c.view(np.uint8)
    loop = fastest_loop(whole)

    def call(**more: Any) -> Callable[[], Any]:
        return lambda: library.gemm(a, b, out=out, num_threads=1, **more)

    plain = call()
    calls = {"bias": call(bias=bias), "c": call(c=c, beta=1.0)}
    calls |= {f"bias, {name}": call(bias=bias, activation=name) for name in ("relu", "silu", "gelu_tanh", "gelu")}
    calls["c alone"] = lambda: (read(loop, whole), plain())
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, one in calls.items():
            before = _seconds(plain, least)
            spent[name].append(2 * _seconds(one, least) / (before + _seconds(plain, least)) - 1)
    texts = [f"{name} {statistics.median(shares):+.1%}" for name, shares in spent.items()]
    return ", ".join(texts)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench gemm", description=__doc__)
    parser.add_argument("--sizes", default="256,512,1024,2048", help="squares, or MxNxK [%(default)s]")
    parser.add_argument("--dtypes", default="fp32,bf16,int8", help="[%(default)s]; fp16 and fp8 too")
    parser.add_argument("--peers", default=",".join(peers.PACKAGES), help="[%(default)s]; none: ours alone")
    parser.add_argument("--threads", type=int, default=1, help="above 1: what so many threads gain [%(default)s]")
    parser.add_argument("--epilogues", action="store_true", help="what epilogues cost")
    parser.add_argument("--repeat", type=int, default=7, help="samples of each [%(default)s]")
    parser.add_argument("--least", type=float, default=0.03, help="seconds of a sample [%(default)s]")
    given = parser.parse_args(argv)
    if given.repeat < 1 or given.least <= 0:
        name, was, must = (
            ("repeat", given.repeat, "at least 1") if given.repeat < 1 else ("least", given.least, "above 0")
        )
        parser.error(f"--{name}: was {was}, must be {must}")
    dtypes, names = given.dtypes.split(","), [name for name in given.peers.split(",") if name != "none"]
    for dtype in dtypes:
        if given.epilogues and dtype in ("int8", "fp8"):
            parser.error(f"--epilogues: --dtypes was {dtype!r}, must be of fp32, fp16, bf16")
        if dtype not in KINDS:
            parser.error(f"--dtypes: was {dtype!r}, must be of {', '.join(KINDS)}")
    try:
        shapes = {size: _shape(size) for size in given.sizes.split(",")}
    except ValueError as error:
        parser.error(str(error))
    for name in names:
        if name not in peers.PACKAGES:
            parser.error(f"--peers: was {name!r}, must be of {', '.join(peers.PACKAGES)}, or none")
    if given.threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peers.one_thread("gemm", argv)
    print(f"{tk.load('gemm_default').isa}; {peers.versions()}")
    shown = "time beyond that of the product alone" if given.epilogues else "share of the peak of the moment"
    print(shown + ("" if given.epilogues else ", and the peer's time over ours (1.5: we take two thirds)"), flush=True)
    for dtype in dtypes:
        if not peak(KINDS[dtype][0], 0.01):
            print(f"{dtype}: this CPU has no {KINDS[dtype][0]} to measure a peak of")
            continue
        for size, shape in shapes.items():
            if given.threads > 1:
                text = _threaded(dtype, *shape, given.threads, given.repeat, given.least)
            elif given.epilogues:
                text = _epilogues(dtype, *shape, given.repeat, given.least)
            else:
                text = _paired(dtype, *shape, names, given.repeat, given.least)
            print(f"{dtype} {size:>12}: {text}", flush=True)
    return 0
