# SPDX-License-Identifier: MIT
"""Cost of each job when it last ran: CPU time, memory and the date. One line a job, appended as it ends.

Kept beside what was built and part of no signature: it says how many jobs memory holds and what the report shows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import msgspec

from codegen.schema import typed

FILE = "measured.jsonl"
_lock = threading.Lock()


class Measured(msgspec.Struct, frozen=True):
    """One job. `start`, `end` and `build` are seconds since the epoch, `cpu` is user + system seconds."""

    made: str  # the target's path
    verb: str
    label: str
    cpu: float
    peak: int  # bytes of its largest process
    start: float
    end: float
    build: float  # when its build began: the jobs of one build have it in common


def append(directory: str, entry: Measured) -> None:
    """One write of a whole line. What cannot be written (a full disk) is a figure less, never a failed build."""
    line = msgspec.json.encode(entry) + b"\n"
    try:
        with _lock, open(os.path.join(directory, FILE), "ab") as file:
            file.write(line)
    except OSError:
        pass


def read(directory: str) -> dict[str, Measured]:
    """The latest entry of each job. A line that a dying build cut short is none."""
    try:
        with open(os.path.join(directory, FILE), "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[str, Measured] = {}
    for line in lines:
        try:
            entry = typed.decode(line, Measured)
        except msgspec.MsgspecError:
            continue
        found[entry.made] = entry
    if len(lines) > 64 + 4 * len(found):
        _shorten(directory, found.values())
    return found


def _shorten(directory: str, entries: Iterable[Measured]) -> None:
    """Only the latest entries. Called while a build begins, so nothing is appended meanwhile."""
    path = os.path.join(directory, FILE)
    try:
        with open(f"{path}.new", "wb") as file:
            file.writelines(msgspec.json.encode(entry) + b"\n" for entry in entries)
        os.replace(f"{path}.new", path)
    except OSError:
        pass
