# SPDX-License-Identifier: MIT
"""A cell's figures: the best peer is found in a first pass, then it and Tilekiln are timed in turn, A B A.

One thread of a CPU is timed by its own CPU time, or the process's beside a peer that has threads of its own; more
threads by wall time; a GPU by wall time around calls that are synchronised, so that the host's time is in.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import ours, peers
from .bounds import Bounds, cache_bytes
from .problem import Problem
from .rows import Cell

Call, Clock = Callable[[], Any], Callable[[], float]
LEAST = 0.98
"""A cell fails when two passes both have less of it: the peer's time over ours."""
TIED = 0.92
"""Of the memory bound: where both sides have it, the cell is a tie."""
MOST_OFF = 0.05
"""Of a result: how far a peer's may be from ours. More is another computation, and no peer."""
SLEEP = 0.02
"""Seconds before several threads of a side take their turn: those of PyTorch's OpenMP wait for up to 17 ms without
sleep, on the cores of the other side."""
SAMPLE = 0.003
"""Seconds that one sample spans."""
MOST_COPIES = 24
MOST_BYTES = 6 << 30
FAR, SLOW = 4.0, 0.05
"""Times the best peer so far, of more than SLOW seconds, that a peer's first call may take before it is given up."""
LONG = 5.0
"""Seconds of a peer's first call from which it is sampled once: bf16 by PyTorch on AVX2 takes as long to train."""
ROTATED = ("decode", "linear", "experts", "norm")
"""Phases whose arrays a model finds in memory and not in a cache: its other layers came in between."""


@dataclasses.dataclass
class Figures:
    """Of one cell: seconds of ours and of the best peer, ratios of the passes, and why what has no figure has none."""

    ours: float = math.nan
    peer: float = math.nan
    best: str = ""
    passes: list[float] = dataclasses.field(default_factory=list)
    share: float = math.nan
    bound: str = ""
    all: dict[str, float] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: str = ""

    @property
    def ratio(self) -> float:
        """The peer's time over ours: the better pass, as a cell fails when both are short."""
        return max(self.passes, default=math.nan)

    @property
    def tied(self) -> bool:
        slower = max(self.ours, self.peer)
        return self.bound == "memory" and self.share * self.ours / slower >= TIED

    @property
    def failed(self) -> bool:
        """Refused, or behind the best peer in both passes and not tied at the bound of memory."""
        return bool(self.refused) or (bool(self.passes) and self.ratio < LEAST and not self.tied)


class Contender:
    """Calls of one side, one for each copy of the problem, taken in turn."""

    def __init__(
        self, calls: list[Call], device: str, read: Clock, sleep: float = 0.0, most_seconds: float = math.inf
    ) -> None:
        """sleep: seconds before a sample. RuntimeError where the first call takes more than most_seconds."""
        self.turn, self.device, self.read, self.sleep = itertools.cycle(calls), device, read, sleep
        self.count = 1
        begin = read()
        self.result = calls[0]()
        self.first = read() - begin
        if self.first > most_seconds:
            raise RuntimeError(f"its first call took {self.first:.1f} s, more than {FAR:.0f} times the best peer's")
        for call in calls[1:]:
            call()
        if self.first < LONG:
            self.count = max(1, min(10_000, math.ceil(SAMPLE / max(1e-7, self.sample()))))

    def sample(self) -> float:
        """Seconds a call."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        elif self.sleep:
            time.sleep(self.sleep)
        begin = self.read()
        for _ in range(self.count):
            next(self.turn)()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (self.read() - begin) / self.count


def problems(cell: Cell, device: str) -> list[Problem]:
    """As many copies as the caches do not hold together, where a model finds its arrays in memory."""
    count, size = 1, max(1.0, cell.bytes())
    if cell.phase in ROTATED:
        count = math.ceil(2 * cache_bytes(device) / size)
        count = max(1, min(count, MOST_COPIES, int(MOST_BYTES // size)))
    return [Problem(cell, device, seed) for seed in range(count)]


def difference(ours: Any, theirs: Any) -> float:
    """Norm of the difference of two results over the second's; 0 where a side keeps its result to itself."""
    if isinstance(ours, (tuple, list)) and isinstance(theirs, (tuple, list)):
        return max(difference(a, b) for a, b in zip(ours, theirs, strict=True))
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return 0.0
    a, b = ours.detach().double(), theirs.detach().double()
    if a.shape != b.shape:
        b = b.transpose(-2, -3)
        b = b[0] if a.dim() < b.dim() else b
    return float((a - b).norm() / b.norm())


