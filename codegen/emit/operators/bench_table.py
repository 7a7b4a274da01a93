"""The calls of every operator as data, for `tilekiln bench`: python/tilekiln/bench/_declared.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen.schema.operators import Argument, Form, Operator

HEAD = '''"""Arrays, lengths, numbers and axes of every operator, for `tilekiln bench`.

Made by `python -m codegen operators --write` from kernels/*/*/operator.yaml; change those.
"""
# fmt: off
# ruff: noqa: E501, RUF100

from __future__ import annotations

from .declaration import Array, Call, Form

CALLS: dict[str, Call] = {
'''


def text(operators: Mapping[str, Operator]) -> str:
    return HEAD + "".join(_entry(one) for one in operators.values()) + "}\n"


def _entry(operator: Operator) -> str:
    used = {d.letter for form in operator.forms for a in operator.arrays for d in operator.shape(form, a.name) or ()}
    lengths = {s.letter: s.word.replace(" ", "_") for s in operator.symbols.values() if s.letter in used}
    numbers = {a.name: _number(a) for a in operator.scalars if a.kind not in ("threads", "stream", "executor")}
    asks = {a.file.chosen_by: a.name for a in operator.results if a.file.chosen_by}
    lines = [
        f"lengths={lengths!r}",
        *(f"forms=({', '.join(_form(operator, form) for form in operator.forms)},)",),
        f"arrays={{{', '.join(f'{a.name!r}: {_array(a)}' for a in operator.arrays)}}}",
        f"numbers={numbers!r}",
        f"dtype_words={asks!r}",
        f"axes={operator.file.signature!r}",
    ]
    return f"    {operator.name!r}: Call(\n" + "".join(f"        {line},\n" for line in lines) + "    ),\n"


def _form(operator: Operator, form: Form) -> str:
    shapes = {a.name: operator.shape(form, a.name) for a in operator.arrays}
    letters = {name: " ".join(d.letter for d in shape) for name, shape in shapes.items() if shape is not None}
    return f"Form(name={form.name!r}, mode={form.mode!r}, given={form.given!r}, shapes={letters!r})"


def _array(a: Argument) -> str:
    words: dict[str, Any] = {"kind": a.kind, "dtypes": tuple(a.dtypes)}
    of_file = a.file
    words |= {
        "dtype_of": a.dtype_of or "",
        "when": {str(k): tuple(map(str, v)) for k, v in (of_file.when or {}).items()},
        "required": a.required,
        "needs": of_file.needs or "",
        "asked_by": a.name if of_file.ask else of_file.asked_by or "",
    }
    return f"Array({', '.join(f'{name}={value!r}' for name, value in words.items() if value)})"


def _number(a: Argument) -> Any:
    """The words of one, else its kind: pair int32 is the words of its two numbers."""
    if a.kind == "word":
        return tuple(a.value)
    return a.value if a.kind == "pair" else a.kind
