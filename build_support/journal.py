# SPDX-License-Identifier: MIT
"""Journal of a build: a line for each job that has finished.

SCons writes its own database when it ends, and a build that is killed never does. The next one takes what the journal
says was made from the same; a build that has ended leaves none.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable
from typing import Any

import msgspec

from codegen.schema import typed

FILE = "unfinished.jsonl"


class Made(msgspec.Struct, frozen=True):
    """`signed`: of the job and of all that it read. `digest`: of the file it wrote."""

    target: str
    signed: str
    digest: str


class Journal:
    """Of the variant in `directory`. With `write` no, as of a build that only tells, all files are left as they are."""

    def __init__(self, directory: str, write: bool) -> None:
        self._path, self._lock, self._write = os.path.join(directory, FILE), threading.Lock(), write
        self._known = _read(self._path)
        if write:
            atexit.register(self._end)

    def knows(self, target: str) -> bool:
        """Whether a build that was cut off has made this file."""
        return target in self._known

    def takes(self, target: str, signed: str) -> bool:
        """Whether the file is what that build made, from the same. One that is not is removed."""
        made = self._known.pop(target, None)
        if made is None:
            return False
        if made.signed == signed and _digest(target) == made.digest:
            self.add(target, signed)
            return True
        if self._write:  # else it may be of a build that is running
            with contextlib.suppress(FileNotFoundError):
                os.remove(target)
        return False

    def add(self, target: str, signed: str) -> None:
        """One write of a whole line. What cannot be written (a full disk) is made again if this build is killed."""
        if not self._write:
            return
        line = msgspec.json.encode(Made(target, signed, _digest(target))) + b"\n"
        with contextlib.suppress(OSError), self._lock, open(self._path, "ab") as file:
            file.write(line)

    def _end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path)


def signature(job_digest: str, inputs: Iterable[Any]) -> str:
    """Of a job and of the nodes that it reads."""
    whole = hashlib.sha256(job_digest.encode())
    for node in inputs:
        whole.update(f"\0{node}\0{node.get_csig()}".encode())
    return whole.hexdigest()[:32]


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _read(path: str) -> dict[str, Made]:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[str, Made] = {}
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):  # cut short when its build died
            made = typed.decode(line, Made)
            found[made.target] = made
    return found
