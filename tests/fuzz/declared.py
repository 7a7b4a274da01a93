# SPDX-License-Identifier: MIT
"""Calls of every operator by its declaration alone: lengths, dtypes and what is given are drawn, then one to three
arguments are spoilt. Whatever comes of it is a result or a sentence that names an argument, and nothing stray.

Values are not compared: that is for the operators whose reference tests.fuzz.calls knows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tilekiln as tk

from codegen.emit.operators.cases import Drawn
from tests.fuzz.bad import MOST_ELEMENTS, BadCall, argument_names, spoil
from tests.fuzz.draw import Draw
from tests.fuzz.memory import Placed
from tests.python.drawn import OPERATORS, made


def declared(library: tk.Library) -> list[str]:
    """The operators that a library has."""
    return [
        name
        for name, operator in OPERATORS.items()
        if not library.manifest["families"].keys().isdisjoint(operator.file.stages)
    ]


class DeclaredCall(BadCall):
    """As BadCall, of any operator. Two in three are spoilt; the others stay as drawn, and may be refused as well."""

    def __init__(self, library: tk.Library, case: Any) -> None:
        self.case, self.library, self.draw = case, library, Draw(case.seed)
        self.read: dict[str, Placed] = {}
        self.written: dict[str, Placed] = {}

    def prepare(self) -> None:
        """Draws the arrays in guarded pages, and spoils some of the arguments."""
        name, draw = self.case.operator, self.draw
        operator = OPERATORS[name]
        lengths = {letter: draw.often(draw.length(), 1, 64) for letter in operator.symbols}
        drawn = Drawn(operator, draw.one(list(operator.forms)), lengths, draw.one(operator.first.dtypes))
        arrays = {
            a: drawn.array(a)
            for a in operator.arrays
            if (a.required and a.kind != "result") or draw.random.random() < 0.3
        }
        known = {
            a.name: array for a, array in arrays.items() if array is not None and np.prod(array.shape) <= MOST_ELEMENTS
        }
        results = {a.name for a in operator.arrays if a.kind != "array"}
        call = made(name, known)
        inputs = self.place({one: value for one, value in call.items() if one not in results}, self.read)
        outputs = self.place({one: value for one, value in call.items() if one in results}, self.written)
        arguments = {**inputs, **outputs, "num_threads": draw.often(1, 0, 3)}
        spoilt = draw.random.random() < 2 / 3
        self.spoilt = spoil(draw, arguments, argument_names(getattr(self.library, name))) if spoilt else arguments
        if name == "reduce":  # it takes 2^40 times one element, and is at it for hours
            usual = {k: v for k, v in arguments.items() if getattr(self.spoilt.get(k), "size", 0) > MOST_ELEMENTS}
            self.spoilt = {**self.spoilt, **usual}
