# SPDX-License-Identifier: MIT
"""Context parallelism of whole models: sequences cut once, and attention over all processes wherever a model calls it.

Inside `context_parallel`, or inside PyTorch's own of torch.distributed.tensor.experimental, which Accelerate and
Transformers' Trainer enter, attn_implementation="tilekiln" and `tilekiln.torch.use` attend over the group.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tilekiln._core.native import ArgumentError
from tilekiln.torch import checkpointing, routing

from .agree import agree
from .attend import METHODS, attention
from .placement import check_group, check_placement, positions, shard

THEIRS = "torch.distributed.tensor.experimental"
"""PyTorch's modules whose function stands in for F.scaled_dot_product_attention inside its context_parallel."""


class Active(NamedTuple):
    """The processes that attend together, and how they hold sequences."""

    group: Any
    placement: str
    method: str
    cu_seqlens: tuple[int, ...] | None


_stack: list[Active] = []
"""Of all threads: a backward on a GPU runs in another one."""
_checked: list[Any] = []
"""The position_ids that were looked at last: a reference, their version, and inside of what."""


def active() -> Active | None:
    """The innermost `context_parallel`, else PyTorch's own, else None."""
    if torch.compiler.is_compiling():
        if _is_inside():
            raise NotImplementedError(
                "torch.compile: traces no attention over processes: compile modules without attention, or none"
            )
        return None
    return _stack[-1] if _stack else _pytorchs()


def _is_inside() -> bool:
    return bool(_stack) or _pytorchs() is not None


_is_inside._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as routing does it


def _pytorchs() -> Active | None:
    replaced: Any = torch.nn.functional.scaled_dot_product_attention
    if replaced is routing.scaled_dot_product_attention:
        replaced = routing._torchs_own
    if not str(getattr(replaced, "__module__", "")).startswith(THEIRS):
        return None
    try:
        mesh = inspect.getclosurevars(replaced).nonlocals["device_mesh"]
        balanced = sys.modules[replaced.__module__]._cp_options.enable_load_balance
    except (KeyError, AttributeError):
        raise NotImplementedError(
            f"torch: is {torch.__version__}, whose context_parallel is not known here, as that of 2.13 is: enter "
            "tilekiln.torch.distributed.context_parallel in place of it"
        ) from None
    return Active(mesh.get_group(), "zigzag" if balanced else "contiguous", "auto", None)


@contextlib.contextmanager
def context_parallel(
    mesh: Any = None,
    *,
    buffers: Sequence[Tensor] = (),
    buffer_seq_dims: Sequence[int] = (),
    no_restore_buffers: Sequence[Tensor] | set[Tensor] = (),
    placement: str = "zigzag",
    method: str = "auto",
    cu_seqlens: Tensor | Sequence[int] | None = None,
) -> Generator[None, None, None]:
    """Attention over the processes of a group wherever a model calls it, and buffers cut to this process's part.

    Arguments are those of PyTorch's context_parallel: mesh, a DeviceMesh of one dimension, or a group, None: of all;
    buffers, whole tensors that hold a sequence along buffer_seq_dims (tokens, labels, position_ids), which inside the
    block are this process's part of it, and whole again behind it but for no_restore_buffers. placement, method and
    cu_seqlens are those of `attention`; with cu_seqlens, of packed sequences, batches have one row.

    Reached are models of Transformers with attn_implementation="tilekiln" and F.scaled_dot_product_attention as
    `tilekiln.torch.use` replaces it, in every thread, with the backward and with what is checkpointed inside. Masks
    other than causal and windows are refused. ArgumentError for buffers that are no whole tensors or need a gradient.
    """
    check_group()
    group = mesh.get_group() if isinstance(mesh, dist.device_mesh.DeviceMesh) else mesh
    check_placement(placement)
    if method not in METHODS:
        raise ArgumentError(f"method: was {method!r}, must be one of {', '.join(map(repr, METHODS))}")
    if len(buffers) != len(buffer_seq_dims):
        raise ArgumentError(f"buffer_seq_dims: were {len(buffer_seq_dims)}, must be {len(buffers)}, one of each buffer")
    if any(one.requires_grad for one in buffers):
        raise ArgumentError("buffers: one requires a gradient, must be inputs of a model: cut others with shard")
    starts = None if cu_seqlens is None else tuple(int(one) for one in cu_seqlens)
    parts = [
        shard(one, placement=placement, dim=dim, group=group, cu_seqlens=starts)
        for one, dim in zip(buffers, buffer_seq_dims, strict=True)
    ]
    kept = {id(one) for one in no_restore_buffers}
    with torch.no_grad():
        whole = [one.detach() for one in buffers]
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.set_(part)  # type: ignore[call-overload]
    try:
        with routing.use(), _entered(Active(group, placement, method, starts)):
            yield
    finally:
        with torch.no_grad():
            for buffer, one in zip(buffers, whole, strict=True):
                if id(buffer) not in kept:
                    buffer.set_(one)  # type: ignore[call-overload]


