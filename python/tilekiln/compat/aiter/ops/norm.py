# SPDX-License-Identifier: MIT
"""aiter.ops.norm: layer norms of rows, with a residual, and quantised.

input, out, residual_in, residual_out (..., columns), weight and bias (columns) of one dtype: fp32, fp16 or bf16.
x_bias (columns) is added to input first. With a residual the sum, rounded to the dtype, is what is normalised, and is
written to residual_out. Quantised: out int8 or fp8 and yscale, fp32, one a row, with out yscale = y xscale.
No result has a gradient; tilekiln.torch.LayerNorm has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _absent
from ..._modules import errors_as_upstream
from .._rows import factors, rows
from .._run import run
from .._shapes import gen_layer_norm_fake_tensors

__all__ = [
    "gen_layer_norm_fake_tensors",
    "layer_norm",
    "layernorm2d_fwd",
    "layernorm2d_fwd_with_add",
    "layernorm2d_fwd_with_add_smoothquant",
    "layernorm2d_fwd_with_smoothquant",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(
    x="input", gamma="weight", beta="bias", y="out", residual="residual_in", smooth_scale="xscale", y_scale="yscale"
)


def _norm(
    out: Tensor | None, x: Tensor, weight: Tensor | None, bias: Tensor | None, x_bias: Tensor | None, epsilon: float,
    residuals: tuple[Tensor, Tensor] | None = None, scales: tuple[Tensor, Tensor] | None = None,
) -> Any:  # fmt: skip
    given = rows("input", x if x_bias is None else x + x_bias)
    arguments: dict[str, Any] = {"epsilon": epsilon}
    if out is not None:
        arguments["y"] = rows("out", out)
    if residuals is not None:
        arguments["residual"] = rows("residual_in", residuals[0])
        arguments["residual_out"] = rows("residual_out", residuals[1])
    if scales is not None:
        arguments["smooth_scale"] = scales[0].view(-1)
        arguments["y_scale"] = factors("yscale", scales[1], given.shape[0])
    name = "layernorm2d" if scales is None else "layernorm2d_rdquant"
    made = run(name, (given, torch.ones_like(given[0]) if weight is None else weight, bias), arguments)
    return made[0] if isinstance(made, tuple) else made


@_named
def layer_norm(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    x_bias: Tensor | None = None,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) weight + bias over the last dimension, like input."""
    made: Tensor = _norm(None, input, weight, bias, x_bias, epsilon)
    return made.view(input.shape)


@_named
def layernorm2d_fwd(
    input: Tensor, weight: Tensor, bias: Tensor, epsilon: float = 1e-5, x_bias: Tensor | None = None
) -> Tensor:
    """`layer_norm`."""
    made: Tensor = _norm(None, input, weight, bias, x_bias, epsilon)
    return made.view(input.shape)


@_named
def layernorm2d_fwd_with_add(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor, bias: Tensor,
    epsilon: float, x_bias: Tensor | None = None,
) -> None:  # fmt: skip
    """out: the norm of residual_out = input + residual_in."""
    _norm(out, input, weight, bias, x_bias, epsilon, (residual_in, residual_out))


@_named
def layernorm2d_fwd_with_smoothquant(
    out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor, bias: Tensor, epsilon: float,
    x_bias: Tensor | None = None,
) -> None:  # fmt: skip
    """out, yscale: the norm times xscale, fp32 (columns), quantised."""
    _norm(out, input, weight, bias, x_bias, epsilon, None, (xscale, yscale))


@_named
def layernorm2d_fwd_with_add_smoothquant(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, xscale: Tensor, yscale: Tensor,
    weight: Tensor, bias: Tensor, epsilon: float, x_bias: Tensor | None = None,
) -> None:  # fmt: skip
    """Both: of residual_out = input + residual_in."""
    _norm(out, input, weight, bias, x_bias, epsilon, (residual_in, residual_out), (xscale, yscale))
