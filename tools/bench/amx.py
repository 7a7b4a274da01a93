# SPDX-License-Identifier: MIT
"""amx: on a Xeon with AMX, builds the libraries, runs the CPU's tests of them, and times them beside PyTorch.

    python3 tools/bench amx [PART]... [--threads 1,8,all] [--library FOLDER]

Without a part all of them. build: libraries of cpu-avx512, cpu-avx512bf16 and cpu-amx, by SCons; --library names a
folder of such that were built elsewhere. tests: the CPU's test files of those targets. The others (products, parts,
attention, backward, rows) are timed in turns with PyTorch, a process a count of threads, by wall time, with a pause
before each call, which is whole: packing of keys is in it. Figures are GF/s at best and of the median, a ratio is
PyTorch's time over ours; int8 also ONNX Runtime, which packs b beforehand, as ours does that is called packed. rows:
weights of 1 GB in rotation beside a loop that reads them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = "cpu-avx512,cpu-avx512bf16,cpu-amx"
RECEIPTS = "flash,fp8,ck_default,pytorch,gemm_default,gemm_fp8,gemm_linear,gemm_multi_d,moe_default,norm_default"
FILES = """
    kernels backward kv few_queries special_values guard_pages tiles gemm gemm_list gemm_lists gemm_quant gemm_schedules
    flatmm_quant fused_moe linear mla any_batch strides many_keys wide_heads instances facade rmsnorm2d softmax
""".split()
"""Of tests/python."""
TIMED = ("products", "parts", "attention", "backward", "rows")
SIZES, LENGTHS = (1024, 2048, 4096), (512, 1024, 2048, 4096, 8192)
WEIGHTS = 14336, 4096, 9
"""Columns, k and number of those that lie in memory: 1 GB."""
PAUSE, SLEEP = 0.002, 0.02
"""Seconds before a call: a pool that spins on every CPU is stopped by the host for some milliseconds now and then; and
before one of several threads, as those of PyTorch's OpenMP wait for up to 17 ms without sleep, on the same cores."""
Calls = dict[str, Callable[[], Any]]


