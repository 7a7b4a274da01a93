# SPDX-License-Identifier: MIT
"""The choice among the ways to attend, by a model of what was measured between these processes and in them.

Measured once for each group: the time of a transfer to a neighbour, of a gather and of an exchange, as latency and
bytes a second, and once for each kind of call the seconds of a score. The slowest process counts, so that all have the
same numbers, and choose the same.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tilekiln.torch import lower_calls

from .agree import agree
from .gather import pieces_of
from .parts import Mask, calls_between, last_step
from .placement import Layout, gather_into

SMALL, LARGE = 1 << 16, 1 << 22  # bytes that a process gives
ROWS = {"cpu": 1024, "cuda": 8192}  # at most, of the call that is timed for a score
BACKWARD = {"cpu": 2.5, "cuda": 3.7}  # times of a forward
ROOM = 0.2  # of a GPU's free memory that gathered keys may take


class Link(NamedTuple):
    """Seconds of a transfer of `bytes` that each process gives: latency + bytes / rate."""

    latency: float
    rate: float

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.rate if nbytes else 0.0


class Measured(NamedTuple):
    """Between the processes of a group."""

    neighbour: Link
    gather: Link
    exchange: Link


class Plan(NamedTuple):
    """A way, the seconds that the model gives it and the others, and why it was chosen, in words."""

    method: str
    heads: int | None
    seconds: dict[str, float]
    why: str


def _timed(call: Callable[[], Any], device: torch.device, repeat: int = 3) -> float:
    """Seconds of a call: the least of some, after one."""
    times = []
    for _ in range(repeat + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _slowest(group: Any, what: str, seconds: list[float]) -> list[float]:
    every = agree(group, what, {"seconds": seconds}, own=("seconds",))
    return [max(one["seconds"][i] for one in every) for i in range(len(seconds))]


_links: dict[Any, Measured] = {}
_rates: dict[Any, float] = {}
_plans: dict[Any, Plan] = {}


def measured(group: Any, device: torch.device) -> Measured:
    """Links of a group, measured the first time: some 50 MB go around. Every process must call it."""
    key = (group, id(dist.group.WORLD), device.type)
    if key not in _links:
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        its: Any = dist.group.WORLD if group is None else group
        after, before = (dist.get_global_rank(its, (rank + way) % world) for way in (1, -1))

        def neighbour(given: Tensor, come: Tensor) -> None:
            ops = [dist.P2POp(dist.isend, given, after, group), dist.P2POp(dist.irecv, come, before, group)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        def gather(given: Tensor, come: Tensor) -> None:
            gather_into(come, given, group=group)

        def exchange(given: Tensor, come: Tensor) -> None:
            dist.all_to_all_single(come, given, group=group)

        seconds = []
        for way in (neighbour, gather, exchange):
            for nbytes in (SMALL, LARGE):
                given = torch.zeros(nbytes // 4 // world * world, device=device)
                come = given.new_empty(len(given) * (world if way is gather else 1))
                seconds.append(_timed(functools.partial(way, given, come), device))
        slow = _slowest(group, "links measured", seconds)
        links = []
        for small, large in zip(slow[::2], slow[1::2], strict=True):
            rate = (LARGE - SMALL) / max(large - small, 1e-9)
            links.append(Link(max(small - SMALL / rate, 1e-6), rate))
        _links[key] = Measured(*links)
    return _links[key]


def _rate(group: Any, q: Tensor, k: Tensor, v: Tensor, rows: int) -> float:
    """Seconds of a score of one head, of calls of this kind, measured the first time."""
    key = (group, id(dist.group.WORLD), q.device.type, q.dtype, q.shape[-2:], k.shape[-2:], v.shape[-1], q.dim())
    if key not in _rates:
        rows = min(ROWS[q.device.type], max(64, rows))
        cut = [torch.randn(1, rows, *one.shape[-2:], device=q.device).to(q.dtype) for one in (q, k, v)]
        mine = cut[0], cut[1], cut[2]
        seconds = _timed(lambda: lower_calls.run_forward(*mine, {"return_lse": True}), q.device)
        _rates[key] = _slowest(group, "score measured", [seconds])[0] / (rows * rows * q.shape[-2])
    return _rates[key]


def plan_of(group: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout, mask: Mask, learns: bool) -> Plan:
    """The plan for arrays like these; every process must call it, and gets the same."""
    world = layout.world
    if world == 1:
        return Plan("ring", None, {}, "ring: of one process, which is one call")
    key = (
        group, id(dist.group.WORLD), q.device.type, q.dtype, q.shape[:-3], q.shape[-2:], k.shape[-2:], v.shape[-1],
        layout, mask, learns,
    )  # fmt: skip
    if key not in _plans:
        links, rate = measured(group, q.device), _rate(group, q, k, v, layout.total // world)  # the same in all
        model = _Model(q, k, v, layout, mask, learns, links, rate)
        seconds = {"ring": model.ring(), "gather": model.gather(), "heads": model.exchange(world)}
        seconds |= {f"ring of {heads}": model.exchange(heads) for heads in range(2, world) if world % heads == 0}
        known = {name: one for name, one in seconds.items() if one is not None}
        left = [] if seconds["heads"] is not None else [f"{world} processes cannot share the heads"]
        if q.is_cuda and not _room(group, model, q):
            known.pop("gather")
            left.append("gathered keys have no room")
        best = min(known, key=lambda name: known[name])
        best = agree(group, "plan", {"best": best}, own=("best",))[0][
            "best"
        ]  # rank 0's, as hosts may round differently
        others = ", ".join(f"{name} {one * 1e3:.3g} ms" for name, one in known.items() if name != best)
        why = f"{best}: {known[best] * 1e3:.3g} ms by the model, {others}{'; ' if left else ''}{'; '.join(left)}"
        method, _, count = best.partition(" of ")
        _plans[key] = Plan(method, int(count) if count else None, known, why)
    return _plans[key]


def _room(group: Any, model: _Model, q: Tensor) -> bool:
    enough = model.gathered_bytes() < ROOM * torch.cuda.mem_get_info(q.device)[0]
    return all(one["room"] for one in agree(group, "memory seen", {"room": enough}, own=("room",)))


class _Model:
    """Seconds of the ways for one call."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, mask: Mask, learns: bool, links: Measured, rate: float
    ) -> None:
        self.layout, self.mask, self.learns, self.links = layout, mask, learns, links
        self.nhead_q, self.nhead_k, self.world = q.shape[-2], k.shape[-2], layout.world
        batch = self.batch = q.shape[:-3].numel()
        self.score = rate * batch * self.nhead_q * (1 + BACKWARD[q.device.type] * learns)
        self.row_q = batch * self.nhead_q * (q.shape[-1] + v.shape[-1]) * q.element_size()
        self.row_k = batch * self.nhead_k * (k.shape[-1] + v.shape[-1]) * q.element_size()
        self.on_gpu = q.is_cuda
        self.row_dk = self.row_k * 4 // q.element_size() if learns else 0

    def _computed(self, layout: Layout, rank: int, source: int) -> float:
        scores = sum(call.scores for call in calls_between(layout, rank, layout, source, self.mask))
        return scores * self.score

    def ring(self, layout: Layout | None = None, share: float = 1.0) -> float:
        """Steps, of which each takes the longer of what is computed and what travels; share: of the heads."""
        layout = layout or self.layout
        world = layout.world // layout.joined
        last = max(last_step(layout, layout, source, world, self.mask) for source in range(world))
        rows = max(layout.count(rank) for rank in range(world))
        travels = self.links.neighbour.seconds(rows * self.row_k * share) * (1 + 2 * self.learns)
        total = 0.0
        for step in range(last + 1):
            computed = max(self._computed(layout, rank, (rank - step) % world) for rank in range(world)) * share
            total += max(computed, travels if step < last or (self.learns and last) else 0.0)
        return total

    def gather(self) -> float:
        """One piece of the heads is waited for, the others come meanwhile."""
        pieces = pieces_of(self.layout, self.nhead_q, self.nhead_k, self.batch)
        rows = max(self.layout.count(rank) for rank in range(self.world))
        piece = self.links.gather.seconds(rows * self.row_k / pieces)
        behind = piece + self.links.exchange.seconds(rows * self.world * self.row_dk / pieces) if self.learns else 0.0
        whole = self.layout.whole if self.layout.placement != "striped" else None
        computed = 0.0
        for rank in range(self.world):
            if whole is not None:
                scores = sum(one.scores for one in calls_between(self.layout, rank, whole, 0, self.mask))
                computed = max(computed, scores * self.score)
            else:
                computed = max(computed, sum(self._computed(self.layout, rank, one) for one in range(self.world)))
        shown = behind * pieces if self.on_gpu else behind
        return piece + shown + max(computed, (piece + (0.0 if self.on_gpu else behind)) * (pieces - 1))

    def gathered_bytes(self) -> float:
        return self.layout.total * (self.row_k + 2 * self.row_dk) / 2

    def exchange(self, heads: int) -> float | None:
        """Heads over so many neighbours, and rings between them; None where they cannot share the heads."""
        spread = max(1, heads // self.nhead_k) if heads % self.nhead_k == 0 else 1
        if self.nhead_q % heads or self.nhead_k * spread % heads:
            return None
        layout = self.layout
        joined = Layout(layout.placement, layout.lengths, layout.world, layout.packed, heads)
        rows = max(layout.count(rank) for rank in range(self.world))
        given = rows * (self.row_q + self.row_k * spread) * (1 + self.learns)
        ring = self.ring(joined, 1 / heads)
        return ring + 2 * self.links.exchange.latency + self.links.exchange.seconds(given)
