"""flash_attn.ops.layer_norm: layer normalisation, alone and behind dropout and a residual.

Of tensors on the CPU of fp32, fp16 or bf16, differentiable. Errors are those of `Library.layernorm2d`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...torch import norms
from ._dropout_add import DropoutAddNorm, dropout_add_norm

__all__ = ["DropoutAddLayerNorm", "dropout_add_layer_norm", "layer_norm"]


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    return norms.layer_norm(x, weight, bias, epsilon)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) weight + bias over the last dimension, in x's dtype."""
    return _norm(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), epsilon)


class DropoutAddLayerNorm(DropoutAddNorm):
    """dropout_add_layer_norm with a weight and a bias (hidden_size); dropout while training."""

    norm = staticmethod(_norm)

    def __init__(self, hidden_size: int, *others: Any, **named: Any) -> None:
        super().__init__(hidden_size, *others, **named)
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

    x0, residual (..., columns), weight, bias, layerscale (columns), rowscale (...). prenorm: (out, the sum). The sum
    has the dtype of residual; without one x0's, or fp32 with residual_in_fp32. return_dropout_mask: one more result.
    """
    more = rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask
    return dropout_add_norm(_norm, x0, residual, weight, bias, dropout_p, epsilon, *more)
