# SPDX-License-Identifier: MIT
"""Calls drawn from a declaration: right ones, and wrong ones with the sentence that refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from codegen.emit.operators.check import listed
from codegen.schema.operator_types import RANGES
from codegen.schema.operators import Argument, Form, Operator

OUTSIDE = {"finite": float("inf"), "0 or above": -1.0, "off or above": -1.0, "above 0": 0.0, "[0, 1)": 1.0,
           "[0, 1]": 1.5, "(0, 1]": 0.0}  # fmt: skip


class Array(NamedTuple):
    """An array to be made."""

    dtype: str
    shape: tuple[int, ...]


class Case(NamedTuple):
    """A wrong call: its changes to a right one, and the beginning of the sentence that refuses it."""

    about: str
    changes: dict[str, Any]
    sentence: str


class Drawn:
    """One right call of an operator in a form, with `lengths` by letter; dtype: of the first array."""

    def __init__(self, operator: Operator, form: Form, lengths: dict[str, int], dtype: str) -> None:
        self.operator, self.form, self.lengths = operator, form, lengths
        known = operator.first.dtypes
        self.dtypes: dict[str, str] = {operator.first.name: dtype if dtype in known else known[0]}

    def dtype(self, a: Argument) -> str:
        if a.name not in self.dtypes:
            like = self.dtype(self.operator.arguments[a.dtype_of]) if a.dtype_of else ""
            other = (a.file.when or {}).get(like)  # type: ignore[call-overload]
            self.dtypes[a.name] = other[0] if other else like or a.dtypes[0]
        return self.dtypes[a.name]

    def array(self, a: Argument) -> Array | None:
        """None where only host.cpp knows the shape."""
        shape = self.operator.shape(self.form, a.name)
        if shape is None and a.kind == "array" and a.file.place and a.file.read is None:
            return Array(self.dtype(a), (5, 6, 7))  # of any shape
        if shape is None or any(one.number is None and one.letter not in self.lengths for one in shape):
            return None
        return Array(self.dtype(a), tuple(one.number or self.lengths[one.letter] for one in shape))

    @property
    def required(self) -> dict[str, Array]:
        """The arrays that a call needs, apart from its results."""
        made = {a.name: self.array(a) for a in self.operator.arrays if a.required and a.kind != "result"}
        return {name: array for name, array in made.items() if array is not None}

    def cases(self) -> Iterator[Case]:
        for a in self.operator.scalars:
            if a.kind == "float" and a.file.range and not a.file.needs:
                bad = OUTSIDE[a.file.range]
                yield Case(f"{a.name}={bad:g}", {a.name: bad}, f"{a.name}: was {bad:g}, must be {RANGES[a.file.range]}")
        for a in self.operator.arrays:
            array = self.array(a)
            if array is None or a.file.read:
                continue
            extra = self._wanted(a)
            yield from self._presence(a, array)
            if extra is None:
                continue
            yield from self._numbers(a, array, extra)
            if a.name in self.operator.order:  # of those of the main step a length is bound, not compared
                yield from self._lengths(a, array, extra)
            wrong = next((one for one in ("int32", "fp16") if one not in a.dtypes), "")
            if a.dtypes and wrong:
                # host.cpp may allow another dtype of arrays that go together, and then says so.
                must = "" if extra.keys() & self._together(a) else listed(a.dtypes)
                text = f"{a.name}: dtype was {wrong}, must be {must}"
                yield Case(f"{a.name} of {wrong}", extra | {a.name: array._replace(dtype=wrong)}, text)
            if self.operator.shape(self.form, a.name) is None:
                continue
            more = array._replace(shape=(*array.shape, 1))
            known = [*a.shapes, *(self.operator.shape(form, a.name) or () for form in self.operator.forms)]
            if len(more.shape) not in map(len, known):
                text = f"{a.name}: had {len(more.shape)} dimensions, "
                yield Case(f"{a.name} of a dimension more", extra | {a.name: more}, text)

    def _wanted(self, a: Argument) -> dict[str, Any] | None:
        """Arguments that must be given for `a` to be allowed; None where they cannot be made here."""
        if a.file.only:
            return None
        others = self._together(a)
        if others:
            arrays = {name: self.array(self.operator.arguments[name]) for name in sorted(others)}
            return None if None in arrays.values() else arrays
        if a.file.needs is None:
            return {}
        needed = self.operator.arguments[a.file.needs]
        if not needed.is_array:
            return {needed.name: 0.5}
        array = self.array(needed)
        return {needed.name: array} if array is not None and needed.kind == "array" else None

    def _together(self, a: Argument) -> set[str]:
        """The arguments that are given where `a` is."""
        groups = (one.file.together for one in self.operator.arguments.values())
        return {name for group in groups if group and a.name in group for name in group} - {a.name}

    def _presence(self, a: Argument, array: Array) -> Iterator[Case]:
        file = a.file
        if file.not_with:
            other = self.array(self.operator.arguments[file.not_with])
            text = f"{a.name}: was given with {file.not_with}, must be alone: {file.says}"
            yield Case(f"{a.name} with {file.not_with}", {a.name: array, file.not_with: other}, text)
        if file.needs and a.kind != "result":
            text = f"{a.name}: was given without {file.needs}, must be null: {file.says}"
            yield Case(f"{a.name} without {file.needs}", {a.name: array}, text)

    def _numbers(self, a: Argument, array: Array, extra: dict[str, Any]) -> Iterator[Case]:
        """Of dimensions whose length is a number."""
        for index, one in enumerate(self.operator.shape(self.form, a.name) or ()):
            if one.number is None or a.file.only:
                continue
            for wrong in (one.number - 1, one.number + 1):
                shape = (*array.shape[:index], wrong, *array.shape[index + 1 :])
                text = f"{a.name}: dimension {index} was {wrong}, must be {one.number}, "
                yield Case(f"{a.name}: {wrong} of {one.number}", extra | {a.name: array._replace(shape=shape)}, text)

    def _lengths(self, a: Argument, array: Array, extra: dict[str, Any]) -> Iterator[Case]:
        for index, one in enumerate(self.operator.shape(self.form, a.name) or ()):
            if one.number is not None or a.file.like:
                continue
            wrong = array.shape[index] + (-1 if one.at_least else 1)
            shape = (*array.shape[:index], wrong, *array.shape[index + 1 :])
            must = f"must be {'at least ' if one.at_least else ''}{array.shape[index]}, "
            text = f"{a.name}: {self.operator.symbols[one.letter].word} was {wrong}, {must}"
            yield Case(f"{a.name}: {one.letter} of {wrong}", extra | {a.name: array._replace(shape=shape)}, text)
