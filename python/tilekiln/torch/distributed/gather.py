# SPDX-License-Identifier: MIT
"""Keys and values gathered: each process gets those of all, some heads at a time, and attends in few large calls.

While some heads are computed the next ones come. Nothing is merged for placements of whole chunks, as each block of
queries sees its keys in one call. dK and dV go home by an exchange and are added in fp32 in the order of ranks, so that
equal calls give equal bits. Memory: keys and values of the whole sequence, for two pieces of the heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.profiler import record_function

from .agree import agree
from .compute import Sum, add_gradients, d_sink, zeros
from .links import beside
from .parts import Call, Mask, calls_between
from .placement import Layout, gather_into, gathered_order

PIECES = 4
"""Pieces of the heads of keys, at most: all but the first come while another is computed."""
PIECE_ROWS = 1 << 17
"""Rows of queries, over heads, that a piece has at least: with fewer a GPU's CTAs do not come out even."""


def pieces_of(layout: Layout, nhead_q: int, nhead_k: int, batch: int) -> int:
    """Pieces of a call, the same in every process: as many as divide the heads of keys."""
    most = min(PIECES, nhead_k, max(1, batch * layout.total // layout.world * nhead_q // PIECE_ROWS))
    return next(count for count in range(most, 0, -1) if nhead_k % count == 0)


class Gather(NamedTuple):
    """The processes, what they hold, and what the caller wants."""

    group: Any
    rank: int
    size: int
    layout: Layout
    mask: Mask
    options: dict[str, Any]
    overlap: bool = True

    @property
    def width(self) -> int:
        return max(self.layout.count(rank) for rank in range(self.size))

    @property
    def in_order(self) -> bool:
        """Are gathered keys put in order? Strides are not: a band between them has gaps."""
        return self.layout.placement != "striped"

    def calls(self) -> list[tuple[int, tuple[Call, ...]]]:
        """Calls over gathered keys, and the row at which their keys begin."""
        if self.in_order:
            return [(0, calls_between(self.layout, self.rank, self.layout.whole, 0, self.mask))]
        made = [calls_between(self.layout, self.rank, self.layout, one, self.mask) for one in range(self.size)]
        return [(rank * self.width, calls) for rank, calls in enumerate(made)]

    def rows(self, x: Tensor) -> Tensor:
        """Gathered rows, of keys in order, or of each process with room for the longest."""
        order = gathered_order(self.layout, self.size, self.width, x.device) if self.in_order else None
        return x if order is None else x.index_select(-3, order)

    def back(self, x: Tensor) -> Tensor:
        """The inverse: of rows as `rows` gives them to those of each process with room for the longest."""
        order = gathered_order(self.layout, self.size, self.width, x.device) if self.in_order else None
        if order is None:
            return x
        made = x.new_zeros(*x.shape[:-3], self.size * self.width, *x.shape[-2:])
        return made.index_copy_(-3, order, x)


class _Coming:
    """Keys and values of some heads of all processes, on their way."""

    def __init__(self, gather: Gather, k: Tensor, v: Tensor) -> None:
        self._gather, self._works, self._into, self._keep = gather, [], [], []
        for one in (k, v):
            short = gather.width - one.shape[-3]
            padded = torch.nn.functional.pad(one, (0, 0, 0, 0, 0, short)) if short else one
            self._keep.append(padded.contiguous())
            self._into.append(one.new_empty(gather.size * len(padded), *padded.shape[1:]))
        with record_function("tilekiln.ring.send"):
            for into, one in zip(self._into, self._keep, strict=True):
                self._works.append(gather_into(into, one, group=beside(gather.group), async_op=True))
        if not gather.overlap:
            self._wait()

    def _wait(self) -> None:
        with record_function("tilekiln.ring.wait"):
            for work in self._works:
                work.wait()
        self._works = []

    def come(self) -> list[Tensor]:
        self._wait()
        whole = [one.unflatten(0, (self._gather.size, -1)).movedim(0, -4).flatten(-4, -3) for one in self._into]
        return [self._gather.rows(one) for one in whole]


def _pieces(gather: Gather, q: Tensor, k: Tensor) -> int:
    return pieces_of(gather.layout, q.shape[-2], k.shape[-2], q.shape[:-3].numel())


class GatherAttention(torch.autograd.Function):
    """(out, lse) of this process's queries over the keys of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, gather: Gather) -> Any:
        outs, lses = [], []
        pieces = _pieces(gather, q, k)
        cut = [one.chunk(pieces, -2) for one in (q, k, v)]
        sinks = [None] * pieces if sink is None else sink.chunk(pieces)
        coming = _Coming(gather, cut[1][0], cut[2][0])
        for i in range(pieces):
            keys, values = coming.come()
            if i + 1 < pieces:
                coming = _Coming(gather, cut[1][i + 1], cut[2][i + 1])
            sums = Sum(cut[0][i], v.shape[-1])
            for begin, calls in gather.calls():
                for call in calls:
                    sums.attend(call, cut[0][i], _from(keys, begin), _from(values, begin), gather.options["forward"])
            out, lse = sums.made(sinks[i])
            outs.append(out)
            lses.append(lse)
        out, lse = (torch.cat(outs, -2), torch.cat(lses, -2)) if pieces > 1 else (outs[0], lses[0])
        ctx.gather = gather
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Any) -> Any:
        gather: Gather = ctx.gather
        q, k, v, sink, out, lse = ctx.saved_tensors
        if (
            q.is_cuda
        ):  # whose backward waits for all its CTAs, and collectives beside it hold theirs back: 199 ms, not 130
            gather = gather._replace(overlap=False)
        agree(gather.group, "backward of gathered keys", {"dtype": str(dout.dtype), "mask": str(gather.mask)})
        pieces = _pieces(gather, q, k)
        cut = [one.chunk(pieces, -2) for one in (dout, q, out, lse.unsqueeze(-1), k, v)]
        dq = zeros(q)
        coming = _Coming(gather, cut[4][0], cut[5][0])
        home: _Home | None = None
        both: list[list[Tensor]] = []
        for i, into in enumerate(dq.chunk(pieces, -2)):
            keys, values = coming.come()
            if i + 1 < pieces:
                coming = _Coming(gather, cut[4][i + 1], cut[5][i + 1])
            made = [zeros(one) for one in (keys, values)]
            saved = cut[0][i], cut[1][i], cut[2][i], lse.chunk(pieces, -2)[i]
            for begin, calls in gather.calls():
                sums: list[Tensor | None] = [into, _from(made[0], begin), _from(made[1], begin)]
                for call in calls:
                    add_gradients(
                        call, saved, _from(keys, begin), _from(values, begin), gather.options["backward"], sums
                    )
            sent = _Home(gather, made)
            both += [] if home is None else [home.come()]
            home = sent
        both += [] if home is None else [home.come()]
        dk, dv = (torch.cat([one[side] for one in both], -2).to(x.dtype) for side, x in enumerate((k, v)))
        return dq.to(q.dtype), dk, dv, d_sink(sink, dout, out, lse) if ctx.needs_input_grad[3] else None, None


def _from(x: Tensor, begin: int) -> Tensor:
    return x.narrow(-3, begin, x.shape[-3] - begin) if begin else x


class _Home:
    """Gradients of gathered keys on their way to the processes that hold these."""

    def __init__(self, gather: Gather, made: list[Tensor]) -> None:
        self._gather, self._works, self._into, self._keep = gather, [], [], []
        for one in made:
            rows = gather.back(one).unflatten(-3, (gather.size, gather.width)).movedim(-4, 0).contiguous()
            self._keep.append(rows)
            self._into.append(torch.empty_like(rows))
        with record_function("tilekiln.ring.send"):
            for into, rows in zip(self._into, self._keep, strict=True):
                self._works.append(dist.all_to_all_single(into, rows, group=gather.group, async_op=True))
        if not gather.overlap:
            self._wait()

    def _wait(self) -> None:
        with record_function("tilekiln.ring.wait"):
            for work in self._works:
                work.wait()
        self._works = []

    def come(self) -> list[Tensor]:
        """fp32, added in the order of ranks."""
        self._wait()
        count = self._gather.layout.count(self._gather.rank)
        made = []
        for one in self._into:
            total = one[0]
            for more in one[1:]:
                total = total + more
            made.append(total.narrow(-3, 0, count))
        return made
