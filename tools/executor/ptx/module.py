# SPDX-License-Identifier: MIT
"""Kernels of PTX text on the CPU: `Module(text).launch("name", (1,), (64,), [reads(x), writes(y), np.int32(3)])`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = ROOT / "build" / "executor-release" / "libptx.so"
CAPACITY = 8192


class FaultError(Exception):
    """A fault of a load or a launch, found by the executor; `kind` is its first word."""

    @property
    def kind(self) -> str:
        return str(self).split(":")[0]


class _Launch(ctypes.Structure):  # ptx_launch_of of executor.h
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("together", ctypes.c_int32),
        ("resident", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("parameters", ctypes.c_void_p),
        ("parameter_bytes", ctypes.c_size_t),
    )


class _Options(ctypes.Structure):  # ptx_options
    _fields_ = (("seed", ctypes.c_uint64), ("races", ctypes.c_int32), ("most", ctypes.c_uint64))


@cache
def library() -> ctypes.CDLL:
    """`tools/dev scons executor` builds it."""
    found = ctypes.CDLL(str(LIBRARY))
    found.ptx_load.restype = found.ptx_unload.argtypes = None
    found.ptx_load.restype = ctypes.c_void_p
    found.ptx_unload.argtypes = [ctypes.c_void_p]
    found.ptx_launch.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_char_p, ctypes.c_size_t]
    found.ptx_executed.argtypes, found.ptx_executed.restype = [ctypes.c_void_p], ctypes.c_uint64
    found.ptx_coverage.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    found.ptx_coverage.restype = ctypes.c_size_t
    found.ptx_allocate.argtypes, found.ptx_allocate.restype = [ctypes.c_size_t], ctypes.c_uint64
    found.ptx_release.argtypes = [ctypes.c_uint64]
    found.ptx_copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t]
    return found


class Buffer:
    """An array in the emulated device's memory, of a launch."""

    def __init__(self, array: np.ndarray, given: bool, back: bool) -> None:
        self.array, self.given, self.back = array, given, back


def reads(array: np.ndarray) -> Buffer:
    return Buffer(np.ascontiguousarray(array), True, False)


def writes(array: np.ndarray) -> Buffer:
    """Nobody has written it before the launch; afterwards `array` holds what the kernel made."""
    return Buffer(array, False, True)


def updates(array: np.ndarray) -> Buffer:
    return Buffer(array, True, True)


class Module:
    """Kernels of one text. FaultError for what the executor does not know."""

    def __init__(self, text: str) -> None:
        error = ctypes.create_string_buffer(CAPACITY)
        self.handle = library().ptx_load(text.encode(), error, ctypes.c_size_t(CAPACITY))
        if not self.handle:
            raise FaultError(error.value.decode())

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            library().ptx_unload(self.handle)

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        threads: Sequence[int],
        arguments: Sequence[Any],
        *,
        shared_bytes: int = 0,
        seed: int = 1,
        races: bool = True,
        most: int = 0,
        together: bool = False,
        cluster: int = 0,
    ) -> None:
        """Runs it. Arguments are NumPy scalars, bytes (aligned to 128) or `reads`, `writes`, `updates` of arrays."""
        packed, made = b"", []
        try:
            for one in arguments:
                if isinstance(one, Buffer):
                    address = library().ptx_allocate(max(16, one.array.nbytes))
                    made.append((address, one))
                    if one.given:
                        assert library().ptx_copy(address, one.array.ctypes.data, one.array.nbytes) == 0
                    one = np.uint64(address)
                data = one if isinstance(one, bytes) else one.tobytes()
                packed += bytes(-len(packed) % (128 if isinstance(one, bytes) else len(data))) + data
            of = _Launch(kernel.encode(), shared_bytes=shared_bytes, together=together, resident=1, cluster=cluster)
            of.grid[:] = (*grid, 1, 1)[:3]
            of.threads[:] = (*threads, 1, 1)[:3]
            parameters = ctypes.create_string_buffer(packed, len(packed) + 1)
            of.parameters, of.parameter_bytes = ctypes.addressof(parameters), len(packed)
            options, error = _Options(seed, races, most), ctypes.create_string_buffer(CAPACITY)
            if library().ptx_launch(self.handle, ctypes.byref(of), ctypes.byref(options), error, CAPACITY):
                raise FaultError(error.value.decode())
            for address, one in made:
                if one.back:
                    assert library().ptx_copy(one.array.ctypes.data, address, one.array.nbytes) == 0
        finally:
            for address, _ in made:
                library().ptx_release(address)

    @property
    def executed(self) -> int:
        """Warp instructions since the load."""
        return int(library().ptx_executed(self.handle))

    def coverage(self) -> dict[str, tuple[int, int]]:
        """By opcode with its modifiers: how often it was executed, and in how many places it stands."""
        text = ctypes.create_string_buffer(library().ptx_coverage(self.handle, None, 0) + 1)
        library().ptx_coverage(self.handle, text, len(text))
        lines = (line.split() for line in text.value.decode().splitlines())
        return {name: (int(count), int(places)) for name, count, places in lines}
