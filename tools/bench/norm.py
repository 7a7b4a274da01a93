# SPDX-License-Identifier: MIT
"""norm: row-wise operators in GB/s beside a copy of the same place, PyTorch eager and torch.compile, one core.

GB/s of the bytes that must move: inputs once, results once. Each round times ours, a copy of x, and each peer in
turn, in one process, by thread CPU time, pinned; medians of the ratios are shown. The peers compute what their users
write: the models' own formulas (Transformers' for rmsnorm2d), one operation after another. Wants norm_default built for
this machine. Each line ends with the bars of its row: "met", or what it is short of. --threads 2 shows instead the wall
time of one thread over that of two, whose bar is 1.8 where the arrays lie in caches.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tilekiln as tk
import torch
from tilekiln._core.dtypes import TORCH
from torch import Tensor

Call = Callable[[], Any]
DTYPES = {word: TORCH[word] for word in ("fp32", "fp16", "bf16")}


class Bar(NamedTuple):
    """Bar of a row: times a peer's speed, and the share of a copy's rate where both lie in caches."""

    eager: float = 0.0
    compile: float = 0.0
    copy: float = 0.0


class Case(NamedTuple):
    ours: Call
    peer: Callable[..., Any]  # of these tensors; torch.compile takes it too
    tensors: tuple[Tensor, ...]
    results: tuple[Tensor, ...]  # ours, written into


def _hf_rms(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Transformers' LlamaRMSNorm."""
    wide = x.float()
    return gamma * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def _rms(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    y = torch.empty_like(x)
    return Case(lambda: library.rmsnorm2d(x, gamma, y=y, num_threads=threads), _hf_rms, (x, gamma), (y,))


def _add_rms(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    residual, y, total = torch.randn_like(x), torch.empty_like(x), torch.empty_like(x)

    def peer(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        both = x + residual
        return _hf_rms(both, gamma), both

    def ours() -> None:
        library.rmsnorm2d(x, gamma, y=y, residual=residual, residual_out=total, num_threads=threads)

    return Case(ours, peer, (x, residual, gamma), (y, total))


def _layer(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    beta, y = torch.randn_like(gamma), torch.empty_like(x)

    def peer(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta)

    return Case(lambda: library.layernorm2d(x, gamma, beta, y=y, num_threads=threads), peer, (x, gamma, beta), (y,))


def _add_layer(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    beta, residual, y, total = torch.randn_like(gamma), torch.randn_like(x), torch.empty_like(x), torch.empty_like(x)

    def peer(x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        both = x + residual
        return torch.nn.functional.layer_norm(both, gamma.shape, gamma, beta), both

    def ours() -> None:
        library.layernorm2d(x, gamma, beta, y=y, residual=residual, residual_out=total, num_threads=threads)

    return Case(ours, peer, (x, residual, gamma, beta), (y, total))


def _quantised(v: Tensor) -> tuple[Tensor, Tensor]:
    scale = v.abs().amax(-1, keepdim=True).float() / 127
    return torch.round(v.float() / scale).to(torch.int8), scale


def _add_rms_quant(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    residual, total = torch.randn_like(x), torch.empty_like(x)
    y, scale = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])

    def peer(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
        both = x + residual
        return both, *_quantised(_hf_rms(both, gamma))

    def ours() -> None:
        library.rmsnorm2d_rdquant(
            x, gamma, y=y, y_scale=scale, residual=residual, residual_out=total, num_threads=threads
        )

    return Case(ours, peer, (x, residual, gamma), (y, scale, total))


def _smooth(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    factors, y, scale = gamma.float(), torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])

    def peer(x: Tensor, factors: Tensor) -> tuple[Tensor, ...]:
        return _quantised(x * factors)

    def ours() -> None:
        library.smoothquant(x, factors, y=y, y_scale=scale, num_threads=threads)

    return Case(ours, peer, (x, factors), (y, scale))


def _softmax(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    y = torch.empty_like(x)
    return Case(lambda: library.softmax(x, y=y, num_threads=threads), lambda x: torch.softmax(x, -1), (x,), (y,))


def _gradients(norm: Callable[..., Tensor], dy: Tensor, x: Tensor, *parameters: Tensor) -> Callable[..., Any]:
    """Autograd's, of what its forward has kept."""
    leaves = [one.clone().requires_grad_() for one in (x, *parameters)]
    y = norm(leaves[0], parameters[0].shape, *leaves[1:])
    return lambda *_: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def _rms_backward(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    dy, dx, dgamma = torch.randn_like(x), torch.empty_like(x), torch.empty_like(gamma)
    _, inverse = library.rmsnorm2d(x, gamma, return_inv_rms=True)

    peer = _gradients(torch.nn.functional.rms_norm, dy, x, gamma)

    def ours() -> None:
        library.rmsnorm2d_bwd(dy, x, gamma, inverse, dx=dx, dgamma=dgamma, num_threads=threads)

    return Case(ours, peer, (dy, x, gamma, inverse), (dx, dgamma))


def _layer_backward(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    dy, dx = torch.randn_like(x), torch.empty_like(x)
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
    _, mean, inverse = library.layernorm2d(x, gamma, None, return_mean=True, return_inv_std=True)

    peer = _gradients(torch.nn.functional.layer_norm, dy, x, gamma, torch.zeros_like(gamma))

    def ours() -> None:
        library.layernorm2d_bwd(dy, x, gamma, mean, inverse, dx=dx, dgamma=dgamma, dbeta=dbeta, num_threads=threads)

    return Case(ours, peer, (dy, x, gamma, mean, inverse), (dx, dgamma, dbeta))


def _gate(library: tk.Library, x: Tensor, gamma: Tensor, threads: int, gelu: str = "") -> Case:
    up, y = torch.randn_like(x), torch.empty_like(x)

    def peer(gate: Tensor, up: Tensor) -> Tensor:
        own = torch.nn.functional
        return (own.gelu(gate, approximate=gelu) if gelu else own.silu(gate)) * up

    call, how = (library.gelu_and_mul, {"approximate": gelu}) if gelu else (library.silu_and_mul, {})
    return Case(lambda: call(x, up, y=y, num_threads=threads, **how), peer, (x, up), (y,))


def _groups(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    image, y, groups = x[None], torch.empty_like(x)[None], 1 if x.shape[0] % 32 else 32  # rows are channels
    factors = torch.randn(2, x.shape[0], dtype=x.dtype)

    def peer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.silu(torch.nn.functional.group_norm(x, groups, weight, bias))

    def ours() -> None:
        library.group_norm(image, *factors, y=y, groups=groups, activation="silu", num_threads=threads)

    return Case(ours, peer, (image, *factors), (y,))


def _gate_backward(library: tk.Library, x: Tensor, gamma: Tensor, threads: int) -> Case:
    up, dy, dgate, dup = (torch.randn_like(x) for _ in range(4))

    def peer(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.silu_backward(dy * up, gate), dy * torch.nn.functional.silu(gate)

    def ours() -> None:
        library.silu_and_mul_bwd(dy, x, up, dgate=dgate, dup=dup, num_threads=threads)

    return Case(ours, peer, (dy, x, up), (dgate, dup))


CASES: dict[str, Callable[[tk.Library, Tensor, Tensor, int], Case]] = {
    "rmsnorm2d": _rms,
    "add_rmsnorm2d": _add_rms,
    "layernorm2d": _layer,
    "add_layernorm2d": _add_layer,
    "add_rms_rdquant": _add_rms_quant,
    "smoothquant": _smooth,
    "softmax": _softmax,
    "rmsnorm2d_bwd": _rms_backward,
    "layernorm2d_bwd": _layer_backward,
    "silu_and_mul": _gate,
    "silu_and_mul_bwd": _gate_backward,
    "gelu_and_mul": functools.partial(_gate, gelu="none"),
    "gelu_tanh_and_mul": functools.partial(_gate, gelu="tanh"),
    "group_norm_silu": _groups,
}


BARS = {
    "bf16": {
        "rmsnorm2d": Bar(8, 1.6, 0.6),
        "layernorm2d": Bar(2, 1.6, 0.6),
        "add_layernorm2d": Bar(2, 1.6),
        "add_rms_rdquant": Bar(8, 2.5),
        "smoothquant": Bar(0, 2.5),
        "softmax": Bar(2.3),
        "silu_and_mul": Bar(2.2),
        "gelu_and_mul": Bar(1),
        "gelu_tanh_and_mul": Bar(1),
    },
    "fp32": {
        "rmsnorm2d": Bar(2.9),
        "layernorm2d": Bar(1.25),
        "add_rms_rdquant": Bar(4, 2),
        "smoothquant": Bar(4, 2),
        "softmax": Bar(1.5),
    },
}
TWO_THREADS = 1.8
IN_CACHES = 24 << 20  # bytes of x and y


def _once(call: Call, clock: Callable[[], float], least: float) -> float:
    """Seconds of one call, over as many as take `least`. The clock is read around them all: it takes 0.3 us itself."""
    count = 1
    while True:
        start = clock()
        for _ in range(count):
            call()
        spent = clock() - start
        if spent >= least / 2:
            return spent / count
        count = max(2 * count, int(count * least / max(spent, least / 1000)))


def _keep_pages() -> None:
    """Freed memory stays in the process, so that no peer pays for page faults of its results (glibc)."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((-1, 2**31 - 1), (-2, 2**29), (-4, 0)):  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX
        libc.mallopt(parameter, value)


class Measured(NamedTuple):
    """Of one case: ours, seconds and GB/s; a copy's GB/s; and by name what is asked of it and reached."""

    seconds: float
    rate: float
    copy: float
    peers: dict[str, float]  # GB/s
    reached: dict[str, float]  # a peer's time over ours; copy: the share of a copy's rate
    asked: dict[str, float]

    def short(self) -> list[str]:
        return [name for name, least in self.asked.items() if self.reached[name] < least]


def measure(case: Case, compiled: bool, repeat: int, bar: Bar) -> Measured:
    """On one core."""
    x = case.tensors[0]
    to = torch.empty_like(x)
    calls: dict[str, Call] = {"ours": case.ours, "copy": lambda: to.copy_(x)}
    calls["eager"] = lambda: case.peer(*case.tensors)
    if compiled:
        torch._dynamo.reset()
        fused = torch.compile(case.peer, dynamic=False)
        calls["compile"] = lambda: fused(*case.tensors)
    moved = sum(one.numel() * one.element_size() for one in (*case.tensors, *case.results))
    copied = 2 * x.numel() * x.element_size()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for call in calls.values():
            call()
        for _ in range(repeat):
            for name, call in calls.items():
                samples[name].append(_once(call, time.thread_time, 0.01))
    spent = {name: statistics.median(all_) for name, all_ in samples.items()}

    def times(name: str) -> float:
        return statistics.median(b / a for a, b in zip(samples["ours"], samples[name], strict=True))

    # Kernel and copy move bytes of their own.
    reached = {
        "copy": times("copy") * moved / copied,
        **{name: times(name) for name in ("eager", "compile") if name in spent},
    }
    many_rows = x.dim() > 1 and x.shape[0] > 1
    met = {name: least for name, least in bar._asdict().items() if least and name in reached}
    if not many_rows or copied > IN_CACHES:
        met.pop("copy", None)
    rates = {name: moved / one / 1e9 for name, one in spent.items()}
    peers = {name: rates[name] for name in ("eager", "compile") if name in rates}
    return Measured(spent["ours"], rates["ours"], copied / spent["copy"] / 1e9, peers, reached, met)


def _row(case: Case, compiled: bool, repeat: int, bar: Bar) -> str:
    of = measure(case, compiled, repeat, bar)
    text = f"{of.rate:6.1f} GB/s, {of.seconds * 1e6:9.1f} us; copy {of.copy:6.1f} ({of.reached['copy']:4.2f})"
    for name, rate in of.peers.items():
        text += f"; {name} {rate:5.1f} ({of.reached[name]:5.2f}x)"
    if of.asked:
        short = [f"{of.asked[name]:g} {name}" for name in of.short()]
        text += f"; SHORT of {', '.join(short)}" if short else "; met"
    return text


def line(make: Callable[[int], Case], threads: int, compiled: bool, repeat: int, bar: Bar) -> str:
    """The output line of a case that make(threads) makes."""
    if threads == 1:
        return _row(make(1), compiled, repeat, bar)
    return _scaled(make(1), make(threads), repeat)


def start(threads: int) -> tk.Library:
    """The library; one thread for PyTorch, and one core for a measurement of one thread."""
    _keep_pages()
    torch.set_num_threads(1)
    if threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    library = tk.load("norm_default")
    print(f"{library.isa}; in brackets: our share of a copy's rate, and a peer's time over ours")
    return library


def scaling(one: Case, more: Case, repeat: int) -> tuple[list[float], float]:
    """By round: the wall time of one thread over that of several; and the seconds of one.

    Rounds in which another process took a core of ours are left out, unless they are the most of four times `repeat`.
    """
    rounds: list[tuple[float, float]] = []
    undisturbed: list[tuple[float, float]] = []
    for call in (one.ours, more.ours):
        call()
    while len(undisturbed) < repeat and len(rounds) < 4 * repeat:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        spent = _once(one.ours, time.perf_counter, 0.01)
        rounds.append((spent / _once(more.ours, time.perf_counter, 0.01), spent))
        if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before <= 1:
            undisturbed.append(rounds[-1])
    ratios, spans = zip(*(undisturbed if 2 * len(undisturbed) >= repeat else rounds), strict=True)
    return list(ratios), statistics.median(spans)


def in_caches(case: Case) -> bool:
    return sum(array.numel() * array.element_size() for array in (*case.tensors, *case.results)) <= IN_CACHES


def _scaled(one: Case, more: Case, repeat: int) -> str:
    ratios, spent = scaling(one, more, repeat)
    met = statistics.median(ratios) >= TWO_THREADS
    reached = f"; {'met' if met else f'SHORT of {TWO_THREADS}'}" if in_caches(one) else ""
    return f"{statistics.median(ratios):4.2f}x, best {max(ratios):4.2f}x; {spent * 1e6:9.1f} us in one{reached}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench norm", description=__doc__)
    parser.add_argument("--operators", default=",".join(CASES), help="[%(default)s]")
    parser.add_argument("--sizes", default="1x4096,64x8192,1024x4096,8192x4096", help="rows x columns [%(default)s]")
    parser.add_argument("--dtypes", default="bf16,fp32", help="[%(default)s]; fp16 too")
    parser.add_argument("--repeat", type=int, default=9, help="rounds [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes seconds a row")
    given = parser.parse_args(argv)
    for name, values, known in (("--operators", given.operators, CASES), ("--dtypes", given.dtypes, DTYPES)):
        for value in values.split(","):
            if value not in known:
                parser.error(f"{name}: was {value!r}, must be of {', '.join(known)}")
    library = start(given.threads)
    for dtype in given.dtypes.split(","):
        for size in given.sizes.split(","):
            rows, columns = (int(part) for part in size.split("x"))
            x, gamma = torch.randn(rows, columns).to(DTYPES[dtype]), torch.randn(columns).to(DTYPES[dtype])
            for name in given.operators.split(","):
                make = functools.partial(CASES[name], library, x, gamma)
                bar = BARS.get(dtype, {}).get(name, Bar())
                text = line(make, given.threads, not given.no_compile, given.repeat, bar)
                print(f"{dtype} {size:>10} {name:15}: {text}", flush=True)
    return 0
