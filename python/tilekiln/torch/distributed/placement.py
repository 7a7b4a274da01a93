# SPDX-License-Identifier: MIT
"""Placements of sequences over processes: which rows each process holds, and tensors cut and joined by them.

    contiguous   rank r holds rows r L / W to (r + 1) L / W
    zigzag       L in 2 W chunks; rank r holds chunks r and 2 W - 1 - r, so that causal attention costs all the same
    striped      rank r holds rows r, r + W, r + 2 W, ... (Brandon et al., Striped Attention, 2023)

W need not divide L: the first chunks are a row longer (as numpy.array_split's). Packed sequences are cut one by one,
each as if it were alone: a process holds its part of the first, then of the second, and so on.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tilekiln._core.native import ArgumentError

gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Its name since PyTorch 2.13, and before."""

PLACEMENTS = ("contiguous", "zigzag", "striped")


class Run(NamedTuple):
    """Rows start, start + step, ... of a sequence."""

    start: int
    step: int
    length: int


@dataclass(frozen=True)
class Layout:
    """Sequences of these lengths over `world` processes, of which `joined` neighbours count as one."""

    placement: str
    lengths: tuple[int, ...]
    world: int
    packed: bool = False
    joined: int = 1

    def runs(self, rank: int) -> tuple[tuple[Run, ...], ...]:
        """Of each sequence the runs of rows that a rank holds, in the order in which it holds them."""
        return _runs(self, rank)

    def count(self, rank: int) -> int:
        return sum(run.length for runs in self.runs(rank) for run in runs)

    def rows(self, rank: int) -> Tensor:
        """int64 (count): numbers of its rows, of all sequences one after another."""
        return _rows(self, rank)

    def cu_seqlens(self, rank: int) -> list[int]:
        """Starts of its parts of the sequences in what it holds, and the end."""
        starts = [0]
        for runs in self.runs(rank):
            starts.append(starts[-1] + sum(run.length for run in runs))
        return starts

    @property
    def whole(self) -> Layout:
        """The same sequences in one process."""
        return Layout("contiguous", self.lengths, 1, self.packed)

    @property
    def total(self) -> int:
        return sum(self.lengths)


@functools.lru_cache(4096)
def _runs(layout: Layout, rank: int) -> tuple[tuple[Run, ...], ...]:
    if layout.joined == layout.world:
        return tuple((Run(0, 1, length),) if length else () for length in layout.lengths)
    members = range(rank * layout.joined, (rank + 1) * layout.joined)
    return tuple(
        _neighbours([run for one in members for run in _cut(layout.placement, length, layout.world, one)])
        for length in layout.lengths
    )


