# SPDX-License-Identifier: MIT
"""The calls of every operator, by which `tilekiln bench` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._core.shapes import tuples
from .._generated.tables import DECLARED


@dataclass(frozen=True)
class Form:
    """One way that a call may be shaped: letters of lengths by array; `given`: the arrays that make it this one."""

    name: str
    mode: str
    given: tuple[str, ...]
    shapes: Mapping[str, str]


@dataclass(frozen=True)
class Array:
    """One array of a call. when: its dtypes where `dtype_of` has this one."""

    kind: str
    dtypes: tuple[str, ...] = ()
    dtype_of: str = ""
    when: Mapping[str, tuple[str, ...]] | None = None
    required: bool = False
    needs: str = ""
    asked_by: str = ""


@dataclass(frozen=True)
class Call:
    """One operator. numbers: by name the words of an argument, or its kind. axes: as operator.yaml's signature."""

    lengths: Mapping[str, str]
    forms: tuple[Form, ...]
    arrays: Mapping[str, Array]
    numbers: Mapping[str, Any]
    dtype_words: Mapping[str, str]
    axes: Mapping[str, Any]

    def axis_choices(self, axis: str) -> list[str]:
        """The values of an axis that a caller sets; empty where it follows from the arrays."""
        said = self.axes[axis]
        if isinstance(said, str):
            if said == "form":
                return list(dict.fromkeys(form.mode for form in self.forms))
            if said == "host":
                return []
            kind = self.numbers.get(said, "array")
            return list(kind) if isinstance(kind, tuple) else ["no", "yes"]
        leaves = list(dict.fromkeys(value for value, _ in leaves_of(said)))
        return leaves if any(isinstance(one, dict) for one in said.values()) else ["none", *said]


def leaves_of(said: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """(value of the axis, dtype by array) of an axis that goes by dtypes; (value, {}) of any other."""
    found: list[tuple[str, dict[str, str]]] = []
    for key, inner in said.items():
        if not isinstance(inner, dict):
            found.append((key, {}))
            continue
        for dtype, leaf in inner.items():
            if isinstance(leaf, dict):
                found += [(value, {key: dtype, **more}) for value, more in leaves_of(leaf)]
            else:
                found.append((leaf, {key: dtype}))
    return found


def _call(said: Mapping[str, Any]) -> Call:
    fields = {name: tuples(value) for name, value in said.items() if name != "axes"}
    fields["forms"] = tuple(Form(**form) for form in fields["forms"])
    fields["arrays"] = {name: Array(**array) for name, array in fields["arrays"].items()}
    return Call(**fields, axes=said["axes"])


CALLS: dict[str, Call] = {name: _call(one["call"]) for name, one in DECLARED.items()}
"""Arrays, lengths, numbers and axes of every operator."""
