# SPDX-License-Identifier: MIT
"""The ring: keys and values go from neighbour to neighbour while those that are here are computed.

Of W processes each sends what it has to the next one, W - 1 times (Liu et al., Ring Attention, 2023). Keys travel no
further than the last process that sees them, by `Mask` and layout; what no query sees is not computed. In the backward
keys travel again, their gradients behind them, in fp32, and home from where they were last wanted: every process adds
in the same order in every run.
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

    def __init__(self, ring: Ring, gives: list[tuple[Tensor, int]], takes: list[tuple[Tensor, int]]) -> None:
        self._keep = [one.contiguous() for one, _ in gives]  # until they have gone
        calls = [
            dist.P2POp(dist.isend, one, ring.peer(rank), ring.group)
            for one, (_, rank) in zip(self._keep, gives, strict=True)
            if one.numel()
        ]
        calls += [dist.P2POp(dist.irecv, one, ring.peer(rank), ring.group) for one, rank in takes if one.numel()]
        with record_function("tilekiln.ring.send"):
            self._works = dist.batch_isend_irecv(calls) if calls else []
        if not ring.overlap:
            self.wait()

    def wait(self) -> None:
        with record_function("tilekiln.ring.wait"):  # what of a transfer is not hidden, as a profiler shows it
            for work in self._works:
                work.wait()
        self._works = []


def _pass_keys(ring: Ring, here: list[Tensor], step: int) -> tuple[Transfer, list[Tensor]]:
    """Send on the keys of a step where they are wanted further, and take those of the next step."""
    gives = [(one, (ring.rank + 1) % ring.size) for one in here] if step < ring.last(ring.source(step)) else []
    source = ring.source(step + 1)
    coming = step < ring.last(source)
    into = [one.new_empty(ring.shape(one, source)) for one in here] if coming else here
    takes = [(one, (ring.rank - 1) % ring.size) for one in into] if coming else []
    return Transfer(ring, gives, takes), into


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
        dq: Tensor | None = None
        here = [k, v]
        home: list[Tensor] = []
        travelling: tuple[Transfer, list[Tensor]] | None = None
        for step in range(ring.steps):
            passed = _pass_keys(ring, here, step) if step + 1 < ring.steps else None
            sums: list[Tensor | None] = [dq, None, None]
            if step <= ring.last(ring.source(step)):
                for call in ring.calls(step):
                    add_gradients(call, (dout, q, out, lse), here[0], here[1], ring.options["backward"], sums)
            dq, made = sums[0], [zeros(x) if one is None else one for x, one in zip(here, sums[1:], strict=True)]
            if travelling is not None:
                travelling[0].wait()
                for one, before in zip(made, travelling[1], strict=False):
                    one.add_(before)
            travelling, home = _pass_gradients(ring, made, (k, v), step, home)
            if passed is not None:
                passed[0].wait()
                here = passed[1]
        if travelling is not None:
            travelling[0].wait()
        gradients = torch.zeros_like(q) if dq is None else dq.to(q.dtype), home[0].to(k.dtype), home[1].to(v.dtype)
        return (*gradients, d_sink(sink, dout, out, lse) if ctx.needs_input_grad[3] else None, None)


def _pass_gradients(
    ring: Ring, made: list[Tensor], like: tuple[Tensor, Tensor], step: int, home: list[Tensor]
) -> tuple[tuple[Transfer, list[Tensor]], list[Tensor]]:
    """Send on the gradients of the keys of a step, or home, where none wants the keys further; take others' likewise.

    Returns the transfer with what the next step adds to, and the gradients that are home, or on their way.
    """
    source, before = ring.source(step), ring.source(step + 1)
    gives, takes, coming = [], [], []
    if step < ring.last(source):
        gives = [(one, (ring.rank + 1) % ring.size) for one in made]
    elif step == ring.last(source) and step:
        gives = [(one, source) for one in made]
    elif step == ring.last(source):
        home = made
    if step < ring.last(before):
        coming = [one.new_empty(ring.shape(one, before)) for one in made]
        takes = [(one, (ring.rank - 1) % ring.size) for one in coming]
    if step and step == ring.last(ring.rank):
        home = [torch.empty(one.shape, dtype=torch.float32, device=one.device) for one in like]
        takes += [(one, (ring.rank + step) % ring.size) for one in home]
    return (Transfer(ring, gives, takes), coming), home
