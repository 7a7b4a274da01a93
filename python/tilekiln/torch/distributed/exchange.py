# SPDX-License-Identifier: MIT
"""The exchange of heads: whole sequences of some heads in each process, and back (DeepSpeed-Ulysses, 2023).

Neighbours exchange, so that a ring can go between groups of them: in two dimensions, heads of neighbours and the ring
of what they hold together (Fang and Zhao, USP, 2024).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from tilekiln._core.native import ArgumentError

from .placement import Layout


class Exchange(NamedTuple):
    """Processes that exchange heads, from `first` on among all, and what each of all holds; rank: among them."""

    group: Any
    rank: int
    size: int
    first: int
    layout: Layout

    @property
    def joined(self) -> Layout:
        """The layout in which they count as one."""
        return dataclasses.replace(self.layout, joined=self.size)

    def counts(self) -> list[int]:
        return [self.layout.count(self.first + one) for one in range(self.size)]


class Heads(torch.autograd.Function):
    """(..., rows here, heads, hdim) to (..., rows of all in order, heads / size, hdim), or back; differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, to_heads: bool) -> Any:
        ctx.exchange, ctx.to_heads = exchange, to_heads
        return exchanged(x, exchange, to_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        return exchanged(dx, ctx.exchange, not ctx.to_heads), None, None


@functools.lru_cache(256)
def _order(exchange: Exchange, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Places of the rows of `joined` among those of the processes one after another, and the inverse.

    None where they agree.
    """
    rows = torch.cat([exchange.layout.rows(exchange.first + one) for one in range(exchange.size)])
    ranks = rows.argsort()
    wanted = exchange.joined.rows(exchange.first // exchange.size)
    order = ranks[torch.searchsorted(rows[ranks], wanted)]
    if torch.equal(order, torch.arange(len(order), device="cpu")):
        return None
    return order.to(device), order.argsort().to(device)


def exchanged(x: Tensor, exchange: Exchange, to_heads: bool) -> Tensor:
    if exchange.size == 1:
        return x
    counts, order = exchange.counts(), _order(exchange, x.device)
    mine, heads = counts[exchange.rank], x.shape[-2] // exchange.size if to_heads else x.shape[-2]
    ahead, hdim = x.shape[:-3], x.shape[-1]
    if to_heads:
        pieces, sizes = x.chunk(exchange.size, -2), counts
    else:
        pieces = (x if order is None else x.index_select(-3, order[1])).split(counts, -3)
        sizes = [mine] * exchange.size
    given = torch.cat([one.reshape(-1) for one in pieces])
    shapes = [(*ahead, rows, heads, hdim) for rows in sizes]
    elements = [ahead.numel() * rows * heads * hdim for rows in sizes]
    come = x.new_empty(sum(elements))
    dist.all_to_all_single(come, given, elements, [one.numel() for one in pieces], group=exchange.group)
    parts = [one.view(shape) for one, shape in zip(come.split(elements), shapes, strict=True)]
    if not to_heads:
        return torch.cat(parts, -2)
    joined = torch.cat(parts, -3)
    return joined if order is None else joined.index_select(-3, order[0])


def keys_to_spread(q: Tensor, k: Tensor, v: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """k and v with heads that `size` processes can share: repeated where that many would want the same one.

    ArgumentError where they cannot.
    """
    times = size // k.shape[-2] if k.shape[-2] and size % k.shape[-2] == 0 else 1
    if q.shape[-2] % size == 0 and times > 1:
        return k.repeat_interleave(times, -2), v.repeat_interleave(times, -2)
    for name, one in (("q", q), ("k", k), ("v", v)):
        if one.shape[-2] % size:
            raise ArgumentError(
                f"{name}: heads was {one.shape[-2]}, must be a multiple of {size}, the processes that exchange heads; "
                "ring_attention and gather_attention take any number"
            )
    return k, v


@functools.lru_cache(64)
def _grid(group: Any, ranks: tuple[int, ...], heads: int) -> tuple[Any, Any]:
    """This process's (group of neighbours that exchange heads, group of the ring)."""
    rank = ranks.index(dist.get_rank())
    neighbours = ranks[rank // heads * heads : (rank // heads + 1) * heads]
    return _made(neighbours), _made(ranks[rank % heads :: heads])


@functools.lru_cache(256)
def _made(ranks: tuple[int, ...]) -> Any:
    return dist.new_group(list(ranks), use_local_synchronization=True)


def grid(group: Any, heads: int) -> tuple[Any, Any]:
    """(exchanging neighbours, ring) of this process, of the processes of a group `heads` in a row; made once."""
    world = dist.get_world_size(group)
    if heads == world:
        return group, None
    if heads == 1:
        return None, group
    its = dist.group.WORLD if group is None else group
    return _grid(its, tuple(dist.get_process_group_ranks(its)), heads)
