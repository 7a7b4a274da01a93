# SPDX-License-Identifier: MIT
"""Calls of Tilekiln as its users write them: default arguments, default layout, results made by the call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tilekiln as tk
import torch

from .problem import Problem

Call = Callable[[], Any]


def call(problem: Problem) -> Call:
    """The cell's call. It raises what Tilekiln refuses when it is first run."""
    made: Call = MAKERS[problem.cell.call](problem)
    return with_gradients(problem, made) if problem.cell.phase == "train" else made


def with_gradients(problem: Problem, forward: Call, by_heads: bool = False) -> Call:
    """The forward, then gradients of q, k and v by autograd."""
    leaves = (problem.q, problem.k, problem.v)
    dout = problem.dout.transpose(1, 2) if by_heads else problem.dout  # type: ignore[union-attr]
    return lambda: torch.autograd.grad(forward(), leaves, dout)


def _attention(problem: Problem) -> Call:
    cell, given = problem.cell, {}  # type: ignore[var-annotated]
    left, right = cell.window_sides
    if (left, right) == (-1, 0):
        given["causal"] = True
    elif (left, right) != (-1, -1):
        given["window"] = (left, right)
    if problem.softcap:
        given["softcap"] = problem.softcap
    for name in ("sink", "bias"):
        if (value := getattr(problem, name)) is not None:
            given[name] = value
    return lambda: tk.attention(problem.q, problem.k, problem.v, **given)


def _sdpa(problem: Problem) -> Call:
    import tilekiln.torch

    cell = problem.cell
    mask = problem.bias if problem.bias is not None else problem.visible()
    causal = problem.is_causal()
    grouped = {"enable_gqa": True} if cell.heads_q != cell.heads_k else {}

    def forward() -> Any:
        q, k, v = problem.by_heads
        with tilekiln.torch.use():
            made = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, **grouped
            )
        return made.transpose(1, 2)

    return forward


def _flash_attn(problem: Problem) -> Call:
    from tilekiln.compat import flash_attn

    cell = problem.cell
    left, right = cell.window_sides
    given: dict[str, Any] = {"causal": True} if (left, right) == (-1, 0) else {"window_size": (left, right)}
    if cell.phase == "packed":
        longest = max(cell.lengths)
        return lambda: flash_attn.flash_attn_varlen_func(
            problem.q, problem.k, problem.v, problem.starts, problem.starts, longest, longest, **given
        )
    if cell.phase == "decode":
        return lambda: flash_attn.flash_attn_with_kvcache(
            problem.q, problem.k, problem.v, cache_seqlens=cell.seqlen_k, **given
        )
    return lambda: flash_attn.flash_attn_func(problem.q, problem.k, problem.v, **given)


def _packed_linear(problem: Problem) -> Call:
    packed = tk.PackedWeight(problem.weight)
    return lambda: tk.linear(problem.x, packed)


def _experts(problem: Problem) -> Call:
    packed = tk.PackedExperts(problem.gate_up, problem.down)
    return lambda: tk.experts(problem.x, problem.topk_ids, problem.topk_weights, packed)


def _convolution(problem: Problem) -> Call:
    """y in the layout of x, as a model hands it on."""
    cell, x, bias = problem.cell, problem.x, problem.bias.float()  # type: ignore[union-attr]
    window = {"stride": [cell.stride], "padding": [cell.padding], "groups": cell.groups}
    batch, outputs, *lengths = cell.result

    def forward() -> Any:
        if cell.layout == "first":
            return tk.conv_fwd(x, problem.weight, bias=bias, **window)
        y = torch.empty(batch, *lengths, outputs, dtype=problem.dtype, device=problem.device).movedim(-1, 1)
        return tk.conv_fwd(x, problem.weight, bias=bias, y=y, **window)

    return forward


def _rmsnorm(problem: Problem) -> Call:
    return lambda: tk.rmsnorm2d(problem.x, problem.gamma)


def _layernorm(problem: Problem) -> Call:
    return lambda: tk.layernorm2d(problem.x, problem.gamma, problem.beta)


MAKERS: dict[str, Callable[[Problem], Call]] = {
    "attention": _attention,
    "sdpa": _sdpa,
    "flash_attn": _flash_attn,
    "linear": lambda problem: lambda: tk.linear(problem.x, problem.weight),
    "packed_linear": _packed_linear,
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "experts": _experts,
    "conv_fwd": _convolution,
}


@contextlib.contextmanager
def threads(count: int) -> Any:
    """PyTorch's threads; Tilekiln's are TILEKILN_NUM_THREADS of the process."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
