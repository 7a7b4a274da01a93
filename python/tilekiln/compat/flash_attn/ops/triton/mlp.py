# SPDX-License-Identifier: MIT
"""flash_attn.ops.triton.mlp: an MLP of squared ReLU, without Triton: ops.fused_dense's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..fused_dense import FusedMLP, fused_mlp_func

__all__ = ["FusedDenseSqreluDense", "FusedDenseSqreluDenseFunc", "fused_dense_sqrelu_dense_function"]


def fused_dense_sqrelu_dense_function(
    x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None, checkpoint_lvl: int = 0
) -> Tensor:
    """fused_mlp_func of the activation sqrelu."""
    made: Tensor = fused_mlp_func(x, weight1, weight2, bias1, bias2, "sqrelu", checkpoint_lvl=checkpoint_lvl)
    return made


class FusedDenseSqreluDenseFunc:
    """`FusedDenseSqreluDenseFunc.apply(...)` is fused_dense_sqrelu_dense_function."""

    apply = staticmethod(fused_dense_sqrelu_dense_function)


class FusedDenseSqreluDense(FusedMLP):
    """FusedMLP of the activation sqrelu."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        bias1: bool = True,
        bias2: bool = True,
        checkpoint_lvl: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_features, hidden_features, out_features, bias1, bias2, "sqrelu", checkpoint_lvl=checkpoint_lvl,
            device=device, dtype=dtype,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x)
