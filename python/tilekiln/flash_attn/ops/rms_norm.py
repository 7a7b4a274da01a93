"""flash_attn.ops.rms_norm: RMS normalisation, alone and behind dropout and a residual.

Of tensors on the CPU of fp32, fp16 or bf16, differentiable. Errors are those of `Library.rmsnorm2d`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...torch import norms
from ._dropout_add import DropoutAddNorm, dropout_add_norm

__all__ = ["DropoutAddRMSNorm", "RMSNorm", "dropout_add_rms_norm", "rms_norm"]


def _norm(x: Tensor, weight: Tensor, _: Tensor | None, epsilon: float) -> Tensor:
    return norms.rms_norm(x, weight, epsilon)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) weight over the last dimension, rounded once, in x's dtype."""
    return _norm(x, weight.to(x.dtype), None, epsilon)


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

    x0, residual (..., columns), weight, bias, layerscale (columns), rowscale (...). prenorm: (out, the sum). The sum
    has the dtype of residual; without one x0's, or fp32 with residual_in_fp32. return_dropout_mask: one more result.
    """
    more = rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask
    return dropout_add_norm(_norm, x0, residual, weight, bias, dropout_p, epsilon, *more)
