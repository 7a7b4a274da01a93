# SPDX-License-Identifier: MIT
"""Load commands of Mach-O files, as far as a wheel's tag needs them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = 0xFEEDFACF  # of 64 bits, little endian
MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
"""CPU types, in the words of tags."""
LOADS = (0x0C, 0x80000018, 0x8000001F)  # LC_LOAD_DYLIB, one that may be missing, one that is shown again
BUILD_VERSION, OLD_VERSION = 0x32, 0x24  # LC_BUILD_VERSION, and LC_VERSION_MIN_MACOSX of older linkers
MACOS = 1


@dataclass(frozen=True)
class Image:
    machine: str
    oldest: tuple[int, int]  # macOS that it runs on
    libraries: tuple[str, ...]  # paths that the loader opens


def read(path: str) -> Image | None:
    """The image of a file; None of a file that is no Mach-O of 64 bits. ValueError for one that no macOS loads."""
    with open(path, "rb") as file:
        head = file.read(32)
        if len(head) < 32 or struct.unpack_from("<I", head)[0] != MAGIC:
            return None
        _, cpu, _, _, count, size, _, _ = struct.unpack("<8I", head)
        commands = list(_commands(file.read(size), count))
    oldest, libraries = None, []
    for command, data in commands:
        if command in LOADS:
            start = struct.unpack_from("<I", data, 8)[0]
            libraries.append(data[start:].partition(b"\0")[0].decode())
        elif command == OLD_VERSION:
            oldest = struct.unpack_from("<I", data, 8)[0]
        elif command == BUILD_VERSION and struct.unpack_from("<I", data, 8)[0] == MACOS:
            oldest = struct.unpack_from("<I", data, 12)[0]
    if oldest is None or cpu not in MACHINES:
        raise ValueError(f"{path} is Mach-O of a system or processor that is not macOS on x86-64 or arm64")
    return Image(MACHINES[cpu], (oldest >> 16, oldest >> 8 & 0xFF), tuple(libraries))


def _commands(data: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, at)
        yield command, data[at : at + size]
        at += size