@contextlib.contextmanager
def _entered(one: Active) -> Generator[None, None, None]:
    checkpointing.follow(_inside)
    _stack.append(one)
    try:
        yield
    finally:
        _stack.pop()


def _inside() -> Any:
    """The context in which a checkpoint is computed again: also where PyTorch's own block has ended by then."""
    now = active()
    return None if now is None else functools.partial(_entered, now)


def attend(
    now: Active,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dropout_p: float = 0.0,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """out of a model's call, (batch, rows, heads, hdim), over all processes; options are those of `attention`.

    NotImplementedError for what has no meaning over processes, and position_ids of another part.
    """
    try:
        _check(now, q, k, dropout_p, mask, position_ids)
    except (NotImplementedError, ArgumentError) as refusal:
        with contextlib.suppress(ArgumentError):  # the others are told, and wait no longer
            agree(now.group, "attention", {"failed": str(refusal)})
        raise
    checkpointing.follow(_inside)
    common = {"placement": now.placement, "method": now.method, "group": now.group}
    if now.cu_seqlens is None:
        made: Tensor = attention(q, k, v, **common, **options)
        return made
    flat = attention(q[0], k[0], v[0], cu_seqlens=now.cu_seqlens, **common, **options)
    return flat.unsqueeze(0)  # type: ignore[no-any-return]


def _check(
    now: Active, q: Tensor, k: Tensor, dropout_p: float, mask: Tensor | None, position_ids: Tensor | None
) -> None:
    if dropout_p:
        raise NotImplementedError(
            f"dropout: was {dropout_p}, must be 0 under context parallelism: set attention_dropout=0, or use "
            "tilekiln.torch.distributed.head_exchange_attention"
        )
    if mask is not None and not (mask.dtype == torch.bool and bool(mask.all())):
        raise NotImplementedError(
            "attention_mask: hides keys, which context parallelism cannot: pack sequences (cu_seqlens of "
            "tilekiln.torch.distributed.context_parallel) in place of padding them"
        )
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError(
            f"key: seqlen was {k.shape[1]}, must be {q.shape[1]}, that of query, under context parallelism: generate "
            "outside of it, or with tilekiln.torch.distributed.decode_attention"
        )
    if now.cu_seqlens is not None and len(q) != 1:
        raise NotImplementedError(f"query: batch was {len(q)}, must be 1, as cu_seqlens packs sequences into one row")
    if position_ids is not None and position_ids.dim() == 2:
        _check_positions(now, position_ids)


def _check_positions(now: Active, position_ids: Tensor) -> None:
    """Once for each tensor: a GPU waits for it."""
    if _checked and _checked[0]() is position_ids and _checked[1:] == [position_ids._version, now]:
        return
    rows, world = position_ids.shape[1], dist.get_world_size(now.group)
    its: dict[str, Any] = {"placement": now.placement, "group": now.group}
    wanted = positions(cu_seqlens=now.cu_seqlens, **its) if now.cu_seqlens else positions(rows * world, **its)
    mine = position_ids[0].cpu()
    if len(mine) == len(wanted) and not torch.equal(mine, wanted):
        raise ArgumentError(
            f"position_ids: were {mine[:4].tolist()}..., must be those of the part that this process holds, "
            f"{wanted[:4].tolist()}...: put whole position_ids among the buffers of context_parallel"
        )
    _checked[:] = [weakref.ref(position_ids), position_ids._version, now]


def routed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor | None:
    """out of a call of F.scaled_dot_product_attention over all processes; None outside of context parallelism."""
    now = active()
    if now is None:
        return None
    if query.dim() != 4:
        raise NotImplementedError(
            f"query: had {query.dim()} dimensions, must have 4 under context parallelism: (batch, heads, seqlen, hdim)"
        )
    parts: list[Any] = [query, key, value]
    distributed = hasattr(query, "to_local")  # what PyTorch's block hands on
    parts = [one.to_local() if distributed else one for one in parts]
    made = attend(
        now, *(one.transpose(1, 2) for one in parts), dropout_p=dropout_p, mask=attn_mask, causal=is_causal,
        softmax_scale=scale,
    ).transpose(1, 2)  # fmt: skip
    if not distributed:
        return made
    its: Any = query
    whole: Tensor = type(its).from_local(made, its.device_mesh, its.placements, run_check=False)
    return whole


routing.over_processes = routed
