# SPDX-License-Identifier: MIT
"""Arrays for the kernels to read."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np

LINE = 64
"""Bytes of a cache line, and of the widest register. NumPy starts a large array 16 bytes into a page."""
HUGE_PAGE = 1 << 21


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that begin where a cache line does: else every load of a whole register takes two lines.

    Those of 2 MB and more begin a huge page, which Linux is asked for. A core reads weights from memory 10 to 15 %
    faster so: its prefetchers stop at the end of a page, and where the kernel is set to "madvise", as most
    distributions have it, pages are 4 KB for those that do not ask. MemoryError where there is no room.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory: np.ndarray
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no room for an array of {size} bytes") from error
        with contextlib.suppress(OSError):  # a Linux that is built without huge pages refuses
            pages.madvise(mmap.MADV_HUGEPAGE)
        memory, unit = np.frombuffer(pages, np.uint8), HUGE_PAGE
    else:
        memory, unit = np.zeros(size + LINE - 1, np.uint8), LINE
    begin = -memory.ctypes.data % unit
    array: np.ndarray = memory[begin : begin + size].view(kind).reshape(shape)
    return array


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """The same numbers, row-major, in such memory."""
    made = aligned_zeros(array.shape, array.dtype)
    made[...] = array
    return made


def zeros_like(like: Any, shape: tuple[int, ...]) -> Any:
    """`aligned_zeros` of the dtype and the framework, NumPy or PyTorch, of `like`; on other devices PyTorch's own."""
    if isinstance(like, np.ndarray):
        return aligned_zeros(shape, like.dtype)
    if like.device.type != "cpu":
        return like.detach().new_zeros(shape)
    import torch

    memory = aligned_zeros((math.prod(shape) * like.element_size(),), np.uint8)
    return torch.from_numpy(memory).view(like.dtype).view(shape)
