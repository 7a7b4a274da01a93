# SPDX-License-Identifier: MIT
"""Memory decides which jobs run beside each other: a job starts when what it took in the last build is free.

A job that is killed for memory all the same is tried again beside half as many, down to alone.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from codegen.schema import sizes

from .options import UsageError

HEADROOM = 0.15  # of free memory, left to others
LIMIT = "TILEKILN_BUILD_MEMORY"  # bytes, kB, MB or GB that a build may use, instead of what is free
# Bytes of a job that was never measured, by what it is and by mode: the largest seen with g++ 12.
UNMEASURED = {
    "engine": {"release": 0.3e9, "debug": 0.3e9, "sanitize": 0.6e9, "thread": 0.6e9},
    "runtime": {"release": 0.3e9, "debug": 0.35e9, "sanitize": 0.5e9, "thread": 0.5e9},
    "host": {"release": 0.3e9, "debug": 0.35e9, "sanitize": 0.5e9, "thread": 0.5e9},
    "rows": {"release": 0.05e9, "debug": 0.05e9, "sanitize": 0.1e9, "thread": 0.1e9},
}
# Messages of compilers, assemblers and linkers that run out of memory before the kernel steps in.
_SAID = re.compile(
    # A line of its own, not one of the source that an error shows.
    rb"^(?! )[^|\n]*(?:out of memory|memory exhausted|Cannot allocate memory|terminate called .*std::bad_alloc"
    rb"|failed to map segment|Killed signal terminated|unable to execute command: Killed)",
    re.MULTILINE,
)


def free() -> float:
    """Bytes that may still be used, of the machine and of this control group. UsageError when LIMIT is no size."""
    if LIMIT in os.environ:
        try:
            return sizes.parse(os.environ[LIMIT])
        except ValueError as error:
            raise UsageError(f"{LIMIT}: {error}.") from error
    found = float("inf")
    try:
        with open("/proc/meminfo") as file:
            found = next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            found = min(found, float(limit.read()) - float(used.read()))
    except (OSError, ValueError):
        pass
    return found


def was_killed(code: int, said: bytes) -> bool:
    """Whether a command ended for want of memory: by SIGKILL, itself or below it, or by saying so."""
    return code in (-signal.SIGKILL, 128 + signal.SIGKILL) or (code != 0 and _SAID.search(said) is not None)


class Entry:
    """A job that was let in. `beside`: the most jobs that ran at once while it did, itself among them."""

    def __init__(self) -> None:
        self.beside = 0


class Gate:
    """Lets jobs in as memory and the number of jobs that were well so far allow. One job is always let in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._room = free() * (1 - HEADROOM)
        self._reserved = 0.0
        self._inside: set[Entry] = set()
        self.most = float("inf")  # jobs beside each other; lowered when one was killed

    def _fits(self, need: float) -> bool:
        if not self._inside:
            return True
        # Others may have taken memory since the build began; what runs here has its share reserved.
        return (
            len(self._inside) < self.most
            and self._reserved + need <= self._room
            and (LIMIT in os.environ or need <= free() * (1 - HEADROOM))
        )

    @contextmanager
    def entered(self, need: float) -> Iterator[Entry]:
        """Waits until `need` bytes are free, and keeps them for as long as the body runs."""
        with self._changed:
            # Memory that others give back wakes nobody: look again now and then.
            while not self._fits(need):
                self._changed.wait(0.5)
            entry = Entry()
            self._inside.add(entry)
            for other in self._inside:
                other.beside = max(other.beside, len(self._inside))
            self._reserved += need
        try:
            yield entry
        finally:
            with self._changed:
                self._inside.remove(entry)
                self._reserved -= need
                self._changed.notify_all()

    def fewer(self, beside: int) -> int:
        """Half of `beside` jobs from now on, at least one; what it is now."""
        with self._changed:
            self.most = min(self.most, max(1, beside // 2))
            return int(self.most)


_gate: Gate | None = None
_gate_lock = threading.Lock()
began = time.time()


def gate() -> Gate:
    """The gate of this process: all builds in it share the machine's memory."""
    global _gate
    with _gate_lock:
        if _gate is None:
            _gate = Gate()
        return _gate
