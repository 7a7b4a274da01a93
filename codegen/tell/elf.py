# SPDX-License-Identifier: MIT
"""The sections of an ELF file (64-bit, little-endian): what the size budget and the report weigh, and verify reads."""

from __future__ import annotations

import struct
from typing import NamedTuple

WRITE, ALLOCATED, EXECUTABLE, NO_BITS = 1, 2, 4, 8


class Section(NamedTuple):
    name: str
    kind: int
    flags: int
    size: int
    data: bytes  # empty where the file holds none (.bss)

    @property
    def loaded(self) -> bool:
        """It is in the file and in memory: what a library weighs."""
        return bool(self.flags & ALLOCATED) and self.kind != NO_BITS

    @property
    def code(self) -> bool:
        return bool(self.flags & EXECUTABLE)


def sections(path: str) -> list[Section]:
    """Every section of a file. ValueError when it is no such ELF file."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    each, count, names = struct.unpack_from("<HHH", data, 0x3A)
    if offset == 0:
        return []
    if count == 0:  # more than fit the header: the first section says how many
        (count,) = struct.unpack_from("<Q", data, offset + 0x20)
    if names == 0xFFFF:
        (names,) = struct.unpack_from("<I", data, offset + 0x28)
    heads = [struct.unpack_from("<IIQQQQ", data, offset + at * each) for at in range(count)]
    table = heads[names][4]
    found = []
    for name, kind, flags, _, start, size in heads:
        text = data[table + name : data.index(b"\0", table + name)].decode()
        found.append(Section(text, kind, flags, size, b"" if kind == NO_BITS else data[start : start + size]))
    return found


def weight(path: str) -> int:
    """Bytes of code and data that an object brings into a library."""
    return sum(section.size for section in sections(path) if section.loaded)
