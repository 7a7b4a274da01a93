# SPDX-License-Identifier: MIT
"""flash_attn.ops.fused_dense: linear layers and MLPs, of one process and in parts of several.

Products are PyTorch's, with its autograd and autocast; tilekiln.torch.optimize puts Tilekiln's into such modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..._modules import FaceArgumentError
from ..utils.distributed import _Shared, all_gather, all_reduce, get_dim_for_local_rank, reduce_scatter
from .activations import gelu_fwd, sqrelu_fwd

__all__ = [
    "ColumnParallelLinear",
    "FusedDense",
    "FusedDenseFunc",
    "FusedMLP",
    "FusedMLPFunc",
    "ParallelFusedMLP",
    "RowParallelLinear",
    "fused_dense_func",
    "fused_mlp_func",
]

ACTIVATIONS: dict[str, Any] = {"gelu_approx": gelu_fwd, "relu": functional.relu, "sqrelu": sqrelu_fwd}


def _gathered(x: Tensor, process_group: Any, sequence_parallel: bool) -> Tensor:
    """The rows that a column-parallel product takes: of all processes, or those that each has already."""
    if process_group is None:
        return x
    if sequence_parallel:
        return all_gather(x, process_group)
    made: Tensor = _Shared.apply(x, process_group)
    return made


def _scattered(out: Tensor, process_group: Any, sequence_parallel: bool) -> Tensor:
    """The sum of what the processes have, a part of the rows or all of them."""
    return (reduce_scatter if sequence_parallel else all_reduce)(out, process_group)


def fused_dense_func(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    return_residual: bool = False,
    process_group: Any = None,
    sequence_parallel: bool = True,
) -> Any:
    """x weight^T + bias; x (..., in_features), weight (out_features, in_features), bias (out_features).

    return_residual: (out, x), so that the gradient of x is one sum. process_group: weight is this process's part of
    out_features; with sequence_parallel x is its part of the rows, dimension 0, and is gathered first.
    """
    out = functional.linear(_gathered(x, process_group, sequence_parallel), weight, bias)
    return (out, x) if return_residual else out


class FusedDenseFunc:
    """`FusedDenseFunc.apply(...)` is fused_dense_func."""

    apply = staticmethod(fused_dense_func)


class FusedDense(torch.nn.Linear):
    """torch.nn.Linear with fused_dense_func's return_residual and process_group."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.return_residual = return_residual

    def forward(self, x: Tensor, process_group: Any = None) -> Any:
        return fused_dense_func(x, self.weight, self.bias, self.return_residual, process_group)


def _part(name: str, features: int, process_group: Any, multiple_of: int) -> tuple[int, int]:
    """(this process's features, its number)."""
    if process_group is None:
        raise FaceArgumentError("process_group: was None, must be a group of torch.distributed")
    if features % multiple_of:
        raise FaceArgumentError(f"{name}: was {features}, must be a multiple of multiple_of, {multiple_of}")
    rank = torch.distributed.get_rank(process_group)
    return get_dim_for_local_rank(features, torch.distributed.get_world_size(process_group), rank, multiple_of), rank


class ColumnParallelLinear(torch.nn.Linear):
    """A linear layer of which each process has a part of out_features, in multiples of multiple_of."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        own, _ = _part("out_features", out_features, process_group, multiple_of)
        super().__init__(in_features, own, bias, device, dtype)
        self.process_group, self.sequence_parallel = process_group, sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        more = False, self.process_group, self.sequence_parallel
        out: Tensor = fused_dense_func(x, self.weight, self.bias, *more)
        return out


class RowParallelLinear(torch.nn.Linear):
    """A linear layer of which each process has a part of in_features; the first one alone has the bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        own, rank = _part("in_features", in_features, process_group, multiple_of)
        super().__init__(own, out_features, bias and rank == 0, device, dtype)
        self.process_group, self.sequence_parallel = process_group, sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """The sum over the processes; with sequence_parallel this one's part of its rows."""
        return _scattered(functional.linear(x, self.weight, self.bias), self.process_group, self.sequence_parallel)


