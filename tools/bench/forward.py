# SPDX-License-Identifier: MIT
"""forward: speed of the attention kernels: share of the core's peak, ratio to torch's SDPA, what features cost.

Arrays are (batch, seqlen, nhead, hdim), what flash_attn and tk.attention take; --layout bhsd takes (batch, nhead,
seqlen, hdim) instead. The column "over bhsd" is the time in the one over that in the other. PyTorch gets transposed
views, as models hand them to it.

One pinned thread. Everything is thread CPU time, measured in turns (A, B, A) in one process; figures are medians of
ratios, so they hold on a machine that others use too, and the share of peak is against bursts at the peak just before
and after. torch is its flash kernel for the CPU, on one thread, on the same tensors; without torch its column is nan.
OpenVINO has one thread and its own layout, (batch, nhead, seqlen, hdim), and is timed by the process. lengths: the
share of the peak over seqlen 64 to 32,768, hdim 64, of as many of 16 heads as a tenth of a second has time for.

    tools/dev --with torch python tools/bench forward [--dtype bf16] [--layout bhsd] [--seconds 0.5] [PART...]
    ... forward speed --dtype fp32,bf16 --plot docs/pictures/forward.svg
    ... forward lengths --dtype fp32,bf16 --plot docs/pictures/lengths.svg
    tools/dev --with "torch jax peers" python tools/bench forward speed
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilekiln._core.dtypes import NAMES, NUMPY, WORDS

from . import peers
from .peak import peak

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECEIPTS = "flash,pytorch,fp32"  # the last two for the bias
DTYPES = ("fp32", "bf16", "fp16")
LEAST_ROUNDS = 5

Call = Callable[[], object]


class Shape(NamedTuple):
    batch: int
    nhead_q: int
    nhead_k: int
    seqlen: int
    hdim: int

    def __str__(self) -> str:
        heads = f"{self.nhead_q}/{self.nhead_k}" if self.nhead_q != self.nhead_k else f"{self.nhead_q}"
        return f"{self.batch}, {heads}, {self.seqlen}, {self.hdim}"

    def flops(self, left: int = -1, right: int = -1) -> float:
        """Two products over the pairs that the window leaves visible."""
        rows = range(self.seqlen)
        first = [max(0, i - left) if left >= 0 else 0 for i in rows]
        end = [min(self.seqlen, i + right + 1) if right >= 0 else self.seqlen for i in rows]
        pairs = sum(e - f for f, e in zip(first, end, strict=True))
        return 4.0 * self.batch * self.nhead_q * self.hdim * pairs


SHAPES = (Shape(1, 16, 16, 512, 64), Shape(1, 16, 16, 1024, 128), Shape(2, 8, 8, 2048, 64), Shape(1, 8, 8, 4096, 128))
GROUPED = Shape(1, 32, 8, 1024, 128)  # causal only, as models use it


class Problem:
    """q, k, v and out of one shape in one layout, torch tensors where torch is installed."""

    def __init__(self, shape: Shape, dtype: str, layout: str = "bshd") -> None:
        self.shape, self.dtype, self.layout = shape, dtype, layout
        b, hq, hk, s, d = shape
        shapes = [(b, s, heads, d) if layout == "bshd" else (b, heads, s, d) for heads in (hq, hk, hk, hq)]
        self.q, self.k, self.v, self.out = (array(one, dtype) for one in shapes)

    def ours(self, **arguments: Any) -> Call:
        import tilekiln as tk

        def call() -> object:
            return tk.attention(self.q, self.k, self.v, out=self.out, layout=self.layout, num_threads=1, **arguments)

        call()  # chooses the kernel; raises what is wrong before anything is timed
        return call

    def openvino(self, causal: bool) -> Call | None:
        if not has_torch():
            return None
        import torch

        made = []
        for x in (self.q, self.k, self.v):
            y = (x.transpose(1, 2) if self.layout == "bshd" else x).contiguous()
            bits = y.view(torch.int16).numpy() if y.element_size() == 2 else y.numpy()
            made.append(bits.view(NUMPY[WORDS[str(y.dtype).removeprefix("torch.")]]))
        return peers.openvino_attention(made[0], made[1], made[2], causal)

    def torch(self, causal: bool) -> Call | None:
        if not has_torch():
            return None
        import torch

        groups = self.shape.nhead_q // self.shape.nhead_k
        heads = 2 if self.layout == "bshd" else 1
        k, v = (x.repeat_interleave(groups, heads) if groups > 1 else x for x in (self.k, self.v))
        q, k, v = (x.transpose(1, 2) if self.layout == "bshd" else x for x in (self.q, k, v))

        def call() -> object:
            with torch.no_grad():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return call


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def array(shape: tuple[int, ...], dtype: str) -> Any:
    import numpy as np

    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    if has_torch():
        import torch

        return torch.from_numpy(x).to(getattr(torch, NAMES[dtype]))

    return x.astype(NUMPY[dtype])


def clock(call: Call, read: Callable[[], float] = time.thread_time) -> float:
    begin = read()
    call()
    return read() - begin


def paired(a: Call, b: Call | None, seconds: float, read: Callable[[], float] = time.thread_time) -> float:
    """Median of (time of b) / (time of a), nan without b. In turns a, b, a."""
    if b is None:
        return math.nan
    ratios = []
    a()
    b()
    begin = time.monotonic()
    while len(ratios) < LEAST_ROUNDS or time.monotonic() - begin < seconds:
        before, other, after = clock(a, read), clock(b, read), clock(a, read)
        ratios.append(2 * other / (before + after))
    return statistics.median(ratios)


def against_peak(a: Call, flops: float, dtype: str, seconds: float) -> tuple[float, float]:
    """Medians of the flop/s of a, and of its share of the peak just before and after: clocks move with the load."""
    rates, shares = [], []
    a()
    begin = time.monotonic()
    while len(rates) < LEAST_ROUNDS or time.monotonic() - begin < seconds:
        before = peak_of(dtype)
        rate = flops / clock(a)
        rates.append(rate)
        shares.append(2 * rate / (before + peak_of(dtype)))
    return statistics.median(rates), statistics.median(shares)


def peak_of(dtype: str) -> float:
    """Peak of the kernel's products: bf16 dot products where the CPU has them, else fp32 FMA. A 0.3 ms burst."""
    return (dtype == "bf16" and peak("bf16", 0.0003)) or peak("fma", 0.0003)


def geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


class Figure(NamedTuple):
    """Of one case: share of the core's peak, and PyTorch's time over ours (nan without it)."""

    dtype: str
    mask: str
    shape: Shape
    share: float
    ratio: float


def speed(options: argparse.Namespace) -> None:
    other = "bhsd" if options.layout == "bshd" else "bshd"
    head = f"{'GF/s':>6} {'of peak':>8} {'torch/ours':>11} {'OpenVINO/ours':>14} {'over ' + other:>10}"
    print(f"{'dtype':5} {'batch, heads, seqlen, hdim':27} {'mask':7} {head}")
    figures = []
    for dtype in options.dtypes:
        for mask in ("full", "causal"):
            for shape in (*SHAPES, *((GROUPED,) if mask == "causal" else ())):
                problem, causal = Problem(shape, dtype, options.layout), mask == "causal"
                ours, flops = problem.ours(causal=causal), shape.flops(right=0 if causal else -1)
                rate, share = against_peak(ours, flops, dtype, options.seconds)
                ratio = paired(ours, problem.torch(causal), options.seconds)
                best = paired(ours, problem.openvino(causal), options.seconds, time.process_time)
                over = 1 / paired(ours, Problem(shape, dtype, other).ours(causal=causal), options.seconds)
                figures.append(Figure(dtype, mask, shape, share, ratio))
                said = f"{rate / 1e9:6.0f} {share:8.1%} {ratio:11.2f} {best:14.2f} {over:10.2f}"
                print(f"{dtype:5} {shape!s:27} {mask:7} {said}", flush=True)
        for mask in ("full", "causal"):
            values = [one.ratio for one in figures if (one.dtype, one.mask) == (dtype, mask)]
            print(f"{dtype:5} {'geomean':27} {mask:7} {'':6} {'':8} {geomean(values):11.2f}")
    if options.plot:
        from .picture import bars

        bars(options.plot, figures)


