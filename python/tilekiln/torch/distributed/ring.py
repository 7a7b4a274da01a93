# SPDX-License-Identifier: MIT
"""The ring: keys and values go from neighbour to neighbour while those that are here are computed.

Of W processes each sends what it has to the next one, W - 1 times (Liu et al., Ring Attention, 2023). Keys travel no
further than the last process that sees them, by `Mask` and layout; what no query sees is not computed. In the backward
keys travel again, and gradients from each process straight home, where they are added in fp32, in the order of steps:
the same in every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.profiler import record_function

from .agree import agree
from .compute import Sum, add_gradients, added, d_sink, gradients_of, rows_of, zeros
from .links import beside
from .parts import Mask, calls_between, last_step
from .placement import Layout


class Ring(NamedTuple):
    """The processes around, what they hold, and what the caller wants."""

    group: Any
    rank: int
    size: int
    layout: Layout
    mask: Mask
    options: dict[str, Any]
    overlap: bool
    everyone: Any
    """The group of the call, of which a ring in two dimensions has a part."""
    dtype: torch.dtype

    def calls(self, step: int) -> Any:
        return calls_between(self.layout, self.rank, self.layout, self.source(step), self.mask)

    def source(self, step: int, of: int | None = None) -> int:
        """The process whose keys are here at a step, or in another one."""
        return ((self.rank if of is None else of) - step) % self.size

    def last(self, source: int) -> int:
        return last_step(self.layout, self.layout, source, self.size, self.mask)

    @property
    def steps(self) -> int:
        return 1 + max(self.last(source) for source in range(self.size))

    def peer(self, rank: int) -> int:
        """Its number in the world, which is how torch.distributed names a peer."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def shape(self, like: Tensor, source: int) -> list[int]:
        """Of keys that `source` holds."""
        return [*like.shape[:-3], self.layout.count(source), *like.shape[-2:]]


class Transfer:
    """Tensors on their way to one process, and others on theirs here."""

    def __init__(
        self, ring: Ring, gives: list[tuple[Tensor, int]], takes: list[tuple[Tensor, int]], few: bool = False
    ) -> None:
        """few: SMs, where a kernel of the backward runs meanwhile."""
        self._keep = [one.contiguous() for one, _ in gives]  # until they have gone
        links = beside(ring.group, few and ring.overlap)
        calls = [
            dist.P2POp(dist.isend, one, ring.peer(rank), links)
            for one, (_, rank) in zip(self._keep, gives, strict=True)
            if one.numel()
        ]
        calls += [dist.P2POp(dist.irecv, one, ring.peer(rank), links) for one, rank in takes if one.numel()]
        with record_function("tilekiln.ring.send"):
            self._works = dist.batch_isend_irecv(calls) if calls else []
        if not ring.overlap:
            self.wait()

    def wait(self) -> None:
        with record_function("tilekiln.ring.wait"):  # what of a transfer is not hidden, as a profiler shows it
            for work in self._works:
                work.wait()
        self._works = []


def _pass_keys(ring: Ring, here: list[Tensor], step: int, few: bool = False) -> tuple[Transfer, list[Tensor]]:
    """Send on the keys of a step where they are wanted further, and take those of the next step."""
    gives = [(one, (ring.rank + 1) % ring.size) for one in here] if step < ring.last(ring.source(step)) else []
    source = ring.source(step + 1)
    coming = step < ring.last(source)
    into = [one.new_empty(ring.shape(one, source)) for one in here] if coming else here
    takes = [(one, (ring.rank - 1) % ring.size) for one in into] if coming else []
    return Transfer(ring, gives, takes, few), into


class RingAttention(torch.autograd.Function):
    """(out, lse) of this process's queries over the keys of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, ring: Ring) -> Any:
        sums = Sum(q, v.shape[-1])
        here = [k, v]
        for step in range(ring.steps):
            passed = _pass_keys(ring, here, step) if step + 1 < ring.steps else None
            for call in ring.calls(step):
                sums.attend(call, q, here[0], here[1], ring.options["forward"])
            if passed is not None:
                passed[0].wait()
                here = passed[1]
        out, lse = sums.made(sink)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Any) -> Any:
        ring: Ring = ctx.ring
        q, k, v, sink, out, lse = ctx.saved_tensors
        agree(ring.everyone, "backward of a ring", {"dtype": str(dout.dtype), "mask": str(ring.mask)})
        dout = dout.contiguous()
        saved, options = (dout, q, out, lse), ring.options["backward"]
        dq: Tensor | None = None
        here, own = [k, v], [zeros(k), zeros(v)]
        home: _Home | None = None
        for step in range(ring.steps):
            passed = _pass_keys(ring, here, step, few=True) if step + 1 < ring.steps else None
            calls = ring.calls(step)
            sums: list[Tensor | None] = [dq, None, None]
            if step and len(calls) == 1:  # which goes home as the kernel makes it
                made = gradients_of(calls[0], saved, here[0], here[1], options)
                sums = [added(dq, rows_of(calls[0], "q", q.device), made[0], q), *made[1:]]
            else:
                for call in calls:
                    add_gradients(call, saved, here[0], here[1], options, sums)
            dq, parts = sums[0], [one for one in sums[1:] if one is not None]
            if home is not None:
                home.add_to(own)
            if step:
                home = _Home(ring, parts, own, step)
            else:
                own = parts or own
            if passed is not None:
                passed[0].wait()
                here = passed[1]
        if home is not None:
            home.add_to(own)
        gradients = torch.zeros_like(q) if dq is None else dq.to(q.dtype), own[0].to(k.dtype), own[1].to(v.dtype)
        return (*gradients, d_sink(sink, dout, out, lse) if ctx.needs_input_grad[3] else None, None)


class _Home:
    """Gradients of the keys of a step on their way to the process that holds these, and others' here.

    Those of one call travel in its dtype and of its rows alone, sums of several in fp32 and of all rows.
    """

    def __init__(self, ring: Ring, parts: list[Tensor], own: list[Tensor], step: int) -> None:
        source, peer = ring.source(step), (ring.rank + step) % ring.size
        its = calls_between(ring.layout, peer, ring.layout, ring.rank, ring.mask)
        self._rows = rows_of(its[0], "k", own[0].device) if len(its) == 1 else None
        count = own[0].shape[-3] if self._rows is None else self._rows.count
        dtype = torch.float32 if self._rows is None else ring.dtype
        shapes = [[*one.shape[:-3], count, *one.shape[-2:]] for one in own if its]
        self._into = [torch.empty(shape, dtype=dtype, device=own[0].device) for shape in shapes]
        takes = [(one, peer) for one in self._into]
        self._transfer = Transfer(ring, [(one, source) for one in parts], takes, few=step + 1 < ring.steps)

    def add_to(self, own: list[Tensor]) -> None:
        """Add what has come, in the order of steps."""
        self._transfer.wait()
        for one, more in zip(own, self._into, strict=False):
            if self._rows is None:
                one.add_(more)
            else:
                self._rows.add(one, more)
