# SPDX-License-Identifier: MIT
"""The calls of every operator as data, for `tilekiln bench`: `call` of each in python/tilekiln/_generated."""

from __future__ import annotations

from typing import Any

from codegen.schema.operators import Argument, Form, Operator


def record(operator: Operator) -> dict[str, Any]:
    """By the fields of python/tilekiln/bench/declaration.py."""
    used = {d.letter for form in operator.forms for a in operator.arrays for d in operator.shape(form, a.name) or ()}
    return {
        "lengths": {s.letter: s.word.replace(" ", "_") for s in operator.symbols.values() if s.letter in used},
        "forms": [_form(operator, form) for form in operator.forms],
        "arrays": {a.name: _array(a) for a in operator.arrays},
        "numbers": {a.name: _number(a) for a in operator.scalars if a.kind not in ("threads", "stream", "executor")},
        "dtype_words": {a.file.chosen_by: a.name for a in operator.results if a.file.chosen_by},
        "axes": operator.file.signature,
    }


def _form(operator: Operator, form: Form) -> dict[str, Any]:
    shapes = {a.name: operator.shape(form, a.name) for a in operator.arrays}
    letters = {name: " ".join(d.letter for d in shape) for name, shape in shapes.items() if shape is not None}
    return {"name": form.name, "mode": form.mode, "given": form.given, "shapes": letters}


def _array(a: Argument) -> dict[str, Any]:
    words: dict[str, Any] = {"kind": a.kind, "dtypes": tuple(a.dtypes)}
    of_file = a.file
    words |= {
        "dtype_of": a.dtype_of or "",
        "when": {str(k): tuple(map(str, v)) for k, v in (of_file.when or {}).items()},
        "required": a.required,
        "needs": of_file.needs or "",
        "asked_by": a.name if of_file.ask else of_file.asked_by or "",
    }
    return {name: value for name, value in words.items() if value}


def _number(a: Argument) -> Any:
    """The words of one, else its kind: pair int32 is the words of its two numbers."""
    if a.kind == "word":
        return tuple(a.value)
    return a.value if a.kind == "pair" else a.kind
