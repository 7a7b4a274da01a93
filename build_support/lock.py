# SPDX-License-Identifier: MIT
"""One build at a time in one variant's directory: a second one waits, and says for whom."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
from collections.abc import Iterator

from . import console

FILE = "lock"
_held: dict[str, int] = {}  # directory -> descriptor


def take(directory: str) -> None:
    """Waits until no other process builds in `directory`, then keeps others out until this one ends.

    The system gives the lock back however a process ends. What a build that was cut off left half-written goes here:
    nothing trusts it, but nobody else would remove it.
    """
    if directory in _held:
        return
    descriptor = _locked(directory)
    if os.pread(descriptor, 1, 0):
        _sweep(directory)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    _held[directory] = descriptor
    atexit.register(give_back)


@contextlib.contextmanager
def held(directory: str) -> Iterator[None]:
    """Keeps other processes out of a directory that several variants share, for as long as the body runs."""
    descriptor = _locked(directory)
    try:
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _locked(directory: str) -> int:
    """The descriptor of the lock, once this process has it."""
    path = os.path.join(directory, FILE)
    while True:
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
            if owner != str(os.getpid()):  # of this build another job
                console.block(f"waiting: another build is at work in {directory} (process {owner})")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The build that held the lock may have removed the directory (-c) meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def give_back() -> None:
    """Lets others in: this build has ended well, or is about to run a program that may build."""
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)
    _held.clear()


LEFT = (".new", ".new.inputs", ".new.scratch", ".new.scratch.o", ".new.scratch.ptx", ".new.fatbin", ".tmp")


def _sweep(directory: str) -> None:
    """Removes what jobs and the generator write beside their targets before they rename it."""
    for above, _, names in os.walk(directory):
        for name in names:
            if name.endswith(LEFT):
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(above, name))
