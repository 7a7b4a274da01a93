# SPDX-License-Identifier: MIT
"""aiter.ops.activation: gated activations of rows.

input (..., 2 d): the gate, then what it is multiplied by; out (..., d). All is fp32 inside, and rounded once to the
dtype of out, which may be another than that of input. limit above 0: the gate is at most that, and the other factor
within -limit and limit. bias (experts, 2 d), expert_ids (rows): bias[expert_ids] is added first, and the sum rounded to
the dtype of bias. silu is a kernel; gelu and swiglu, which is gpt-oss's (up + 1) gate sigmoid(1.702 gate) with both
held by 7, are PyTorch's operators. No result has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...._core.native import ArgumentError
from ..._modules import errors_as_upstream
from .._rows import divided, off, quantise, rows
from .._run import run

__all__ = [
    "gelu_and_mul",
    "gelu_and_mul_bias",
    "gelu_fast",
    "gelu_tanh_and_mul",
    "scaled_silu_and_mul",
    "silu_and_mul",
    "silu_and_mul_bias",
    "silu_and_mul_quant",
    "swiglu_and_mul",
    "swiglu_and_mul_bias",
]

_named = errors_as_upstream(gate="input", up="input", y="out", scales="scale", quant_dtype="out")


def _gated(out: Tensor | None, input: Tensor, limit: float) -> Tensor:
    """silu(gate) up of rows (rows, 2 d), as (rows, d)."""
    if input.shape[-1] % 2:
        raise ArgumentError(f"input: was of shape {tuple(input.shape)}, must have an even number of columns")
    gate, up = rows("input", input).chunk(2, -1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    made: Tensor = run("silu_and_mul", (gate, up), {} if out is None else {"y": out})
    return made


@_named
def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0) -> None:
    """out = silu(gate) up."""
    if out.dtype == input.dtype:
        _gated(rows("out", out), input, limit)
    else:
        rows("out", out).copy_(_gated(None, input.float(), limit))


def _biased(input: Tensor, expert_ids: Tensor, bias: Tensor) -> Tensor:
    """Rows of input + bias[expert_ids] in the dtype of bias."""
    sums = rows("input", input) + bias.index_select(0, expert_ids.view(-1))
    return sums.to(bias.dtype)


@_named
def silu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    """The same of input + bias[expert_ids]."""
    silu_and_mul(rows("out", out), _biased(input, expert_ids, bias))


@_named
def scaled_silu_and_mul(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """out = silu(gate) up / scale, fp32 of one element: to fp8 and int8 to the nearest, at most the largest."""
    y = _gated(None, input.float(), 0.0)
    made = divided(y, scale, out.dtype) if out.dtype in (torch.int8, torch.float8_e4m3fn) else y / scale
    rows("out", out).copy_(made)


@_named
def silu_and_mul_quant(
    out: Tensor, input: Tensor, scale: Tensor, group_size: int, limit: float = 0.0, shuffle_scale: bool = False
) -> None:
    """out, int8 or fp8, and scale, fp32 (rows, d / group_size): silu(gate) up, quantised by groups of columns."""
    off("shuffle_scale", shuffle_scale, "it is the order in which other hardware loads scales")
    quantise(out, _gated(None, input.float(), limit), scale, group_size)


def _by_torch(out: Tensor, input: Tensor, gate_of: Callable[[Tensor], Tensor], limit: float = 0.0) -> None:
    """out = gate_of(gate) times up, or with a limit up + 1, in fp32."""
    if input.shape[-1] % 2:
        raise ArgumentError(f"input: was of shape {tuple(input.shape)}, must have an even number of columns")
    with torch.no_grad():
        gate, up = input.float().chunk(2, -1)
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + 1
        out.copy_((gate_of(gate) * up).view(out.shape))


def _gelu_tanh(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def _swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@_named
def gelu_and_mul(out: Tensor, input: Tensor) -> None:
    """out = gelu(gate) up, by erf."""
    _by_torch(out, input, torch.nn.functional.gelu)


@_named
def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
    """out = gelu(gate) up, by tanh."""
    _by_torch(out, input, _gelu_tanh)


@_named
def gelu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    """`gelu_and_mul` of input + bias[expert_ids]."""
    _by_torch(out, _biased(input, expert_ids, bias), torch.nn.functional.gelu)


@_named
def gelu_fast(out: Tensor, input: Tensor) -> None:
    """out = gelu(input), by tanh, like input (..., d)."""
    with torch.no_grad():
        out.copy_(_gelu_tanh(input.float()))


@_named
def swiglu_and_mul(out: Tensor, input: Tensor) -> None:
    """out = swiglu of the gate and up."""
    _by_torch(out, input, _swish, 7.0)


@_named
def swiglu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    """`swiglu_and_mul` of input + bias[expert_ids]."""
    _by_torch(out, _biased(input, expert_ids, bias), _swish, 7.0)
