# SPDX-License-Identifier: MIT
"""flash_attn.modules.mlp: two linear layers and an activation, plain and gated, of one process and of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.activations import _gated
from ..ops.fused_dense import ColumnParallelLinear, FusedMLP, ParallelFusedMLP, RowParallelLinear

__all__ = ["FusedMLP", "GatedMlp", "Mlp", "ParallelFusedMLP", "ParallelGatedMlp", "ParallelMLP"]

Activation = Callable[[Tensor], Tensor]


def _gated_width(hidden_features: int | None, in_features: int, multiple_of: int) -> int:
    """hidden_features, 8/3 of in_features unless said, up to a multiple."""
    wanted = 8 * in_features // 3 if hidden_features is None else hidden_features
    return -(-wanted // multiple_of) * multiple_of


class Mlp(torch.nn.Module):
    """fc2(activation(fc1(x))); hidden_features: 4 in_features unless said, out_features: in_features."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.gelu,
        bias1: bool = True,
        bias2: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        out = in_features if out_features is None else out_features
        self.activation, self.return_residual = activation, return_residual
        self.fc1 = torch.nn.Linear(in_features, hidden, bias1, device, dtype)
        self.fc2 = torch.nn.Linear(hidden, out, bias2, device, dtype)

    def forward(self, x: Tensor) -> Any:
        """Of x (..., in_features); with return_residual (out, x)."""
        out = self.fc2(self.activation(self.fc1(x)))
        return (out, x) if self.return_residual else out


class ParallelMLP(torch.nn.Module):
    """Mlp of which each process has a part of hidden_features."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.gelu,
        process_group: Any = None,
        sequence_parallel: bool = True,
        bias1: bool = True,
        bias2: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        out = in_features if out_features is None else out_features
        more = sequence_parallel, 1, device, dtype
        self.activation = activation
        self.fc1 = ColumnParallelLinear(in_features, hidden, process_group, bias1, *more)
        self.fc2 = RowParallelLinear(hidden, out, process_group, bias2, *more)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class GatedMlp(torch.nn.Module):
    """fc2(y activation(gate)), where fc1(x) is y and gate beside each other.

    activation: functional.sigmoid (GLU), silu (SwiGLU, by the operator silu_and_mul), gelu (gelu_and_mul), or another.
    hidden_features: 8/3 of in_features unless said, up to a multiple of multiple_of.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = _gated_width(hidden_features, in_features, multiple_of)
        out = in_features if out_features is None else out_features
        self.activation, self.return_residual = activation, return_residual
        self.fc1 = torch.nn.Linear(in_features, 2 * hidden, bias1, device, dtype)
        self.fc2 = torch.nn.Linear(hidden, out, bias2, device, dtype)

    def forward(self, x: Tensor) -> Any:
        """Of x (..., in_features); with return_residual (out, x)."""
        y, gate = self.fc1(x).chunk(2, -1)
        out = self.fc2(_gated(y, gate, self.activation))
        return (out, x) if self.return_residual else out


class ParallelGatedMlp(torch.nn.Module):
    """GatedMlp of which each process has a part of hidden_features."""

    def __init__(
        self,
        in_features: int,
        process_group: Any,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = _gated_width(hidden_features, in_features, multiple_of)
        out = in_features if out_features is None else out_features
        more = sequence_parallel, 1, device, dtype
        self.activation = activation
        self.fc1 = ColumnParallelLinear(in_features, 2 * hidden, process_group, bias1, *more)
        self.fc2 = RowParallelLinear(hidden, out, process_group, bias2, *more)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.fc1(x).chunk(2, -1)
        out: Tensor = self.fc2(_gated(y, gate, self.activation))
        return out
