# SPDX-License-Identifier: MIT
"""backward: forward and backward beside torch SDPA, share of peak, threads, what deterministic costs, worker balance.

Shapes are batch, nhead, seqlen, hdim; arrays are (batch, seqlen, nhead, hdim), of which torch gets transposed views,
or with --layout bhsd (batch, nhead, seqlen, hdim). One process, one pinned thread, thread CPU time; ours, torch, ours
in turn; a ratio is that of torch to the mean of ours around it, medians of rounds. Two threads: CPU time of this
thread and of the rest of the process, beside what two threads cost that share no work. Flops: 2 per multiplication
and addition, 2 products forward and 5 backward; half when causal.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SHAPES = ((1, 16, 512, 64), (1, 16, 1024, 128), (2, 8, 2048, 64), (1, 8, 4096, 128))
SHORT = SHAPES[:2]  # for fp16, in which torch runs at a tenth of our speed
DTYPES = ("fp32", "bf16", "fp16")
UNEVEN = {
    "one long among short": ([4096] + [128] * 31, 8),
    "falling": ([4096, 3072, 2048, 1024], 8),
    "powers of two": ([8192, 4096, 2048, 1024, 512, 256, 128, 64], 4),
    "two very long": ([6000, 5000, 40, 30, 20, 10], 2),
    "one head": ([5000, 300, 300], 1),
}
BALANCED = (2, 4, 7)  # threads
TURN = 0.4  # seconds of one thread that two threads are compared over
PARTS = ("speed", "peak", "threads", "deterministic", "balance")


def flops(shape: tuple[int, ...], causal: bool, products: int) -> float:
    batch, nhead, seqlen, hdim = shape
    return 2.0 * products * batch * nhead * seqlen * seqlen * hdim / (2 if causal else 1)


def timed(function: Callable[[], Any]) -> float:
    """Thread CPU time of one call, in seconds."""
    begin = time.thread_time_ns()
    function()
    return (time.thread_time_ns() - begin) / 1e9


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


class Case:
    """One shape, dtype and mask: our calls and torch's on the same tensors, in the layout."""

    def __init__(self, dtype: str, shape: tuple[int, ...], causal: bool, layout: str) -> None:
        import tilekiln as tk
        import torch
        from tilekiln._core.dtypes import TORCH

        generator = torch.Generator().manual_seed(0)
        if layout == "bshd":
            shape = (shape[0], shape[2], shape[1], shape[3])
        self.inputs = [torch.randn(shape, generator=generator).to(TORCH[dtype]) for _ in range(3)]
        self.dout = torch.randn(shape, generator=generator).to(TORCH[dtype])
        self.leaves = [array.clone().requires_grad_() for array in self.inputs]
        self.options: dict[str, Any] = {"causal": causal, "layout": layout}
        self.causal = causal
        self.tk, self.torch = tk, torch
        self.library = tk.load("flash")
        self.out, self.lse = self.library.fmha_fwd(*self.inputs, **self.options, return_lse=True)
        self.gradients = [torch.empty_like(array) for array in self.inputs]

    def ours(self) -> None:
        """Forward and backward through autograd, as torch's users would call it."""
        out = self.tk.attention(*self.leaves, **self.options, num_threads=1)
        self.torch.autograd.grad(out, self.leaves, self.dout)

    def torchs(self) -> None:
        attention = self.torch.nn.functional.scaled_dot_product_attention
        inside = self.options["layout"] == "bshd"
        arrays = [x.transpose(1, 2) for x in self.leaves] if inside else self.leaves
        out = attention(*arrays, is_causal=self.causal)
        self.torch.autograd.grad(out, self.leaves, self.dout.transpose(1, 2) if inside else self.dout)

    def backward(self, **options: Any) -> None:
        """Our backward alone, into arrays of its own."""
        dq, dk, dv = self.gradients
        self.library.fmha_bwd(
            self.dout, *self.inputs, self.out, self.lse, dq=dq, dk=dk, dv=dv, **self.options, **options
        )


