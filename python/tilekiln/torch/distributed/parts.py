# SPDX-License-Identifier: MIT
"""Calls of which attention between two processes' rows is made: blocks of queries and keys, and the mask in each.

A mask of a whole sequence is a band: query i sees key j where -left <= j - i <= right, a side that is None without
bound, and with sink_size the first columns whatever `left` is. Between rows a, a + w, ... and b, b + w, ... it is a
band again, of j - i in units of w, shifted by (a - b) / w. What it hides wholly is no call, and what it hides of the
ends of a block is cut off, so that the band of a call always touches its first rows and columns.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from .placement import Layout, Run


class Mask(NamedTuple):
    """Of whole sequences."""

    left: int | None = None
    right: int | None = None
    sink_size: int = 0

    @property
    def purely_causal(self) -> bool:
        return self.left is None and self.right == 0


class Part(NamedTuple):
    """Rows begin to end of queries and keys that are here; key j is seen by query i where -left <= j - i <= right."""

    q: tuple[int, int]
    k: tuple[int, int]
    left: int | None
    right: int | None

    @property
    def full(self) -> bool:
        return self.left is None and self.right is None

    @property
    def scores(self) -> float:
        """Scores that are seen, nearly: for balance and predictions."""
        n, m = self.q[1] - self.q[0], self.k[1] - self.k[0]
        hidden = 0.0
        if self.right is not None:  # row i sees columns up to i + right
            hidden += sum_of_steps(n, m - 1 - self.right)
        if self.left is not None:  # and from i - left
            hidden += sum_of_steps(m, n - 1 - self.left)
        return n * m - hidden

    def arguments(self) -> dict[str, Any]:
        """The mask in the words of `Library.fmha_fwd`."""
        if self.full:
            return {}
        later = (self.k[1] - self.k[0]) - (self.q[1] - self.q[0])
        bottom = (
            None if self.left is None else self.left + later,
            None if self.right is None else self.right - later,
        )
        if all(side is None or side >= 0 for side in bottom):
            if bottom == (None, 0):
                return {"causal": True}
            return {"window": tuple(-1 if side is None else side for side in bottom)}
        window = tuple(-1 if side is None else side for side in (self.left, self.right))
        return {"window": window, "mask_origin": "top_left"}


def sum_of_steps(rows: int, first: int) -> float:
    """first + (first - 1) + ... over `rows` rows, none below 0."""
    if first <= 0:
        return 0.0
    count = min(rows, first)
    return count * (2 * first - count + 1) / 2


class Call(NamedTuple):
    """Parts with the same mask, one for a sequence of packed ones, that no two rows share."""

    parts: tuple[Part, ...]

    @property
    def scores(self) -> float:
        return sum(part.scores for part in self.parts)


@functools.lru_cache(8192)
def calls_between(queries: Layout, rank: int, keys: Layout, source: int, mask: Mask) -> tuple[Call, ...]:
    """The calls of `rank`'s queries over the keys that `source` holds; () where no query sees one."""
    every: list[list[Part]] = []
    q_begin = k_begin = 0
    for q_runs, k_runs in zip(queries.runs(rank), keys.runs(source), strict=True):
        every.append(_parts(q_runs, k_runs, mask, q_begin, k_begin))
        q_begin += sum(run.length for run in q_runs)
        k_begin += sum(run.length for run in k_runs)
    calls: list[tuple[Any, list[Part]]] = []
    for parts in every:
        taken: set[int] = set()
        for part in parts:
            kind = tuple(sorted(part.arguments().items()))
            place = next((i for i, one in enumerate(calls) if one[0] == kind and i not in taken), None)
            if place is None:
                place = len(calls)
                calls.append((kind, []))
            taken.add(place)
            calls[place][1].append(part)
    return tuple(Call(tuple(parts)) for _, parts in calls)


def _parts(q_runs: tuple[Run, ...], k_runs: tuple[Run, ...], mask: Mask, q_begin: int, k_begin: int) -> list[Part]:
    """Of one sequence."""
    rise = len(q_runs) == 1 or all(run.step == 1 for run in q_runs)  # so the order of places is that of positions
    if mask.purely_causal and q_runs == k_runs and q_runs and rise:
        end = sum(run.length for run in q_runs)
        return [Part((q_begin, q_begin + end), (k_begin, k_begin + end), None, 0)]
    made = []
    at_q = q_begin
    for q in q_runs:
        at_k = k_begin
        for k in k_runs:
            sinks = max(0, min(k.length, -(-(mask.sink_size - k.start) // k.step))) if mask.left is not None else 0
            for first, last, left in ((0, sinks, None), (sinks, k.length, mask.left)):
                part = _between(q, Run(k.start + first * k.step, k.step, last - first), left, mask.right)
                if part is not None:
                    made.append(_moved(part, at_q, at_k + first))
            at_k += k.length
        at_q += q.length
    return _joined(_joined(made, "q", "k"), "k", "q")


def _moved(part: Part, q: int, k: int) -> Part:
    return part._replace(q=(part.q[0] + q, part.q[1] + q), k=(part.k[0] + k, part.k[1] + k))


def _between(q: Run, k: Run, left: int | None, right: int | None) -> Part | None:
    """Of two runs of the same step, counted from their beginnings; None where nothing is seen."""
    n, m, step, apart = q.length, k.length, q.step, q.start - k.start
    low = None if left is None else -((left - apart) // step)  # the ceiling of (apart - left) / step
    high = None if right is None else (right + apart) // step
    first_q = first_k = 0
    if low is not None and low > 0:
        first_k, m = low, m - low
        low, high = 0, None if high is None else high - low
    if high is not None and high < 0:
        first_q, n = -high, n + high
        low, high = None if low is None else low - high, 0
    if low is not None:
        n = min(n, m - low)
    if high is not None:
        m = min(m, n + high)
    if n <= 0 or m <= 0:
        return None
    return Part(
        (first_q, first_q + n),
        (first_k, first_k + m),
        None if low is None or -low >= n - 1 else -low,
        None if high is None or high >= m - 1 else high,
    )


def _joined(parts: list[Part], same: str, along: str) -> list[Part]:
    """Full parts of the same rows on one side made one where those of the other side follow each other."""
    made: list[Part] = []
    for part in sorted(parts, key=lambda one: (getattr(one, same), getattr(one, along))):
        before = made[-1] if made else None
        if (
            before is not None
            and before.full
            and part.full
            and getattr(before, same) == getattr(part, same)
            and getattr(before, along)[1] == getattr(part, along)[0]
        ):
            ends: Any = {along: (getattr(before, along)[0], getattr(part, along)[1])}
            made[-1] = before._replace(**ends)
        else:
            made.append(part)
    return made


@functools.lru_cache(1024)
def last_step(queries: Layout, keys: Layout, source: int, world: int, mask: Mask) -> int:
    """The last step of a ring at which the keys of `source`, which are then `step` ranks further, are wanted."""
    wanted = (
        step for step in reversed(range(world)) if calls_between(queries, (source + step) % world, keys, source, mask)
    )
    return next(wanted, 0)
