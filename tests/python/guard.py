# SPDX-License-Identifier: MIT
"""Arrays against inaccessible pages: a read or write one byte outside them ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_PAGE = mmap.PAGESIZE


class Guarded:
    """Memory for one array, flush against an inaccessible page at its end ("after") or at its start ("before")."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, where: str) -> None:
        size = int(np.prod(shape)) * dtype.itemsize
        pages = -(-size // _PAGE)
        self.memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for page in (0, pages + 1):
            if _LIBC.mprotect(base + page * _PAGE, _PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        first = _PAGE if where == "before" else (pages + 1) * _PAGE - size
        self.array = np.frombuffer(self.memory, np.uint8, size, first).view(dtype).reshape(shape)


def guarded(array: np.ndarray, where: str) -> np.ndarray:
    """A copy of an array that lies against a guard page. Its memory lives as long as the array."""
    copy = Guarded(array.shape, array.dtype, where).array
    copy[...] = array
    return copy