def cases(arguments: argparse.Namespace) -> Iterable[tuple[str, tuple[int, ...], bool, Case]]:
    for dtype in arguments.dtype:
        for shape in SHORT if dtype == "fp16" or arguments.short else SHAPES:
            for causal in (False, True):
                yield dtype, shape, causal, Case(dtype, shape, causal, arguments.layout)


def label(dtype: str, shape: tuple[int, ...], causal: bool) -> str:
    return f"{dtype} {','.join(map(str, shape))}{' causal' if causal else ''}"


def speed(arguments: argparse.Namespace) -> None:
    """Forward and backward against torch SDPA."""
    print(f"forward and backward, one thread{'':12} ours ms  torch ms   torch/ours   p10   p90  Gflop/s")
    ratios: dict[tuple[str, bool], list[float]] = {}
    for dtype, shape, causal, case in cases(arguments):
        case.ours(), case.torchs()
        ours, torchs, ratio = [timed(case.ours)], [], []
        for _ in range(arguments.rounds):
            torchs.append(timed(case.torchs))
            ours.append(timed(case.ours))
            ratio.append(2 * torchs[-1] / (ours[-1] + ours[-2]))
        low, high = min(ratio), max(ratio)
        if len(ratio) > 4:
            low, high = (statistics.quantiles(ratio, n=10)[i] for i in (0, -1))
        middle = statistics.median(ratio)
        ratios.setdefault((dtype, causal), []).append(middle)
        case_time = statistics.median(ours)
        print(
            f"{label(dtype, shape, causal):40} {case_time * 1e3:10.1f} {statistics.median(torchs) * 1e3:9.1f} "
            f"{middle:12.2f} {low:5.2f} {high:5.2f} {flops(shape, causal, 7) / case_time / 1e9:8.1f}",
            flush=True,
        )
    for (dtype, causal), values in ratios.items():
        print(f"geomean {dtype} {'causal' if causal else 'full'}: {geomean(values):.2f}")


def peak(arguments: argparse.Namespace) -> None:
    """The backward alone, as a share of the peak of this core measured around it."""
    from tools.bench.peak import peak as measured

    print(f"backward alone, one thread{'':18} ms  Gflop/s   of peak")
    for dtype, shape, causal, case in cases(arguments):
        kind = "bf16" if dtype == "bf16" and measured("bf16", 0.01) else "fma"
        case.backward(num_threads=1)
        samples = []
        for _ in range(arguments.rounds):
            before = measured(kind, 0.01)
            seconds = timed(functools.partial(case.backward, num_threads=1))
            rate = flops(shape, causal, 5) / seconds
            samples.append((rate / max(before, measured(kind, 0.01)), seconds, rate))
        share, seconds, rate = (statistics.median(values) for values in zip(*samples, strict=True))
        print(
            f"{label(dtype, shape, causal):40} {seconds * 1e3:8.1f} {rate / 1e9:8.1f} {share * 100:8.0f} %", flush=True
        )


def used(function: Callable[[], Any], calls: int) -> tuple[float, float]:
    """CPU time of some calls in this thread, and in the other one."""
    own, process = time.thread_time_ns(), time.process_time_ns()
    for _ in range(calls):
        function()
    own = time.thread_time_ns() - own
    return own / 1e9, (time.process_time_ns() - process - own) / 1e9


