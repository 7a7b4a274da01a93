# SPDX-License-Identifier: MIT
"""flash_attn.utils.benchmark: timings of a function and its gradient by torch.utils.benchmark and the profiler.

autocast is that of the device of the first tensor, and so are the profiler's activities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import benchmark

from ..._modules import FaceArgumentError

__all__ = [
    "benchmark_all",
    "benchmark_backward",
    "benchmark_combined",
    "benchmark_forward",
    "benchmark_fwd_bwd",
    "benchmark_memory",
    "pytorch_profiler",
]


def _device(inputs: tuple[Any, ...]) -> str:
    return next((one.device.type for one in inputs if isinstance(one, Tensor)), "cpu")


def _first(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) else made


def _gradient(made: Tensor, grad: Tensor | None) -> Tensor:
    if grad is None:
        return torch.randn_like(made)
    if grad.shape != made.shape:
        raise FaceArgumentError(f"grad: shape was {tuple(grad.shape)}, must be {tuple(made.shape)}, that of the result")
    return grad


def _clear(inputs: tuple[Any, ...]) -> None:
    for one in inputs:
        if isinstance(one, Tensor):
            one.grad = None


def _timed(call: Callable[[], Any], repeats: int, title: str, verbose: bool) -> tuple[Any, Any]:
    """(Timer, Measurement)."""
    if verbose:
        print(title)
    timer = benchmark.Timer(stmt="call()", globals={"call": call}, num_threads=torch.get_num_threads())
    measured = timer.timeit(repeats)
    if verbose:
        print(measured)
    return timer, measured


def benchmark_forward(
    fn: Callable[..., Any],
    *inputs: Any,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> tuple[Any, Any]:
    """(Timer, Measurement) of fn(*inputs, **kwinputs); verbose: print desc and the measurement. amp: under autocast."""

    def call() -> Any:
        with torch.autocast(_device(inputs), amp_dtype, amp):
            return fn(*inputs, **kwinputs)

    return _timed(call, repeats, f"{desc} - Forward pass", verbose)


def benchmark_backward(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: Tensor | None = None,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> tuple[Any, Any]:
    """The same of the backward alone, of the first result and of grad, random unless given."""
    with torch.autocast(_device(inputs), amp_dtype, amp):
        made = _first(fn(*inputs, **kwinputs))
    grad = _gradient(made, grad)

    def call() -> None:
        _clear(inputs)
        made.backward(grad, retain_graph=True)

    return _timed(call, repeats, f"{desc} - Backward pass", verbose)


def benchmark_combined(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: Tensor | None = None,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> tuple[Any, Any]:
    """The same of both in one measurement."""

    def forward() -> Tensor:
        with torch.autocast(_device(inputs), amp_dtype, amp):
            made: Tensor = _first(fn(*inputs, **kwinputs))
        return made

    grad = _gradient(forward(), grad)

    def call() -> None:
        _clear(inputs)
        forward().backward(grad, retain_graph=True)

    return _timed(call, repeats, f"{desc} - Forward + Backward pass", verbose)


def benchmark_fwd_bwd(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: Tensor | None = None,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> tuple[Any, Any]:
    """(benchmark_forward's, benchmark_backward's)."""
    how: dict[str, Any] = {"repeats": repeats, "desc": desc, "verbose": verbose, "amp": amp, "amp_dtype": amp_dtype}
    how |= kwinputs
    return benchmark_forward(fn, *inputs, **how), benchmark_backward(fn, *inputs, grad=grad, **how)


def benchmark_all(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: Tensor | None = None,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> tuple[Any, Any, Any]:
    """(benchmark_forward's, benchmark_backward's, benchmark_combined's)."""
    how: dict[str, Any] = {"repeats": repeats, "desc": desc, "verbose": verbose, "amp": amp, "amp_dtype": amp_dtype}
    how |= {"grad": grad} | kwinputs
    return *benchmark_fwd_bwd(fn, *inputs, **how), benchmark_combined(fn, *inputs, **how)


def pytorch_profiler(
    fn: Callable[..., Any],
    *inputs: Any,
    trace_filename: str | None = None,
    backward: bool = False,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    cpu: bool = False,
    verbose: bool = True,
    **kwinputs: Any,
) -> None:
    """Profile one call after 30 others; verbose: print the table. trace_filename: where to write Chrome's trace.

    cpu: the CPU's activities too, which are the only ones where the tensors are its own.
    """
    device = _device(inputs)

    def call() -> None:
        _clear(inputs)
        with torch.autocast(device, amp_dtype, amp):
            made = _first(fn(*inputs, **kwinputs))
        if backward:
            made.backward(torch.ones_like(made))

    for _ in range(30):
        call()
    kinds = torch.profiler.ProfilerActivity
    activities = [*([kinds.CPU] if cpu or device == "cpu" else []), *([] if device == "cpu" else [kinds.CUDA])]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiled:
        call()
    if verbose:
        print(profiled.key_averages().table(row_limit=50))
    if trace_filename is not None:
        profiled.export_chrome_trace(trace_filename)


def benchmark_memory(
    fn: Callable[..., Any], *inputs: Any, desc: str = "", verbose: bool = True, **kwinputs: Any
) -> float:
    """Thousands of MiB that PyTorch's tensors of the GPU took at most during a call."""
    if not torch.cuda.is_available():
        raise FaceArgumentError("fn: is measured by the allocator of CUDA, which is not there: use torch.profiler")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    fn(*inputs, **kwinputs)
    torch.cuda.synchronize()
    used = torch.cuda.max_memory_allocated() / (2**20 * 1000)
    if verbose:
        print(f"{desc} max memory: {used}GB")
    return used
