# SPDX-License-Identifier: MIT
"""The selection language over a manifest: `dtype=bf16 hdim_q=64,128 or dtype=fp32 tile_q>=64`.

It is that of receipts and of the command line (`_language`, one file for both). The axes and values are those of the
manifest, `family`, `target`, `pipeline` and the axes of algorithms among them, and the numbers of an algorithm axis by
their names; so a wrong one is an error that names the nearest right one. An instance whose family has no such axis
(null in the manifest) meets no condition on it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._core import language as _language
from .._core.language import Condition
from .._core.native import ArgumentError

Row = Sequence[Any]
Value = Callable[[Row], str | None]


def text(value: Any) -> str:
    """A value as the language writes it."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def compile_where(where: str, manifest: Mapping[str, Any]) -> Callable[[Row], bool]:
    """The predicate of a selection over the rows of a manifest. Raises ArgumentError for a wrong axis or value."""
    columns, rows = manifest["instances"]["columns"], manifest["instances"]["rows"]
    axes = _axes(columns, manifest["families"])

    def bound(condition: Condition) -> Callable[[Row], bool]:
        if condition.axis not in axes:
            raise _failure(_language.no_axis(condition.axis, axes), where, condition.offset)
        value = axes[condition.axis]
        known = {of for of in map(value, rows) if of is not None}
        if condition.ordered:
            if not all(of.isdecimal() for of in known):
                raise _failure(_language.no_order(condition.axis), where, condition.offset)
        else:
            for asked, offset in zip(condition.values, condition.offsets, strict=True):
                if asked not in known:
                    listed = sorted(known, key=lambda of: (len(of), of))
                    raise _failure(_language.no_value(condition.axis, asked, listed), where, offset)
        return lambda row: (of := value(row)) is not None and condition.holds(of)

    clauses = [[bound(condition) for condition in clause] for clause in _language.parse(where, _failure)]
    return lambda row: any(all(holds(row) for holds in clause) for clause in clauses)


def _axes(columns: Sequence[str], families: Mapping[str, Any]) -> dict[str, Value]:
    """Readers of the axes that selections name: columns of a row, and numbers of algorithm axes."""

    def column(at: int) -> Value:
        return lambda row: None if row[at] is None else text(row[at])

    axes = {name: column(at) for at, name in enumerate(columns)}
    family = columns.index("family")
    places: dict[str, dict[str, tuple[int, int]]] = {}
    for name, of in families.items():
        for axis, numbers in of["numbers"].items():
            for place, number in enumerate(numbers):
                places.setdefault(number, {})[name] = columns.index(axis), place
    for number, of_family in places.items():
        axes.setdefault(number, _number(of_family, family))
    return axes


def _number(places: Mapping[str, tuple[int, int]], family: int) -> Value:
    """A number of an algorithm axis: by family the column of the axis, whose value is such as 64x128, and its place."""

    def value(row: Row) -> str | None:
        column, place = places.get(row[family], (0, -1))
        return str(row[column]).split("x")[place] if place >= 0 else None

    return value


def _failure(message: str, where: str, offset: int) -> ArgumentError:
    return ArgumentError(f"where: {message}\n  {where}\n  {' ' * offset}^")
