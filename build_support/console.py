# SPDX-License-Identifier: MIT
"""Output of the build: one line an action, coloured and counted on a terminal, plain when piped."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from codegen.schema.sizes import shown

COLOURS = {"compile": "36", "join": "34", "link": "32", "write": "90", "run": "35", "built": "32;1", "took": "90"}
_lock = threading.Lock()


def on_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if on_terminal() else text


def red(text: str) -> str:
    return paint(text, "31;1")


class Progress:
    """Progress of a build, shown before each line on a terminal, and its totals at the end.

    The time left is what is not looked at yet, in seconds of CPU as measured when it was last made (else the mean of
    this build's jobs), at the speed of this build. It is shown once there is something to tell it from.
    """

    SURE = (3, 4.0)  # as many jobs, and seconds, before it says how long

    def __init__(self) -> None:
        self.steps: set[str] = set()
        self.done = 0
        self.known: dict[str, float] = {}  # seconds of CPU by step
        self.verbs: dict[str, list[float]] = {}  # of the jobs that have run
        self.peak, self.began = 0, time.monotonic()

    def aim(self, goals: Iterable[Any], known: Mapping[str, float]) -> None:
        """Counts the steps that `goals` (SCons nodes) need; `known`: what each took when it was last made."""
        waiting, seen = list(goals), set()
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += [*node.sources, *node.depends]
        self.steps = {str(node) for node in seen if node.has_explicit_builder()}
        self._waiting = set(self.steps)
        self.known = {step: known[step] for step in self.steps if step in known}

    def visit(self, node: Any) -> None:
        step = str(node)
        if step in self.steps:
            self.done += 1
            self._waiting.discard(step)

    def ran(self, verb: str, cpu: float, peak: int) -> None:
        """A job has ended: its seconds of CPU, the bytes of its largest process."""
        with _lock:
            self.verbs.setdefault(verb, []).append(cpu)
            self.peak = max(self.peak, peak)

    def prefix(self) -> str:
        if not self.steps:
            return ""
        left = self._left()
        said = "" if left is None else f", {clock(left)} left"
        return f"[{self.done:>{len(str(len(self.steps)))}}/{len(self.steps)}{said}] "

    def _left(self) -> float | None:
        with _lock:
            spent = [cpu for costs in self.verbs.values() for cpu in costs]
        passed = time.monotonic() - self.began
        if len(spent) < self.SURE[0] or passed < self.SURE[1] or not sum(spent):
            return None
        mean = sum(spent) / len(spent)
        return sum(self.known.get(step, mean) for step in self._waiting) * passed / sum(spent)

    def sums(self) -> str:
        """Sums over the jobs of the build: their counts, time, CPU time and memory; "" where none ran."""
        if not self.verbs:
            return ""
        jobs = ", ".join(f"{verb} {len(costs)}" for verb, costs in sorted(self.verbs.items()))
        cpu = sum(sum(costs) for costs in self.verbs.values())
        passed = time.monotonic() - self.began
        return f"{jobs}: {clock(passed)}, {clock(cpu)} of CPU, {shown(self.peak)} the hungriest"


def clock(seconds: float) -> str:
    """ "4.2 s", "57 s", "2:05 min", "1:03 h"."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


progress = Progress()


def say_sums() -> None:
    """To be called when the build ends, whatever its end."""
    if said := progress.sums():
        block(line("took", said))


def line(verb: str, label: str) -> str:
    return f"{paint(f'{verb:<7}', COLOURS[verb])} {label}"


def action(verb: str, label: str) -> str:
    return progress.prefix() + line(verb, label)


def block(text: str) -> None:
    """Prints whole: lines of jobs that run at once do not mix."""
    with _lock:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
