# SPDX-License-Identifier: MIT
"""flash_attn.ops.layer_norm: layer normalisation, alone and behind dropout and a residual.

Of tensors on the CPU of fp32, fp16 or bf16, differentiable. Errors are those of `Library.layernorm2d`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....torch import norms
from ... import _absent
from ._dropout_add import (
    DropoutAddNorm,
    dropout_add_norm,
    dropout_add_norm_parallel_residual,
    dropout_add_norm_subset,
    in_widest,
)
from .rms_norm import _norm as _rms

__all__ = [
    "DropoutAddLayerNorm",
    "DropoutAddLayerNormFn",
    "DropoutAddLayerNormParallelResidualFn",
    "DropoutAddLayerNormSubsetFn",
    "dropout_add_layer_norm",
    "dropout_add_layer_norm_parallel_residual",
    "dropout_add_layer_norm_subset",
    "layer_norm",
    "maybe_align",
]

__getattr__ = _absent.sentences(__name__)


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    return norms.layer_norm(x, weight, bias, epsilon)


def maybe_align(x: Tensor, alignment_in_bytes: int = 16) -> Tensor:
    """x, or a copy where it is not aligned so; kernels here want an element's own alignment alone."""
    return x if x.data_ptr() % alignment_in_bytes == 0 else x.clone()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) weight + bias over the last dimension, in x's dtype.

    x (..., columns), weight and bias (columns), of any of fp32, fp16 and bf16: each is read as it is.
    """
    return in_widest(_norm, x, weight, bias, epsilon, x.dtype)


class DropoutAddLayerNorm(DropoutAddNorm):
    """dropout_add_layer_norm with a weight and a bias (hidden_size); dropout while training."""

    norm = staticmethod(_norm)

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, prenorm, p, eps, residual_in_fp32, device, dtype)
        self.bias = torch.nn.Parameter(torch.zeros_like(self.weight))


def dropout_add_layer_norm(
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


def dropout_add_layer_norm_subset(
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
    """dropout_add_layer_norm where some rows have no x0, as with stochastic depth, and some no out.

    x0 (rows_x0, columns). x0_subset, an integer for each row of the sum: the row of x0 that it takes, counted from 1;
    0: none, so that it is residual alone. out_subset likewise: the row of out that it gives; 0: none. out (out_numrows,
    columns). rowscale_const: a factor of x0. Without a subset every row is in it.
    """
    more = layerscale, x0_subset, out_subset, rowscale_const, out_numrows, prenorm, residual_in_fp32
    return dropout_add_norm_subset(_norm, x0, residual, weight, bias, dropout_p, epsilon, *more, return_dropout_mask)


def dropout_add_layer_norm_parallel_residual(
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
    that dropout_add_layer_norm says. return_dropout_mask: two more, of x0 and of x1.
    """
    weights = weight0, bias0, weight1, bias1
    more = prenorm, residual_in_fp32, return_dropout_mask
    return dropout_add_norm_parallel_residual(_norm, x0, x1, residual, *weights, dropout_p, epsilon, *more)


def _kind(is_rms_norm: bool) -> Any:
    return _rms if is_rms_norm else _norm


class DropoutAddLayerNormFn:
    """`apply` of upstream's autograd class: dropout_add_layer_norm, or dropout_add_rms_norm with is_rms_norm."""

    @staticmethod
    def apply(
        x0: Tensor,
        residual: Tensor | None,
        gamma: Tensor,
        beta: Tensor | None,
        rowscale: Tensor | None,
        colscale: Tensor | None,
        dropout_p: float,
        epsilon: float,
        residual_in_fp32: bool = False,
        prenorm: bool = False,
        is_rms_norm: bool = False,
        return_dmask: bool = False,
    ) -> Any:
        more = rowscale, colscale, prenorm, residual_in_fp32, return_dmask
        return dropout_add_norm(_kind(is_rms_norm), x0, residual, gamma, beta, dropout_p, epsilon, *more)


class DropoutAddLayerNormSubsetFn:
    """`apply` of upstream's autograd class: dropout_add_layer_norm_subset, or that of RMSNorm with is_rms_norm."""

    @staticmethod
    def apply(
        x0: Tensor,
        residual: Tensor | None,
        gamma: Tensor,
        beta: Tensor | None,
        colscale: Tensor | None,
        x0_subset: Tensor | None,
        out_subset: Tensor | None,
        dropout_p: float,
        epsilon: float,
        rowscale_const: float,
        out_numrows: int,
        residual_in_fp32: bool = False,
        prenorm: bool = False,
        is_rms_norm: bool = False,
        return_dmask: bool = False,
    ) -> Any:
        more = colscale, x0_subset, out_subset, rowscale_const, out_numrows, prenorm, residual_in_fp32, return_dmask
        return dropout_add_norm_subset(_kind(is_rms_norm), x0, residual, gamma, beta, dropout_p, epsilon, *more)


class DropoutAddLayerNormParallelResidualFn:
    """`apply` of upstream's autograd class: dropout_add_layer_norm_parallel_residual, or that of RMSNorm."""

    @staticmethod
    def apply(
        x0: Tensor,
        x1: Tensor | None,
        residual: Tensor | None,
        gamma0: Tensor,
        beta0: Tensor | None,
        gamma1: Tensor | None,
        beta1: Tensor | None,
        dropout_p: float,
        epsilon: float,
        residual_in_fp32: bool = False,
        prenorm: bool = False,
        is_rms_norm: bool = False,
        return_dmask: bool = False,
    ) -> Any:
        weights = gamma0, beta0, gamma1, beta1
        more = prenorm, residual_in_fp32, return_dmask
        norm = _kind(is_rms_norm)
        return dropout_add_norm_parallel_residual(norm, x0, x1, residual, *weights, dropout_p, epsilon, *more)
