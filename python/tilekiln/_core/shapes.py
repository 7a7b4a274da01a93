# SPDX-License-Identifier: MIT
"""Shapes of a call's results by the table of operators (`_generated.tables`). Knows no framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Place = tuple[str, int] | None
"""An array and one of its dimensions; None is a length that only the values of index arrays say."""


class _Record:
    """Fields by name. (A NamedTuple costs an import more than the whole table.)"""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Form(_Record):
    """One way that a call may be shaped."""

    name: str
    ndim: Mapping[str, int]
    """Of the arrays whose dimensions choose the form."""
    given: tuple[str, ...]
    """The arguments that make it this one."""


class Result(_Record):
    """One array that a call may make."""

    name: str
    shapes: Mapping[str, tuple[tuple[Place, ...], tuple[Place, ...]]]
    """By form, as arrays lie unless the argument `exchange` says otherwise, and then."""
    dtype: str = ""
    dtype_of: str = ""
    when: Mapping[str, tuple[str, ...]] = {}
    """Dtypes of dtype_of with dtypes to choose from, the first unless `chosen_by` says which."""
    chosen_by: str = ""
    asked_by: str = ""
    """The flag that asks for it; empty: it is always made."""
    shape_by: str = ""
    """Its shape is what this function of `shape_rules` says."""
    unless_said: str = ""
    """Without the flag, asked for when this argument is given."""
    needs: str = ""
    torch_alone: bool = False
    """The C function writes it when given; PyTorch's operator makes it."""

    def shape_of(self, given: Mapping[str, Any]) -> list[Any] | None:
        """Its shape by its rule, in a call with the arguments of PyTorch's operator; None where it has no rule."""
        if not self.shape_by:
            return None
        from . import shape_rules

        found: list[Any] = getattr(shape_rules, self.shape_by)(given)
        return found


class Independent(_Record):
    """A dimension along which a call equals one call for each index, in calls of one form."""

    leading: Mapping[str, int]
    """Arrays that begin with it, and how many dimensions they then have."""
    apart: Mapping[str, int]
    """Arrays that lack it."""
    unless: tuple[str, ...]
    """Arguments that tie the indices together, unless they are 0."""


class Operator(_Record):
    """One operator as its declaration says."""

    arrays: tuple[str, ...]
    """By position."""
    optional: tuple[str, ...]
    written: Mapping[str, str]
    """Arrays that a call writes besides results, and the argument that must be given for that, or empty."""
    forms: tuple[Form, ...]
    exchange: tuple[str, str]
    results: tuple[Result, ...]
    pairs: Mapping[str, tuple[tuple[str, int], tuple[str, int]]]
    """Arguments of two numbers as PyTorch's operator takes them: their names and defaults."""
    states: Mapping[str, str]
    """Seeds and offsets, and the tensor that is in their place in PyTorch's operator."""
    schema: str
    """Of PyTorch's operator."""
    twin: str
    """The result that its twin `<operator>_out` writes in place; empty: it has none."""
    contiguous: tuple[str, ...]
    backward: str
    """The operator of its derivative."""
    backward_flags: tuple[str, ...]
    """Flags of that operator alone, which PyTorch's operator takes for it."""
    receipt: str
    """The receipt that errors name to build for it; empty: no receipt has it."""
    main: int
    """Index of the stage whose instance callers choose."""
    looks: tuple[int, int]
    """The arrays whose last lengths steer the choice of a kernel, as those with the head dims."""
    independent: Independent | None

    @property
    def first(self) -> str:
        """The first array that every call has."""
        return next(name for name in self.arrays if name not in self.optional)

    def form_of(self, given: Mapping[str, Any]) -> Form:
        """The form of a call with these arguments. Raises ArgumentError when it has none."""
        any_given = {name for form in self.forms for name in form.given if given.get(name) is not None}
        for form in self.forms:
            arrays = ((given.get(name), ndim) for name, ndim in form.ndim.items())
            if any_given == set(form.given) and all(array is None or array.ndim == ndim for array, ndim in arrays):
                return form
        had = ", ".join(f"{name} of {given[name].ndim}" for name in self.forms[0].ndim if given.get(name) is not None)
        must = " or ".join(
            ", ".join([*(f"{name} of {ndim}" for name, ndim in form.ndim.items()), *form.given]) for form in self.forms
        )
        from .native import ArgumentError  # the table is read before the binding is there

        raise ArgumentError(f"{next(iter(self.forms[0].ndim))}: had dimensions {had}, must be {must}")

    def asked(self, given: Mapping[str, Any]) -> list[bool]:
        """For each result whether a call with these arguments makes it."""
        made: dict[str, bool] = {}
        for one in self.results:
            flag = given.get(one.asked_by) if one.asked_by else True
            wanted = given.get(one.unless_said) is not None if flag is None and one.unless_said else _there(flag)
            needs = made[one.needs] if one.needs in made else not one.needs or bool(_there(given.get(one.needs)))
            made[one.name] = wanted and needs
        return list(made.values())

    def places(self, one: Result, given: Mapping[str, Any]) -> tuple[Place, ...]:
        """For each dimension of a result the argument and dimension that give its length in this call."""
        argument, word = self.exchange
        return one.shapes[self.form_of(given).name][bool(argument) and given.get(argument) == word]

    def dtype(self, one: Result, dtype_of: str, given: Mapping[str, Any]) -> str:
        """The dtype of a result, when that of the array that it goes by is `dtype_of`."""
        if one.dtype:
            return one.dtype
        choices = one.when.get(dtype_of, (dtype_of,))
        return str(given.get(one.chosen_by) or choices[0]) if one.chosen_by else choices[0]


def operator_of(said: Mapping[str, Any]) -> Operator:
    """An operator from JSON, as a table or the manifest of a library has it."""
    fields = {name: tuples(value) for name, value in said.items()}
    fields["forms"] = tuple(Form(**form) for form in fields["forms"])
    fields["results"] = tuple(Result(**result) for result in fields["results"])
    if fields["independent"] is not None:
        fields["independent"] = Independent(**fields["independent"])
    return Operator(**fields)


def tuples(value: Any) -> Any:
    """Lists of JSON as tuples, however deep."""
    if isinstance(value, list):
        return tuple(map(tuples, value))
    return {name: tuples(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _there(value: Any) -> bool:
    """Is it given: an array, or a number that is not 0?"""
    return value is not None and (hasattr(value, "ndim") or bool(value))