def lengths(options: argparse.Namespace) -> None:
    """Share of the peak over seqlen, in the layout asked for: views of the first of 16 heads, so strides stay."""
    print(f"\n{'dtype':5} {'mask':7} {'seqlen':>7} {'heads':>6} {'GF/s':>6} {'of peak':>8}")
    points = []
    for dtype in options.dtypes:
        for mask in ("full", "causal"):
            for seqlen in (64 << i for i in range(10)):
                heads = min(16, max(1, (1 << 25) // seqlen**2))
                problem = Problem(Shape(1, 16, 16, seqlen, 64), dtype, options.layout)
                some = (
                    (slice(None), slice(None), slice(heads))
                    if options.layout == "bshd"
                    else (slice(None), slice(heads))
                )
                problem.q, problem.k, problem.v, problem.out = (
                    x[some] for x in (problem.q, problem.k, problem.v, problem.out)
                )
                flops = Shape(1, heads, heads, seqlen, 64).flops(right=0 if mask == "causal" else -1)
                rate, share = against_peak(problem.ours(causal=mask == "causal"), flops, dtype, options.seconds)
                points.append((dtype, mask, seqlen, share))
                print(f"{dtype:5} {mask:7} {seqlen:7} {heads:6} {rate / 1e9:6.0f} {share:8.1%}", flush=True)
    if options.plot:
        from .picture import shares

        shares(options.plot, points)


def features(options: argparse.Namespace) -> None:
    """Time over that of the plain kernel on the same problem; windows and lengths: per visible pair."""
    import numpy as np

    names = "lse softcap alibi bias dropout".split()
    columns = [*names, "causal", "(256, 0)", "(64, 64)", "S = 77"]
    print("\ntime over the plain kernel's, S = 1024; the last four per visible pair")
    print(f"{'dtype':5} {'hdim':>4}", *(f"{column:>9}" for column in columns))
    seconds = options.seconds
    for dtype in options.dtypes:
        for hdim in (64, 128):
            problem = Problem(Shape(1, 4, 4, 1024, hdim), dtype, options.layout)
            full = problem.ours()
            slopes = np.full(4, 0.1, np.float32)
            given: dict[str, dict[str, Any]] = {
                "lse": {"return_lse": True},
                "softcap": {"softcap": 30.0},
                "alibi": {"alibi_slopes": torch_of(slopes)},
                "bias": {"bias": array((1, 4, 1024, 1024), dtype)},
                "dropout": {"dropout_p": 0.2, "rng": (1, 0)},
            }
            costs = [paired(full, problem.ours(**given[name]), seconds) for name in names]
            flops = problem.shape.flops()
            for left, right in ((-1, 0), (256, 0), (64, 64)):
                seen = problem.shape.flops(left, right)
                costs.append(per_pair(full, flops, problem.ours(window=(left, right)), seen, seconds))
            short = Problem(Shape(1, 16, 16, 77, hdim), dtype, options.layout)
            costs.append(per_pair(full, flops, short.ours(), short.shape.flops(), seconds))
            print(f"{dtype:5} {hdim:4}", *(f"{cost:9.2f}" for cost in costs), flush=True)


def per_pair(a: Call, a_flops: float, b: Call, b_flops: float, seconds: float) -> float:
    """Time of b over that of a, per flop. b is repeated to last as long as a, so that neither finds cold caches."""
    times = max(1, round(a_flops / b_flops))

    def repeated() -> None:
        for _ in range(times):
            b()

    return paired(a, repeated, seconds) * a_flops / (times * b_flops)


def torch_of(x: Any) -> Any:
    if not has_torch():
        return x
    import torch

    return torch.from_numpy(x)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench forward", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="speed, features, lengths; all when none is named")
    parser.add_argument("--dtype", default=",".join(DTYPES), help="one or several, separated by commas")
    parser.add_argument("--layout", choices=("bshd", "bhsd"), default="bshd", help="of arrays (default: bshd)")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time for each figure")
    parser.add_argument(
        "--plot", metavar="FILE", help="of one PART, speed or lengths: a .svg or .png (needs matplotlib)"
    )
    arguments = parser.parse_args(argv)
    parts: dict[str, Callable[[argparse.Namespace], None]] = {"speed": speed, "features": features, "lengths": lengths}
    arguments.dtypes = arguments.dtype.split(",")
    for given, known in ((arguments.parts, list(parts)), (arguments.dtypes, list(DTYPES))):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{unknown[0]!r} is none of {', '.join(known)}")

    if arguments.plot and arguments.parts not in (["speed"], ["lengths"]):
        parser.error(
            f"--plot: PART was {' '.join(arguments.parts) or 'all'}, must be speed or lengths: one picture a file"
        )
    command = [sys.executable, "-m", "SCons", "-Q", f"receipt={RECEIPTS}", "target=native"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if has_torch():
        import torch

        torch.set_num_threads(1)
    import tilekiln as tk

    peaks = ", ".join(f"{kind} {peak(kind) / 1e9:.0f} GF/s" for kind in ("fma", "bf16"))
    isas = ", ".join(dict.fromkeys(library.isa for library in tk.libraries() if library.receipt in RECEIPTS.split(",")))
    print(f"{isas}, one thread; peak: {peaks}")
    for name in arguments.parts or parts:
        parts[name](arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