@contextlib.contextmanager
def beside(function: Callable[[], Any]) -> Iterator[None]:
    """Another thread calls `function`, over and over."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            function()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def threads(arguments: argparse.Namespace) -> None:
    """cost: CPU time of two threads over that of one. gain: that of one over the busiest of two.

    beside: CPU time of one thread while another makes the same calls on data of its own, over that of one alone: what
    sharing caches and memory costs here without any sharing of work. Turns are of equal length, so that threads that
    other work keeps off their core meet often.
    """
    os.sched_setaffinity(0, arguments.cores)
    heads = f"{'cost':>7} {'gain':>7}"
    print(f"two threads against one{'':25} {heads}   deterministic: {heads} {'beside':>8} {'load':>6}")
    for dtype, shape, causal, case in cases(arguments):
        other = Case(dtype, shape, causal, arguments.layout)
        run = functools.partial(case.backward, num_threads=1)
        run()
        calls = max(1, round(TURN / max(timed(run), 1e-6)))
        figures = []
        for mode in (False, True):
            run = functools.partial(case.backward, deterministic=mode)
            run(num_threads=2)
            costs, gains, sides = [], [], []
            for _ in range(arguments.rounds):
                one = sum(used(functools.partial(run, num_threads=1), calls))
                two = used(functools.partial(run, num_threads=2), calls)
                costs.append(sum(two) / one)
                gains.append(one / max(two))
                if not mode:
                    with beside(functools.partial(other.backward, num_threads=1)):
                        sides.append(used(functools.partial(run, num_threads=1), calls)[0] / one)
            figures += [statistics.median(values) for values in (costs, gains, sides) if values]
        cost, gain, side, cost_d, gain_d = figures
        print(
            f"{label(dtype, shape, causal):48} {cost:7.3f} {gain:7.3f} {'':16}{cost_d:7.3f} {gain_d:7.3f} {side:8.3f} "
            f"{os.getloadavg()[0]:6.1f}",
            flush=True,
        )


def deterministic(arguments: argparse.Namespace) -> None:
    """Cost of the deterministic sum: its time over that of the other mode, one thread."""
    print(f"deterministic against not, one thread{'':8} time ratio")
    values = []
    for dtype, shape, causal, case in cases(arguments):
        ratios = []
        case.backward(num_threads=1, deterministic=True)
        plain = timed(functools.partial(case.backward, num_threads=1))
        for _ in range(arguments.rounds):
            ours = timed(functools.partial(case.backward, num_threads=1, deterministic=True))
            after = timed(functools.partial(case.backward, num_threads=1))
            ratios.append(2 * ours / (plain + after))
            plain = after
        values.append(statistics.median(ratios))
        print(f"{label(dtype, shape, causal):48} {values[-1]:7.3f}", flush=True)
    print(f"geomean: {geomean(values):.3f}")


def balance(arguments: argparse.Namespace) -> None:
    """The busiest over the mean, in visible (query, key) pairs: logical workers, and threads that claim them."""
    import tilekiln as tk

    heads = "".join(f"{f'{count} threads':>11} {'plain':>6}" for count in BALANCED)
    print(f"worker balance, hdim 128, group{'':13} workers   them {heads}")
    for name, (lengths, nhead) in UNEVEN.items():
        starts = [0, *itertools.accumulate(lengths)]
        for causal, deterministic in itertools.product((False, True), (False, True)):
            plans = [
                tk.plan_backward_workspace(
                    seqstart_q=starts, seqstart_k=starts, nhead_q=nhead, hdim_q=128, causal=causal, threads=count,
                    deterministic=deterministic,
                )
                for count in BALANCED
            ]  # fmt: skip
            workers = f"{plans[0].workers:7} {plans[0].worker_balance:6.3f}" if deterministic else f"{'-':>7} {'':6}"
            case = f"{name}, {nhead} heads{', causal' if causal else ''}"
            figures = "".join(f"{plan.thread_balance:11.3f} {plan.plain_balance:6.3f}" for plan in plans)
            print(f"{case:44} {workers} {figures}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench backward", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], default=[], help=f"of {', '.join(PARTS)}; default all"
    )
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default all")
    parser.add_argument("--layout", choices=("bshd", "bhsd"), default="bshd", help="of arrays (default: bshd)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="only the shapes up to seqlen 1024")
    arguments = parser.parse_args(argv)
    arguments.dtype = arguments.dtype or DTYPES
    import tilekiln as tk
    import torch

    torch.set_num_threads(1)
    arguments.cores = os.sched_getaffinity(0)
    print(f"{tk.load('flash')!r}, torch {torch.__version__}")
    for part in arguments.parts or PARTS:
        os.sched_setaffinity(0, {max(arguments.cores)})
        globals()[part](arguments)
        print(flush=True)
    return 0
