# SPDX-License-Identifier: MIT
"""Measures which candidate answers a call fastest, in turn with the untuned call, until that is certain.

In each round every candidate that is left is timed once, the untuned call too, so that what disturbs the machine
disturbs all. A candidate goes when it lost so many rounds to another that chance would do that once in a hundred times
(sign test). That is asked after each round, so a winner must beat the untuned call more surely: once in a thousand.
And by 3 % in the median; else the library's own choice stays. A GPU's calls are timed by its events (gpu.py), others
by their thread's clock or, of several threads, by wall time.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .._generated.tables import OPERATORS
from ..bench.declaration import CALLS
from ..dispatcher.instance import Call
from ..dispatcher.libraries import LibraryInstance, always_of, instances_of, problem_of
from .gpu import Sets, TimedThere, clocks
from .table import Winner, call_key

if TYPE_CHECKING:
    from ..api.library import Library
    from .shapes import Shape

CERTAIN, SURE = 0.01, 0.001
WORTH = 0.97
"""Of the untuned time: less of a gain is no reason to pin a choice."""
SPLITS = (1, 2, 4, 8, 16, 32)


class Candidate(NamedTuple):
    """One way to answer a call: an instance, and settings such as num_splits."""

    id: str
    name: str
    number: int
    settings: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.settings)])


def candidates(
    library: Library, shape: Shape, given: dict[str, Any], threads: tuple[int, ...], device: str = "cpu"
) -> list[Candidate]:
    """Every instance of the main stage that answers on a device, with every number of splits and of threads."""
    there = {one["name"] for one in library.manifest["targets"] if one["backend"] == device}
    problem = problem_of(library, Call(shape.operator, **given))
    for axis, value in always_of(library).get(problem.family, {}).items():
        problem.set(axis, value)
    splits: tuple[int, ...] = ()
    if "num_splits" in CALLS[shape.operator].numbers:
        keys = given["k"].size // (given["k"].shape[-1] * given["k"].shape[-2])
        splits = tuple(count for count in SPLITS if count == 1 or count <= keys // 64)
    # Shapes that differ in capacity alone: the one that the problem fills best.
    least: dict[Any, LibraryInstance] = {}
    for one in instances_of(library, usable_only=True):
        if one.key.target in there and one.key.family == problem.family and one.supports(problem):
            way = (one.key.target, tuple(sorted(one.key.algorithm.items())))
            other = least.get(way)
            if other is None or _capacity(one) < _capacity(other):
                least[way] = one
    found = []
    for one in least.values():
        for split in splits or (0,):
            for count in threads:
                settings = [("num_splits", split)] if split else []
                settings += [("num_threads", count)] if len(threads) > 1 else []
                found.append(Candidate(one.key.id, one.name, one.number, tuple(settings)))
    return found


def _capacity(one: LibraryInstance) -> int:
    return sum(int(one.key.signature[field] or 0) for field in one.choice.holds)


def tune(
    library: Library,
    shape: Shape,
    threads: tuple[int, ...] = (1,),
    rounds: int = 60,
    say: Callable[[str], object] = str,
    device: str = "cpu",
) -> Winner:
    """The winner for a shape; its ratio is 1 and its instance the untuned one where nothing is certainly faster.

    The library takes nothing measured from then on, so that what is compared with is its own choice. device: cpu, cuda
    or hip, where the call runs; ArgumentError where there is none.
    """
    library.tune(None)
    given = shape.arguments(library)
    function, find = getattr(library, shape.operator), getattr(library, f"{shape.operator}_find")
    sets = None if device == "cpu" else Sets(device, shape.operator, function, given)
    there = sets.device.moved(given) if sets else given
    problem = call_key(library, shape.operator, (), there)
    found = find(**there)
    number = found if isinstance(found, int) else found[OPERATORS[shape.operator].main]
    plain = library.instance_name(number)
    ways = candidates(library, shape, given, threads, device)
    chosen = {one: {"instance": one.number, **dict(one.settings)} for one in ways}
    untuned: Timed | TimedThere
    timed: dict[Candidate, Timed | TimedThere]
    if sets:
        untuned = TimedThere(function, sets, {})
        timed = {one: TimedThere(function, sets, chosen[one]) for one in ways}
        best, ratio, count = race(untuned, timed, rounds)
        shape = shape._replace(text=f"{shape.text} on {sets.device.name} ({clocks(sets.device)})")
    else:
        base = {**given, "num_threads": max(threads)}
        clock = time.thread_time if threads == (1,) else time.perf_counter
        with pinned(threads == (1,)):
            untuned = Timed(function, base, clock)
            timed = {one: Timed(function, {**base, **chosen[one]}, clock) for one in ways}
            best, ratio, count = race(untuned, timed, rounds)
    median = statistics.median(untuned.times) * 1e6
    if best is None:
        own = next((one.id for one in ways if one.number == number), "")
        say(f"{shape}: {median:.1f} us, {len(ways)} ways, {count} rounds: as untuned")
        return Winner(*problem, own, plain, {}, round(median, 3), 1.0, plain, count)
    won = statistics.median(timed[best].times) * 1e6
    say(f"{shape}: {won:.1f} us, {ratio:.2f} of {median:.1f} untuned, {len(ways)} ways, {count} rounds: {best}")
    return Winner(*problem, best.id, best.name, dict(best.settings), round(won, 3), round(ratio, 4), plain, count)


class Timed:
    """One way of making a call, and what it took in each round, seconds."""

    def __init__(self, function: Callable[..., Any], given: dict[str, Any], clock: Callable[[], float]) -> None:
        self.function, self.given, self.clock = function, given, clock
        self.times: list[float] = []
        self.repeat = 1
        self.function(**given)
        start = clock()
        self.function(**given)
        self.repeat = max(1, round(0.001 / max(clock() - start, 1e-7)))

    def once(self) -> None:
        """At least a millisecond of calls."""
        start = self.clock()
        for _ in range(self.repeat):
            self.function(**self.given)
        self.times.append((self.clock() - start) / self.repeat)


def race(
    untuned: Timed | TimedThere, ways: Mapping[Candidate, Timed | TimedThere], rounds: int
) -> tuple[Candidate | None, float, int]:
    """The way that certainly beats all others and the untuned one, with its ratio; None where there is none."""
    left = dict(ways)
    for count in range(1, rounds + 1):
        for one in (untuned, *left.values()):
            one.once()
        best = min(left, key=lambda way: statistics.median(left[way].times), default=None)
        if best is None:
            return None, 1.0, count
        for way in [way for way in left if way is not best and _beaten(left[way].times, left[best].times)]:
            del left[way]
        if _beaten(left[best].times, untuned.times):
            del left[best]
        if not left:
            return None, 1.0, count
        ratio = _ratio(left[best].times, untuned.times) if best in left else 1.0
        if len(left) == 1 and best in left and _beaten(untuned.times, left[best].times, SURE):
            return (best, ratio, count) if ratio <= WORTH else (None, 1.0, count)
        # Times that are left are alike, and none is worth a pin.
        if count >= 20 and all(_ratio(one.times, untuned.times) > WORTH for one in left.values()):
            return None, 1.0, count
    # Rounds are over: several may be alike; the best of them stands if it certainly beats the untuned call.
    best = min(left, key=lambda way: statistics.median(left[way].times))
    ratio = _ratio(left[best].times, untuned.times)
    certain = _beaten(untuned.times, left[best].times, SURE) and ratio <= WORTH
    return (best, ratio, rounds) if certain else (None, 1.0, rounds)


def _ratio(times: list[float], others: list[float]) -> float:
    """The median of the ratios of rounds in which both ran."""
    return statistics.median(one / other for one, other in zip(times, others, strict=False))


def _beaten(times: list[float], by: list[float], unlikely: float = CERTAIN) -> bool:
    """Whether `times` lost to `by` more often than chance would have it."""
    rounds = min(len(times), len(by))
    lost = sum(one > other for one, other in zip(times[:rounds], by[:rounds], strict=True))
    chance = sum(math.comb(rounds, k) for k in range(lost, rounds + 1)) / 2**rounds
    return bool(chance < unlikely)


@contextmanager
def pinned(one: bool) -> Iterator[None]:
    """This thread on the processor it is on, while it lasts."""
    if not one:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
