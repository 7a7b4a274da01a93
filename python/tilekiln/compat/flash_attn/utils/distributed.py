# SPDX-License-Identifier: MIT
"""flash_attn.utils.distributed: collectives of torch.distributed, with gradients, and helpers of tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._modules import FaceArgumentError

__all__ = [
    "AllGatherFunc",
    "AllReduceFunc",
    "ReduceScatterFunc",
    "all_gather",
    "all_gather_raw",
    "all_reduce",
    "all_reduce_raw",
    "allreduce_sequence_parallel_grad",
    "get_dim_for_local_rank",
    "reduce_scatter",
    "reduce_scatter_raw",
    "sync_shared_params",
]


def _named(*names: str) -> Any:
    """A function of torch.distributed by the first of its names that there is: versions differ."""
    return next(getattr(torch.distributed, name) for name in names if hasattr(torch.distributed, name))


def all_gather_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """(output, handle): input_ (rows, ...) of every process, one below the other; handle is None unless async_op."""
    rows = torch.distributed.get_world_size(process_group) * input_.shape[0]
    output = input_.new_empty(rows, *input_.shape[1:])
    gather = _named("all_gather_single", "all_gather_into_tensor")
    return output, gather(output, input_.contiguous(), group=process_group, async_op=async_op)


def reduce_scatter_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """(output, handle): of the sum of input_ (rows, ...) over the processes, this one's part of the rows."""
    world = torch.distributed.get_world_size(process_group)
    if input_.shape[0] % world:
        raise FaceArgumentError(
            f"input_: had {input_.shape[0]} rows, must have a multiple of {world}, the number of processes"
        )
    output = input_.new_empty(input_.shape[0] // world, *input_.shape[1:])
    scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
    return output, scatter(output, input_.contiguous(), group=process_group, async_op=async_op)


def all_reduce_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """(input_, handle): the sum over the processes, written over input_, over a copy where it is not contiguous."""
    input_ = input_.contiguous()
    return input_, torch.distributed.all_reduce(input_, group=process_group, async_op=async_op)


class AllGatherFunc(torch.autograd.Function):
    """all_gather_raw; its backward scatters the sum."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return all_gather_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return reduce_scatter_raw(grad_output, ctx.process_group)[0], None


class ReduceScatterFunc(torch.autograd.Function):
    """reduce_scatter_raw; its backward gathers."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return reduce_scatter_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return all_gather_raw(grad_output, ctx.process_group)[0], None


class AllReduceFunc(torch.autograd.Function):
    """all_reduce_raw of a copy; the gradient goes to every process as it is."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        return all_reduce_raw(input_.clone(), process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return grad_output, None


class _Shared(torch.autograd.Function):
    """The tensor itself, which every process has; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return input_.view_as(input_)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return all_reduce_raw(grad_output.clone(), ctx.process_group)[0], None


def all_gather(input_: Tensor, process_group: Any) -> Tensor:
    """The rows of every process, one below the other; differentiable."""
    made: Tensor = AllGatherFunc.apply(input_, process_group)
    return made


def reduce_scatter(input_: Tensor, process_group: Any) -> Tensor:
    """This process's part of the rows of the sum over all; differentiable."""
    made: Tensor = ReduceScatterFunc.apply(input_, process_group)
    return made


def all_reduce(input_: Tensor, process_group: Any) -> Tensor:
    """The sum over the processes, a new tensor; differentiable."""
    made: Tensor = AllReduceFunc.apply(input_, process_group)
    return made


def _marked(model: torch.nn.Module, mark: str) -> list[torch.nn.Parameter]:
    """Parameters with an attribute that is true, in the order of their names, which all processes have alike."""
    return [one for _, one in sorted(model.named_parameters()) if getattr(one, mark, False)]


def sync_shared_params(model: torch.nn.Module, process_group: Any) -> None:
    """Copy every parameter that has _shared_params from the group's first process to the others."""
    source = torch.distributed.get_global_rank(process_group, 0)
    with torch.no_grad():
        for one in _marked(model, "_shared_params"):
            torch.distributed.broadcast(one, src=source, group=process_group)


def allreduce_sequence_parallel_grad(model: torch.nn.Module, process_group: Any) -> None:
    """Add up, over the processes and in place, the gradients of the parameters that have _sequence_parallel."""
    with torch.no_grad():
        for one in _marked(model, "_sequence_parallel"):
            if one.grad is not None:
                torch.distributed.all_reduce(one.grad, group=process_group)


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """The part of dim, in whole multiples, that a process has; where it is uneven the first have one more."""
    whole, more = divmod(dim // multiple_of, world_size)
    return (whole + (local_rank < more)) * multiple_of
