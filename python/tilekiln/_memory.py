"""NumPy arrays for the kernels to read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LINE = 64
"""Bytes of a cache line, and of the widest register. NumPy starts a large array 16 bytes into a page."""


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that begin where a cache line does: else every load of a whole register takes two lines."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.zeros(size + LINE - 1, np.uint8)
    begin = -memory.ctypes.data % LINE
    array: np.ndarray = memory[begin : begin + size].view(kind).reshape(shape)
    return array
