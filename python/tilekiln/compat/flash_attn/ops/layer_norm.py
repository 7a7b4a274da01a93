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
    of_norm,
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


dropout_add_layer_norm, dropout_add_layer_norm_subset, dropout_add_layer_norm_parallel_residual = of_norm(
    __name__, _norm, "dropout_add_layer_norm"
)


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