def _cut(placement: str, length: int, world: int, rank: int) -> list[Run]:
    if placement == "striped":
        return [Run(rank, world, max(0, -(-(length - rank) // world)))]
    chunks, held = (world, (rank,)) if placement == "contiguous" else (2 * world, (rank, 2 * world - 1 - rank))
    share, more = divmod(length, chunks)
    return [Run(one * share + min(one, more), 1, share + (one < more)) for one in held]


def _neighbours(runs: list[Run]) -> tuple[Run, ...]:
    """Without empty ones, in order, and those that follow one another made one."""
    made: list[Run] = []
    for run in sorted(one for one in runs if one.length):
        if made and made[-1].step == run.step == 1 and made[-1].start + made[-1].length == run.start:
            made[-1] = Run(made[-1].start, 1, made[-1].length + run.length)
        else:
            made.append(run)
    return tuple(made)


@functools.lru_cache(256)
def _rows(layout: Layout, rank: int) -> Tensor:
    pieces, begin = [torch.empty(0, dtype=torch.int64, device="cpu")], 0
    for runs, length in zip(layout.runs(rank), layout.lengths, strict=True):
        pieces += [begin + run.start + run.step * torch.arange(run.length, device="cpu") for run in runs]
        begin += length
    return torch.cat(pieces)


@functools.lru_cache(256)
def gathered_order(layout: Layout, ranks: int, width: int, device: torch.device) -> Tensor | None:
    """Places of the rows of all sequences, in order, among those of `ranks` processes with room for `width` each.

    None where they are in order already.
    """
    rows = torch.cat([layout.rows(rank) for rank in range(ranks)])
    places = torch.cat([rank * width + torch.arange(layout.count(rank), device="cpu") for rank in range(ranks)])
    order = places[rows.argsort()]
    in_order = ranks * width == len(order) and torch.equal(order, torch.arange(len(order), device="cpu"))
    return None if in_order else order.to(device)


def check_placement(placement: Any) -> None:
    if placement not in PLACEMENTS:
        raise ArgumentError(f"placement: was {placement!r}, must be one of {', '.join(map(repr, PLACEMENTS))}")


def lengths_of(cu_seqlens: Tensor | Sequence[int]) -> tuple[int, ...]:
    """Lengths of packed sequences; ArgumentError for what are no starts."""
    starts = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else list(cu_seqlens)
    lengths = tuple(int(end) - int(begin) for begin, end in itertools.pairwise(starts))
    if len(starts) < 2 or starts[0] != 0 or min(lengths) < 0:
        raise ArgumentError(
            f"cu_seqlens: was {starts[:8]}{'...' if len(starts) > 8 else ''}, must be the starts of whole sequences, 0 "
            "first, rising, and the end"
        )
    return lengths


def where(group: Any, rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world): what was said, else of the group."""
    if (rank is None) != (world is None):
        raise ArgumentError(f"rank: was {rank} and world {world}, must both be given, or neither and a group be there")
    if rank is None or world is None:
        check_group()
        return dist.get_rank(group), dist.get_world_size(group)
    if not 0 <= rank < world:
        raise ArgumentError(f"rank: was {rank}, must be at least 0 and below {world}, the processes")
    return rank, world


def check_group() -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError("group: there was none, must be made first: torch.distributed.init_process_group(...)")


def _layout(
    placement: str, length: int, world: int, cu_seqlens: Tensor | Sequence[int] | None, name: str = "x"
) -> Layout:
    check_placement(placement)
    if cu_seqlens is None:
        return Layout(placement, (length,), world)
    lengths = lengths_of(cu_seqlens)
    if sum(lengths) != length:
        raise ArgumentError(f"{name}: had {length} rows, must have {sum(lengths)}, the end of cu_seqlens")
    return Layout(placement, lengths, world, packed=True)


def shard(
    x: Tensor,
    *,
    placement: str = "contiguous",
    dim: int = 1,
    group: Any = None,
    rank: int | None = None,
    world: int | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """The part of a tensor that a process holds: a new tensor, differentiable.

    x: any dtype and shape, whole along dim; tokens, labels, positions and hidden states alike. cu_seqlens: starts of
    packed sequences along dim, and the end. rank and world: those of the group where None, so that without a group one
    process can make the parts of all. ArgumentError for a placement, a dim or cu_seqlens that cannot be.
    """
    rank, world = where(group, rank, world)
    _check_dim(x, dim)
    layout = _layout(placement, x.shape[dim], world, cu_seqlens)
    return x.index_select(dim, layout.rows(rank).to(x.device))


def unshard(
    x: Tensor,
    *,
    placement: str = "contiguous",
    dim: int = 1,
    group: Any = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """The whole of what every process of a group holds a part of, in each of them: a new tensor without a gradient.

    x: this process's part, as `shard` gives it; lengths may differ by what W leaves over. ArgumentError for one that
    requires a gradient: compute losses on parts, of labels that `shard` has cut. Every process must call it.
    """
    from .agree import agree

    _, world = where(group, None, None)
    _check_dim(x, dim)
    if x.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            "x: requires a gradient, which unshard has not: detach it, or compute the loss on parts, with shard(labels)"
        )
    check_placement(placement)
    dim %= x.dim()
    shape = [*x.shape[:dim], -1, *x.shape[dim + 1 :]]
    mine = {"placement": placement, "dtype": str(x.dtype), "shape": str(shape), "rows": x.shape[dim]}
    said = agree(group, "unshard", mine, own=("rows",))
    layout = _layout(placement, sum(one["rows"] for one in said), world, cu_seqlens)
    check_rows(layout, said)
    moved = x.movedim(dim, 0).contiguous()
    width = max(layout.count(one) for one in range(world))
    parts = gather_rows(moved, width, group, world)
    order = gathered_order(layout, world, width, x.device)
    return (parts if order is None else parts.index_select(0, order)).movedim(0, dim)


def check_rows(layout: Layout, said: list[dict[str, Any]]) -> None:
    """ArgumentError in every process where the rows of one are not those of its placement."""
    had, wanted = [one["rows"] for one in said], [layout.count(rank) for rank in range(len(said))]
    if had != wanted:
        raise ArgumentError(
            f"placement: {layout.placement}, of {layout.total} rows over {layout.world} processes: these had {had} "
            f"rows, must have {wanted}: cut tensors with tilekiln.torch.distributed.shard"
        )


def gather_rows(x: Tensor, width: int, group: Any, world: int) -> Tensor:
    """(world width, ...): the rows of all processes, each with room for `width`."""
    if len(x) != width:
        x = torch.cat([x, x.new_zeros(width - len(x), *x.shape[1:])])
    made = x.new_empty(world * width, *x.shape[1:])
    if world == 1:
        return made.copy_(x)
    gather_into(made, x, group=group)
    return made


def positions(
    seqlen: int | None = None,
    *,
    placement: str = "contiguous",
    group: Any = None,
    rank: int | None = None,
    world: int | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """int64 (rows of this process): the position in its sequence of each row, for rotary embeddings and masks.

    seqlen: of the whole sequence; or cu_seqlens of packed ones, whose positions each begin at 0.
    """
    rank, world = where(group, rank, world)
    if (seqlen is None) == (cu_seqlens is None):
        raise ArgumentError(f"seqlen: was {seqlen}, must be given, or cu_seqlens, not both")
    lengths = lengths_of(cu_seqlens) if cu_seqlens is not None else (int(seqlen or 0),)
    every = torch.cat([torch.arange(length, device="cpu") for length in lengths])
    return shard(every, placement=placement, dim=0, rank=rank, world=world, cu_seqlens=cu_seqlens)


def shard_cu_seqlens(
    cu_seqlens: Tensor | Sequence[int],
    *,
    placement: str = "contiguous",
    group: Any = None,
    rank: int | None = None,
    world: int | None = None,
) -> Tensor:
    """int32 (sequences + 1): starts of a process's parts of packed sequences in what it holds, and the end; on the CPU.

    Parts of a sequence may be empty. Attention of this package takes cu_seqlens of the whole, not these.
    """
    rank, world = where(group, rank, world)
    check_placement(placement)
    layout = Layout(placement, lengths_of(cu_seqlens), world, packed=True)
    return torch.tensor(layout.cu_seqlens(rank), dtype=torch.int32, device="cpu")


def _check_dim(x: Tensor, dim: int) -> None:
    if not -x.dim() <= dim < x.dim():
        raise ArgumentError(f"dim: was {dim}, must be a dimension of x, which has {x.dim()}")