def fused_mlp_func(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: str = "gelu_approx",
    save_pre_act: bool = True,
    return_residual: bool = False,
    checkpoint_lvl: int = 0,
    heuristic: int = 0,
    process_group: Any = None,
    sequence_parallel: bool = True,
) -> Any:
    """act(x weight1^T + bias1) weight2^T + bias2, act gelu_approx, relu or sqrelu; shapes as of fused_dense_func.

    checkpoint_lvl: computed again in the backward: 0 nothing, 1 the activation, 2 the first product too, as without
    save_pre_act. heuristic chooses among cuBLASLt's kernels, and nothing here. process_group: of the first product;
    the caller adds up the result.
    """
    _check_mlp(activation, checkpoint_lvl)
    act = ACTIVATIONS[activation]
    level = checkpoint_lvl if save_pre_act else 2

    def first(rows: Tensor) -> Tensor:
        return functional.linear(_gathered(rows, process_group, sequence_parallel), weight1, bias1)

    def second(hidden: Tensor) -> Tensor:
        return functional.linear(act(hidden), weight2, bias2)

    if level == 0 or not torch.is_grad_enabled():
        out = second(first(x))
    elif level == 1:
        out = checkpoint(second, first(x), use_reentrant=False)
    else:
        out = checkpoint(lambda rows: second(first(rows)), x, use_reentrant=False)
    return (out, x) if return_residual else out


def _check_mlp(activation: str, checkpoint_lvl: int) -> None:
    if activation not in ACTIVATIONS:
        raise FaceArgumentError(f"activation: was {activation!r}, must be one of {', '.join(ACTIVATIONS)}")
    if checkpoint_lvl not in (0, 1, 2):
        raise FaceArgumentError(f"checkpoint_lvl: was {checkpoint_lvl}, must be 0, 1 or 2")


class FusedMLPFunc:
    """`FusedMLPFunc.apply(x, weight1, bias1, weight2, bias2, ...)` is fused_mlp_func, its biases beside the weights."""

    @staticmethod
    def apply(
        x: Tensor,
        weight1: Tensor,
        bias1: Tensor | None,
        weight2: Tensor,
        bias2: Tensor | None,
        *options: Any,
    ) -> Any:
        return fused_mlp_func(x, weight1, weight2, bias1, bias2, *options)


class FusedMLP(torch.nn.Module):
    """fc2(act(fc1(x))) by fused_mlp_func; hidden_features: 4 in_features unless said, out_features: in_features."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        bias1: bool = True,
        bias2: bool = True,
        activation: str = "gelu_approx",
        return_residual: bool = False,
        checkpoint_lvl: int = 0,
        heuristic: int | str = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_mlp(activation, checkpoint_lvl)
        hidden = hidden_features or 4 * in_features
        self.activation, self.return_residual, self.checkpoint_lvl = activation, return_residual, checkpoint_lvl
        self.heuristic = heuristic
        self.fc1 = torch.nn.Linear(in_features, hidden, bias1, device, dtype)
        self.fc2 = torch.nn.Linear(hidden, out_features or in_features, bias2, device, dtype)

    def forward(self, x: Tensor, process_group: Any = None) -> Any:
        """process_group: as of fused_mlp_func, x this process's rows; the result is its rows of the sum."""
        out = fused_mlp_func(
            x, self.fc1.weight, self.fc2.weight, self.fc1.bias, self.fc2.bias, self.activation, self.training,
            checkpoint_lvl=self.checkpoint_lvl, process_group=process_group,
        )  # fmt: skip
        if process_group is not None:
            out = reduce_scatter(out, process_group)
        return (out, x) if self.return_residual else out


class ParallelFusedMLP(torch.nn.Module):
    """FusedMLP of which each process has a part of hidden_features."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: str = "gelu_approx",
        process_group: Any = None,
        bias1: bool = True,
        bias2: bool = True,
        sequence_parallel: bool = True,
        checkpoint_lvl: int = 0,
        heuristic: int | str = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_mlp(activation, checkpoint_lvl)
        hidden = hidden_features or 4 * in_features
        self.activation, self.checkpoint_lvl, self.heuristic = activation, checkpoint_lvl, heuristic
        self.process_group, self.sequence_parallel = process_group, sequence_parallel
        more = sequence_parallel, 1, device, dtype
        self.fc1 = ColumnParallelLinear(in_features, hidden, process_group, bias1, *more)
        self.fc2 = RowParallelLinear(hidden, out_features or in_features, process_group, bias2, *more)

    def forward(self, x: Tensor) -> Tensor:
        out = fused_mlp_func(
            x, self.fc1.weight, self.fc2.weight, self.fc1.bias, self.fc2.bias, self.activation, self.training,
            checkpoint_lvl=self.checkpoint_lvl, process_group=self.process_group,
            sequence_parallel=self.sequence_parallel,
        )  # fmt: skip
        return _scattered(out, self.process_group, self.sequence_parallel)
