# SPDX-License-Identifier: MIT
"""Calls of every operator with arrays that lie in any way: the bits of contiguous arrays, or a refusal.

The calls are those of strided_calls.py, one to all of their arrays with other strides at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tilekiln as tk

from tests.fuzz.calls import Call, MismatchError
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import relaid
from tests.fuzz.memory import ENDS, Placed
from tests.python import strided_calls
from tests.python.drawn import OPERATORS


def laid(library: tk.Library) -> list[str]:
    """The operators that a library has such a call of."""
    return sorted({call.operator for call in strided_calls.CALLS if call.receipt == library.receipt})


OF_STRIDES = ("stride", "contiguous", "overlap", "layout_", "row-major")


class LaidCall(Call):
    """One of strided_calls.py, whose arrays are placed with other strides."""

    def __init__(self, library: tk.Library, case: Any) -> None:
        self.case, self.library, self.draw = case, library, Draw(case.seed)
        self.read: dict[str, Placed] = {}
        self.written: dict[str, Placed] = {}
        calls = [call for call in strided_calls.CALLS if call.operator == case.operator]
        self.strided = self.draw.one([call for call in calls if call.receipt == library.receipt])
        self.given = self.strided.arguments()
        self.placed: dict[str, Any] = {}

    def prepare(self) -> None:
        """Values of some arrays repeated, then strides of some arrays."""
        draw, operator = self.draw, OPERATORS[self.case.operator]
        arrays = sorted(self.strided.arrays)
        name = draw.one(arrays)
        array = self.given[name]
        if operator.arguments[name].kind == "array" and array.dtype.kind not in "iu" and array.size:
            d = int(draw.random.integers(array.ndim))
            array[...] = np.take(array, [0], d)
        self.placed = dict(self.given)
        for name in arrays:
            own = operator.arguments[name]
            kept = self.read if own.kind == "array" and not own.file.written_with else self.written
            array = self.given[name]
            if draw.random.random() < 0.7:
                last = own.file.read == "host" or own.file.strides == "any" or draw.random.random() < 0.1
                array = relaid(draw, array, last, repeated=kept is self.read)
            kept[name] = Placed(array, draw.one(ENDS))
            self.placed[name] = kept[name].array

    def run(self) -> None:
        """Raises MismatchError, with what was wrong."""
        self.prepare()
        expected, made = ({n: _copy(v) for n, v in self.given.items()}, self.placed)
        said = [self._said(arguments) for arguments in (expected, made)]
        if said[1] and not said[0] and not any(word in said[1] for word in OF_STRIDES):
            raise MismatchError(f"refused, and its contiguous copy is not: {said[1]}")
        if said[0] and not said[1]:
            raise MismatchError(f"taken, and its contiguous copy is refused: {said[0]}")
        for name, placed in self.read.items():
            if placed.changed():
                raise MismatchError(f"{name} was written, and the call only reads it")
        for name, placed in self.written.items():
            if placed.changed() if said[1] else placed.strayed():
                raise MismatchError(f"{name} was written {'by a refused call' if said[1] else 'beside its elements'}")
            if not said[1] and name != "workspace" and made[name].tobytes() != expected[name].tobytes():
                raise MismatchError(f"{name} differs from that of contiguous arrays")

    def _said(self, arguments: dict[str, Any]) -> str:
        """The refusal of the call, or nothing."""
        try:
            getattr(self.library, self.case.operator)(**arguments, num_threads=1)
        except (tk.ArgumentError, tk.NoKernelError) as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        return self.shown(self.placed)


def _copy(value: Any) -> Any:
    return value.copy("K") if isinstance(value, np.ndarray) else value
