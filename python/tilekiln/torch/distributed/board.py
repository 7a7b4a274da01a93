# SPDX-License-Identifier: MIT
"""Memory that the processes of one machine share, for words of a call: a look takes microseconds, at a store hundreds.

Each process has two places, of even and of odd calls: who posts the words of a call has read all of the one before it,
and so nobody is still reading of the one before that. The checksum tells words that are half written.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
import zlib
from typing import Any

PLACE = 4096
_HEAD = struct.Struct("<QII")
"""Call + 1, bytes of its words, their checksum."""
ROOM = PLACE - _HEAD.size


class Board:
    """Words by process and call, in memory that `world` processes map."""

    def __init__(self, file: int, rank: int, world: int, pids: list[int]) -> None:
        self._memory, self._rank, self._pids = mmap.mmap(file, 2 * PLACE * world), rank, pids

    def post(self, call: int, words: bytes) -> None:
        """words: at most ROOM bytes."""
        at = self._at(self._rank, call)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(words)] = words
        self._memory[at : at + _HEAD.size] = _HEAD.pack(call + 1, len(words), zlib.crc32(words))

    def read(self, rank: int, call: int) -> bytes | None:
        """The words of a process, None before they are there."""
        at = self._at(rank, call)
        of, count, checksum = _HEAD.unpack_from(self._memory, at)
        if of != call + 1 or count > ROOM:
            return None
        words = self._memory[at + _HEAD.size : at + _HEAD.size + count]
        return words if zlib.crc32(words) == checksum else None

    def ended(self, rank: int) -> bool:
        """Has the process ended, by whatever way?"""
        try:
            with open(f"/proc/{self._pids[rank]}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in b"ZX"
        except FileNotFoundError:
            return True
        except OSError:
            return False

    @staticmethod
    def _at(rank: int, call: int) -> int:
        return (2 * rank + call % 2) * PLACE


class Invitation:
    """A board before all have it: rank 0 makes memory without a name, the others open it by the number of its file."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world, self._file, self._token = rank, world, -1, os.urandom(16).hex()
        with contextlib.suppress(OSError, AttributeError):  # of a system that has it not
            if rank == 0:
                self._file = os.memfd_create("tilekiln")
                os.truncate(self._file, 2 * PLACE * world)
                os.pwrite(self._file, self._token.encode(), 0)

    def words(self) -> list[Any]:
        """[pid, file, token], which the others must know."""
        return [os.getpid(), self._file, self._token]

    def open(self, said: list[list[Any]]) -> Board | None:
        """said: words of each process. None where rank 0 has no memory that is seen here, as on another machine."""
        pid, number, token = said[0]
        try:
            if self._rank:
                path = f"/proc/{pid}/fd/{number}"
                if number < 0 or not stat.S_ISREG(os.stat(path).st_mode):
                    return None
                self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if self._file < 0 or os.pread(self._file, len(token), 0) != token.encode():
                return None
            return Board(self._file, self._rank, self._world, [one[0] for one in said])
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Once all have said whether they could open it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
