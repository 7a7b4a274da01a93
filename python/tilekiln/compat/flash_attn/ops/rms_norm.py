# SPDX-License-Identifier: MIT
"""flash_attn.ops.rms_norm: RMS normalisation, alone and behind dropout and a residual.

Of tensors on the CPU of fp32, fp16 or bf16, differentiable. Errors are those of `Library.rmsnorm2d`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....torch import norms
from ._dropout_add import DropoutAddNorm, in_widest, of_norm

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


dropout_add_rms_norm, dropout_add_rms_norm_subset, dropout_add_rms_norm_parallel_residual = of_norm(
    __name__, _norm, "dropout_add_rms_norm"
)
