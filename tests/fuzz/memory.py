# SPDX-License-Identifier: MIT
"""Arrays in pages of their own: a read outside them ends the process, a write beside them is found."""

from __future__ import annotations

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tests import cases
from tests.python.guard import Guarded

CANARY = 0xC3  # fills every byte of the pages that is no element of the array, gaps between its rows included
PAGE = 4096
ENDS = ("after", "before")


class Placed:
    """A copy of an array with its strides, flush against an inaccessible page at one end; canaries everywhere else.

    array: any dtype, any strides, of any size. end: "after" or "before", where the inaccessible page is.
    """

    def __init__(self, array: np.ndarray, end: str) -> None:
        low, high = byte_bounds(array) if array.size else (0, 0)
        size = max(PAGE, -(-(high - low) // PAGE) * PAGE)
        first = size - (high - low) if end == "after" else 0
        self._memory = Guarded((size,), np.dtype(np.uint8), "before").array
        self._memory[...] = CANARY
        offset = first + (array.__array_interface__["data"][0] - low) if array.size else 0
        self.array = np.ndarray(array.shape, array.dtype, self._memory, offset, array.strides)
        self.array[...] = array
        self._elements = np.zeros(size, bool)
        bytes_of = np.ndarray(
            (*array.shape, array.itemsize), bool, self._elements, offset if array.size else 0, (*array.strides, 1)
        )
        bytes_of[...] = True
        self._before = self._memory.copy()

    def changed(self) -> bool:
        """Has any byte changed: for arrays that a call only reads."""
        return not np.array_equal(self._memory, self._before)

    def strayed(self) -> bool:
        """Has any byte changed that is no element: for arrays that a call writes."""
        return bool(np.any((self._memory != self._before) & ~self._elements))


class Host(cases.Device):
    """Arrays of NumPy between inaccessible pages."""

    def __init__(self, end: str) -> None:
        self.end, self.placed = end, list[tuple[Placed, bool]]()

    def put(self, array: np.ndarray, written: bool) -> np.ndarray:
        placed = Placed(array, self.end)
        self.placed.append((placed, written))
        return placed.array

    def back(self, there: np.ndarray, like: np.ndarray) -> np.ndarray:
        return there

    def strayed(self) -> str:
        wrong = [one.strayed() if written else one.changed() for one, written in self.placed]
        return f"array {wrong.index(True)} of the call was written where it must not be" if any(wrong) else ""
