"""The selection language over a manifest: `dtype=bf16 hdim_q=64,128 or dtype=fp32 mask!=none`.

Conditions side by side must all hold; clauses are separated by `or`. Booleans are yes and no. The axes and values
are those of the manifest, so a wrong one is an error that names the nearest right one. An instance whose family has
no such axis (null in the manifest) meets no condition on it.
"""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from ._native import ArgumentError

Row = Sequence[Any]


def text(value: Any) -> str:
    """A value as the language writes it."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def compile_where(where: str, columns: Sequence[str], rows: Sequence[Row]) -> Callable[[Row], bool]:
    """The predicate of a selection over rows of a manifest. Raises ArgumentError for a wrong axis or value."""
    clauses: list[list[tuple[int, bool, frozenset[str]]]] = [[]]
    words = where.split()
    for word in words:
        if word == "or":
            if not clauses[-1]:
                raise ArgumentError(f"where: nothing stands before an 'or' in {where!r}")
            clauses.append([])
        else:
            clauses[-1].append(_condition(word, columns, rows))
    if words and not clauses[-1]:
        raise ArgumentError(f"where: nothing stands after the last 'or' in {where!r}")
    return lambda row: any(
        all(row[at] is not None and (text(row[at]) in values) != negated for at, negated, values in clause)
        for clause in clauses
    )


def _condition(word: str, columns: Sequence[str], rows: Sequence[Row]) -> tuple[int, bool, frozenset[str]]:
    axis, sign, values = word.partition("=")
    if not sign or not axis or not values or values.startswith("="):
        raise ArgumentError(f"where: {word!r} is no condition; write axis=value[,value] or axis!=value")
    negated = axis.endswith("!")
    axis = axis.rstrip("!")
    if axis not in columns:
        raise ArgumentError(f"where: there is no axis {axis!r}; {_nearest(axis, list(columns))}")
    column = columns.index(axis)
    known = sorted(
        {text(row[column]) for row in rows if row[column] is not None}, key=lambda value: (len(value), value)
    )
    for value in values.split(","):
        if value not in known:
            raise ArgumentError(f"where: no instance of this library has {axis}={value}; {_nearest(value, known)}")
    return column, negated, frozenset(values.split(","))


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 3, 0.5)
    return f"nearest: {', '.join(near)}" if near else f"it has: {', '.join(known)}"