def check_same(name: str, ours: Any, theirs: Any) -> None:
    """RuntimeError where a peer's result is another than ours: one with a NaN is, too."""
    off = difference(ours, theirs)
    if not off <= MOST_OFF:
        raise RuntimeError(f"{name} gives another result, {off:.2g} of its size away")


def clocks(device: str, threads: int) -> tuple[Clock, Clock]:
    """The clock of calls that compute where they are made, and of peers that have threads of their own."""
    if device == "cuda" or threads > 1:
        return time.perf_counter, time.perf_counter
    return time.thread_time, time.process_time


def cell(
    one: Cell, device: str, threads: int, bounds: Bounds, seconds: float, without: list[str], compiled: bool
) -> Figures:
    """Figures of a cell."""
    figures, made = Figures(), problems(one, device)
    own, elsewhere = read = clocks(device, threads)
    sleep = SLEEP if device == "cpu" and threads > 1 else 0.0
    try:
        mine = Contender([ours.call(problem) for problem in made], device, own, sleep)
    except (LookupError, ValueError, NotImplementedError, RuntimeError) as error:
        figures.refused = _line(error)
    else:
        figures.all["Tilekiln"] = statistics.median(mine.sample() for _ in range(3))
    others: dict[str, Contender] = {}
    for name, contender in _contenders(made, figures, device, read, sleep, without, compiled):
        others[name] = contender
        if not figures.refused:
            check_same(f"{one.key}: {name}", mine.result, contender.result)
        contender.result = None
        figures.all[name] = statistics.median(contender.sample() for _ in range(3 if contender.first < LONG else 1))
    if others:
        figures.best = min(others, key=lambda name: figures.all[name])
        figures.peer = figures.all[figures.best]
    if figures.refused:
        return figures
    figures.ours = figures.all["Tilekiln"]
    if others:
        for _ in range(2):
            _pass(figures, mine, others[figures.best], elsewhere, seconds)
            if figures.passes[-1] >= LEAST:
                break
    least, figures.bound = bounds.seconds(one.flops(), one.bytes(), one.dtype)
    figures.share = least / figures.ours
    return figures


def _contenders(
    made: list[Problem], figures: Figures, device: str, clocks: tuple[Clock, Clock], sleep: float, without: list[str],
    compiled: bool,
) -> Iterator[tuple[str, Contender]]:  # fmt: skip
    """Of the peers that can do the cell; why the others cannot stands in the figures."""
    for name, maker in peers.peers(made[0], without, compiled):
        read = clocks[name == "OpenVINO"]
        most = FAR * min((figures.all[other] for other in figures.all if other != "Tilekiln"), default=math.inf)
        if device == "cuda" or "compiled" in name or most < FAR * SLOW:  # first calls compile, or cost little
            most = math.inf
        try:
            yield name, Contender([maker(problem) for problem in made], device, read, sleep, most)
        except (RuntimeError, ValueError, AttributeError, ImportError, TypeError, SystemError) as error:
            figures.left_out[name] = _line(error)
        except Exception as error:  # ONNX Runtime's and inductor's errors are of classes of their own
            if type(error).__module__.partition(".")[0] not in ("onnxruntime", "onnx", "torch"):
                raise
            figures.left_out[name] = _line(error)


def _pass(figures: Figures, mine: Contender, other: Contender, elsewhere: Clock, seconds: float) -> None:
    """Ours, the peer, ours, for so long; all by one clock."""
    kept = mine.read
    mine.read = other.read if other.read is elsewhere else kept
    ratios, times, theirs = [], [], []
    begin = time.monotonic()
    while len(ratios) < 3 or time.monotonic() - begin < seconds:
        before, between, after = mine.sample(), other.sample(), mine.sample()
        ratios.append(2 * between / (before + after))
        times += [before, after]
        theirs.append(between)
        if time.monotonic() - begin > 10 * max(seconds, 0.5):
            break  # calls of seconds: one round must do
    mine.read = kept
    figures.passes.append(statistics.median(ratios))
    figures.ours, figures.peer = statistics.median(times), statistics.median(theirs)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200]


def pin(threads: int) -> None:
    """One thread to the last core that the process may use."""
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