def timed(label: str, flops: float, calls: Calls, seconds: float, peer: str = "torch") -> None:
    """Times calls in turns and prints a line; the first is ours."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    pause = SLEEP if os.environ.get("OMP_NUM_THREADS", "1") != "1" else PAUSE
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[peer]) < 5:
        for name, call in calls.items():
            time.sleep(pause)
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    shown = []
    for name, own in times.items():
        best, median = min(own), statistics.median(own)
        over = f" ({min(times[peer]) / best:.2f} {statistics.median(times[peer]) / median:.2f})" if name != peer else ""
        shown.append(f"{name} {flops / best / 1e9:.0f} {flops / median / 1e9:.0f}{over}")
    print(f"{label}: {', '.join(shown)}", flush=True)


def products(threads: int, seconds: float) -> None:
    for n in SIZES:
        product(n, "bfloat16", threads, seconds)
        product(n, "float16", threads, seconds)
        whole_numbers(n, threads, seconds)


def product(n: int, dtype: str, threads: int, seconds: float) -> None:
    import tilekiln as tk
    import torch

    a, b = (torch.randn(n, n).to(getattr(torch, dtype)) for _ in "ab")
    packed = tk.PackedWeight(b)
    calls: Calls = {
        "packed": lambda: tk.linear(a, packed, num_threads=threads),
        "as it lies": lambda: tk.linear(a, b, num_threads=threads),
        "torch": lambda: torch.nn.functional.linear(a, b),
    }
    timed(f"{dtype} {n} threads {threads}", 2.0 * n**3, calls, seconds)


def whole_numbers(n: int, threads: int, seconds: float) -> None:
    import tilekiln as tk
    import torch

    from tools.bench.peers import onnxruntime_product

    a, b = (torch.randint(-128, 128, (n, n), dtype=torch.int8) for _ in "ab")
    weight = tk.QuantisedWeight.from_values(b.T.contiguous(), torch.ones(n, 1), group=n)
    library = tk.load("gemm_linear")
    how: Any = {"group": n, "out_dtype": "bf16", "num_threads": threads}
    ours: Calls = {
        "ours": lambda: tk.matmul(a, b, num_threads=threads),
        "packed": lambda: library.flatmm_quant(a, weight.panels, weight.scale, **how),
    }
    timed(f"int8 {n} threads {threads}", 2.0 * n**3, ours | {"torch": lambda: torch._int_mm(a, b)}, seconds)
    onnx = onnxruntime_product(a.numpy(), b.numpy(), threads)
    if onnx is not None:  # alone: its threads wait without sleep for longer than a pause, on the cores of ours
        timed(f"int8 {n} threads {threads}", 2.0 * n**3, {"ONNX Runtime": onnx}, seconds, "ONNX Runtime")
    else:
        print('  ONNX Runtime is not installed: tools/dev --with "torch peers"', flush=True)


def parts(threads: int, seconds: float) -> None:
    for n in SIZES:
        product_in_parts(n, threads, seconds)


def product_in_parts(n: int, threads: int, seconds: float) -> None:
    import tilekiln as tk
    import torch

    a, b = torch.randn(n, n), torch.randn(n, n)

    def by(word: Any) -> Any:
        return tk.matmul(a, b, precision=word, num_threads=threads)

    calls: Calls = {word: functools.partial(by, word) for word in ("bf16x3", "bf16x6", "full")}
    calls["torch"] = lambda: a @ b
    timed(f"fp32 {n} threads {threads}", 2.0 * n**3, calls, seconds)
    if n > SIZES[0]:
        return
    exact, size = a.double() @ b.double(), a.abs().double() @ b.abs().double()
    for word, call in calls.items():
        error = (call().double() - exact) / size
        print(f"  error of {word}: {error.square().mean().sqrt():.1e}, at most {error.abs().max():.1e}", flush=True)


def attention(threads: int, seconds: float, backward: bool = False) -> None:
    for causal in (False, True):
        for d in (64, 128):
            for s in LENGTHS:
                heads = 16 if s <= 2048 else 8
                (gradients if backward else forward)(d, s, heads, causal, threads, seconds)


def forward(d: int, s: int, heads: int, causal: bool, threads: int, seconds: float) -> None:
    import tilekiln as tk
    import torch

    q, k, v = (torch.randn(1, s, heads, d).bfloat16() for _ in "qkv")
    a, b, c = (x.transpose(1, 2) for x in (q, k, v))
    how: Any = {"causal": causal, "num_threads": threads}
    calls: Calls = {
        "ours": lambda: tk.attention(q, k, v, **how),
        "with lse": lambda: tk.attention(q, k, v, return_lse=True, **how),
        "torch": lambda: torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=causal),
    }
    label = f"forward D{d} {s} {'causal' if causal else 'full'} threads {threads}"
    timed(label, 4.0 * s * s * d * heads / (2 if causal else 1), calls, seconds)


def gradients(d: int, s: int, heads: int, causal: bool, threads: int, seconds: float) -> None:
    """The forward with its backward."""
    import tilekiln as tk
    import torch

    q, k, v = (torch.randn(1, s, heads, d).bfloat16().requires_grad_() for _ in "qkv")
    a, b, c = (x.transpose(1, 2) for x in (q, k, v))
    grad = torch.randn(1, s, heads, d).bfloat16()

    def ours() -> Any:
        out = tk.attention(q, k, v, causal=causal, num_threads=threads)
        return torch.autograd.grad(out, (q, k, v), grad)

    def theirs() -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=causal)
        return torch.autograd.grad(out, (q, k, v), grad.transpose(1, 2))

    label = f"forward and backward D{d} {s} {'causal' if causal else 'full'} threads {threads}"
    timed(label, 14.0 * s * s * d * heads / (2 if causal else 1), {"ours": ours, "torch": theirs}, seconds)


def rows(threads: int, seconds: float) -> None:
    import numpy as np
    import tilekiln as tk
    import torch

    from tools.bench.decode import fastest_loop, read

    n, k, count = WEIGHTS
    weights = [tk.PackedWeight(torch.randn(n, k, dtype=torch.bfloat16)) for _ in range(count)]
    data = np.ones(count * n * k * 2, np.uint8)
    loop, pieces = fastest_loop(data[: 1 << 28], 1), np.array_split(data, count * threads)
    turn = [0]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:

        def reading() -> None:
            turn[0] = (turn[0] + 1) % count
            first = turn[0] * threads
            list(pool.map(lambda piece: read(loop, piece), pieces[first : first + threads]))

        for m in (1, 4, 16):
            x = torch.randn(m, k).bfloat16()

            def ours(x: Any = x) -> None:
                turn[0] = (turn[0] + 1) % count
                tk.linear(x, weights[turn[0]], num_threads=threads)

            size = float(n * k * 2)
            timed(f"{m} rows threads {threads}, GB/s", size, {"ours": ours, "read": reading}, seconds, "read")


def main(argv: list[str] | None = None) -> int:
    known = ("build", "tests", *TIMED)
    parser = argparse.ArgumentParser(
        prog="tools/bench amx", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(known)} [all]")
    parser.add_argument("--threads", default="1,8,all", help="[%(default)s]")
    parser.add_argument("--library", metavar="FOLDER", type=pathlib.Path, help="of libraries that were built elsewhere")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a line [%(default)s]")
    given = parser.parse_args(argv)
    if wrong := [one for one in given.parts if one not in known]:
        parser.error(f"PART: was {wrong[0]!r}, must be of {', '.join(known)}")
    if given.library and not list(given.library.glob("libtilekiln_*.so")):
        parser.error(f"--library: was {given.library}, must be a folder with libraries")
    cores = len(os.sched_getaffinity(0))
    words = given.threads.split(",")
    if not all(word == "all" or (word.isdecimal() and int(word) > 0) for word in words):
        parser.error(f"--threads: was {given.threads!r}, must be counts from 1 on or all, as 1,8,all")
    counts = [cores if word == "all" else int(word) for word in words]
    wanted = given.parts or [one for one in known if one != "build" or given.library is None]
    path = given.library or ROOT / "build" / "avx512+avx512bf16+amx-release" / "lib"
    if "build" in wanted:
        command = [sys.executable, "-m", "SCons", f"receipt={RECEIPTS}", f"target={TARGETS}", f"-j{cores}"]
        subprocess.run(command, cwd=ROOT, check=True)
    found = os.environ | {"TILEKILN_PATH": str(path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'python'}"}
    code = 0
    if "tests" in wanted:
        files = [f"tests/python/test_{name}.py" for name in FILES]
        command = [sys.executable, "-m", "pytest", "-q", f"-n{cores}", *files]
        tested = found | {"TILEKILN_TEST_LIBRARIES": str(path)}
        code = subprocess.run(command, cwd=ROOT, env=tested, check=False).returncode
    timings = [one for one in wanted if one in TIMED]
    for threads in dict.fromkeys(counts) if timings else ():  # a process each: pools are made once
        call = f"from tools.bench import amx; amx.time_all({timings!r}, {threads}, {given.seconds})"
        numbers = {"TILEKILN_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, env=found | numbers, check=False)
        code = max(code, done.returncode)
    return code


def time_all(wanted: list[str], threads: int, seconds: float) -> None:
    import tilekiln as tk
    import torch

    from tools.bench.peak import peak

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    loop = f"{peak('tiles') / 1e9:.0f} GF/s" if peak("tiles") else "none"
    isa = tk.load("flash").isa
    print(f"PyTorch {torch.__version__}, {isa}, threads: {threads}; a loop of tile products on one: {loop}", flush=True)
    for name in wanted:
        if name == "backward":
            with torch.enable_grad():
                attention(threads, seconds, backward=True)
        else:
            {"products": products, "parts": parts, "attention": attention, "rows": rows}[name](threads, seconds)
