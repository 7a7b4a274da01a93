# SPDX-License-Identifier: MIT
"""flash_attn.ops.rms_norm: RMS normalisation, alone and behind dropout and a residual.

Of tensors on the CPU of fp32, fp16 or bf16, differentiable. Errors are those of `Library.rmsnorm2d`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....torch import norms
from ._dropout_add import (
    DropoutAddNorm,
    dropout_add_norm,
    dropout_add_norm_parallel_residual,
    dropout_add_norm_subset,
    in_widest,
)

__all__ = [
    "DropoutAddRMSNorm",
    "RMSNorm",
    "dropout_add_rms_norm",
    "dropout_add_rms_norm_parallel_residual",
    "dropout_add_rms_norm_subset",
    "rms_norm",
]


def _norm(x: Tensor, weight: Tensor, _: Tensor | None, epsilon: float) -> Tensor:
    return norms.rms_norm(x, weight, epsilon)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) weight over the last dimension, rounded once, in x's dtype.

    x (..., columns), weight (columns), of any of fp32, fp16 and bf16: each is read as it is.
    """
    return in_widest(_norm, x, weight, None, epsilon, x.dtype)


class RMSNorm(torch.nn.Module):
    """rms_norm with a weight (hidden_size)."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class DropoutAddRMSNorm(DropoutAddNorm):
    """dropout_add_rms_norm with a weight (hidden_size); dropout while training."""

    norm = staticmethod(_norm)


def dropout_add_rms_norm(
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """The norm of dropout(x0 rowscale layerscale) + residual.

    x0, residual (..., columns), weight, bias, layerscale (columns), rowscale (...), of any of fp32, fp16 and bf16.
    prenorm: (out, the sum). The sum has the dtype of residual; without one x0's, or fp32 with residual_in_fp32; before
    it is rounded to that everything is computed in fp32. return_dropout_mask: one more result, uint8.
    """
    more = rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask
    return dropout_add_norm(_norm, x0, residual, weight, bias, dropout_p, epsilon, *more)


def dropout_add_rms_norm_subset(
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    layerscale: Tensor | None = None,
    x0_subset: Tensor | None = None,
    out_subset: Tensor | None = None,
    rowscale_const: float = 1.0,
    out_numrows: int = 0,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """dropout_add_rms_norm where some rows have no x0, as with stochastic depth, and some no out.

    x0 (rows_x0, columns). x0_subset, an integer for each row of the sum: the row of x0 that it takes, counted from 1;
    0: none, so that it is residual alone. out_subset likewise: the row of out that it gives; 0: none. out (out_numrows,
    columns). rowscale_const: a factor of x0. Without a subset every row is in it.
    """
    more = layerscale, x0_subset, out_subset, rowscale_const, out_numrows, prenorm, residual_in_fp32
    return dropout_add_norm_subset(_norm, x0, residual, weight, bias, dropout_p, epsilon, *more, return_dropout_mask)


def dropout_add_rms_norm_parallel_residual(
    x0: Tensor,
    x1: Tensor | None,
    residual: Tensor | None,
    weight0: Tensor,
    bias0: Tensor | None,
    weight1: Tensor | None,
    bias1: Tensor | None,
    dropout_p: float,
    epsilon: float,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """Two norms of dropout(x0) + dropout(x1) + residual: (out0, out1), out1 None without weight1.

    x0, x1, residual (..., columns), weights and biases (columns). prenorm: the sum is one more result, of the dtype
    that dropout_add_rms_norm says. return_dropout_mask: two more, of x0 and of x1.
    """
    weights = weight0, bias0, weight1, bias1
    more = prenorm, residual_in_fp32, return_dropout_mask
    return dropout_add_norm_parallel_residual(_norm, x0, x1, residual, *weights, dropout_p, epsilon, *more)
