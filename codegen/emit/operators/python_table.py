# SPDX-License-Identifier: MIT
"""Operators as data for Python: python/tilekiln/_generated/operators.json, which `_core/shapes.py` there reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from codegen.emit.operators import bench_table, torch_schema
from codegen.emit.operators.binding import place
from codegen.plan import held
from codegen.plan.plan import Plan
from codegen.schema.errors import no_such
from codegen.schema.operators import Argument, Form, Operator


def text(operators: Mapping[str, Operator], receipts: Mapping[str, str]) -> str:
    """By operator what frameworks must know, and how `tilekiln bench` calls it, a line each."""
    lines = []
    for name, one in operators.items():
        known = _line(record(one, operators, receipts.get(name, "")))
        lines.append(f'"{name}": {{"known": {known},\n"call": {_line(bench_table.record(one))}}}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: object) -> str:
    return msgspec.json.encode(value).decode()


def of_outside(plan: Plan) -> dict[str, object]:
    """Of the operators from outside that a library holds: what frameworks must know, and no table of Python has."""
    every = plan.tree.operators
    return {one.name: record(one, every) for one in held.operators(plan) if one.outside}


def record(operator: Operator, operators: Mapping[str, Operator], receipt: str = "") -> dict[str, Any]:
    """All that is known of an operator there."""
    torch = operator.file.torch
    if torch.backward is not None and torch.backward not in operators:
        raise operator.document.error(("torch", "backward"), no_such("operator", torch.backward, operators))
    backward = operators[torch.backward] if torch.backward else None
    pairs = [a for a in operator.scalars if a.value == "int32" and a.kind == "pair"]
    states = [a for a in operator.scalars if a.value == "uint64" and a.kind == "pair"]
    return {
        "arrays": tuple(a.name for a in operator.positional),
        "optional": tuple(a.name for a in operator.positional if a.file.optional),
        "written": {a.name: a.file.written_with or "" for a in torch_schema.written(operator)},
        "forms": tuple(_form(operator, form) for form in operator.forms),
        "exchange": operator.exchange or ("", ""),
        "results": tuple(_results(operator)),
        "pairs": {a.name: tuple(zip(a.fields, a.default, strict=True)) for a in pairs},
        "states": {a.name: torch_schema.state(a) for a in states},
        "schema": torch_schema.schema(operator, backward),
        "twin": torch_schema.twin(operator),
        "contiguous": tuple(torch.contiguous),
        "backward": torch.backward or "",
        "backward_flags": tuple(torch_schema.backward_flags(operator, backward)),
        "receipt": receipt,
        "main": operator.main,
        "looks": _looks(operator),
        "independent": _independent(operator),
    }


def _looks(operator: Operator) -> tuple[int, int]:
    """The places of the arrays whose last lengths steer the choice of a kernel; else that of the first array."""
    names = [a.name for a in operator.positional]
    of = [s.file.of for s in operator.symbols.values() if s.word in operator.held and s.file.of in names]
    places = [names.index(name) for name in of if name] or [names.index(operator.first.name)]
    return places[0], places[-1]


def _form(operator: Operator, form: Form) -> dict[str, Any]:
    ndim = {a.name: len(operator.shape(form, a.name) or ()) for a in operator.form_of}
    return {"name": form.name, "ndim": ndim, "given": form.given}


def _results(operator: Operator) -> Iterator[dict[str, Any]]:
    always = [a.required for a in operator.results]
    if always != sorted(always, reverse=True):
        late = operator.results[always.index(True, always.index(False))].name
        error = f"'{late}' is always made: it must stand before the results that are asked for"
        raise operator.document.error(("arguments", late), error)
    for a in operator.results:
        yield _result(operator, a, {"asked_by": a.name if a.file.ask else a.file.asked_by})
    for flag, name in operator.file.torch.asks.items():
        yield _result(operator, operator.arguments[name], {"asked_by": flag, "torch_alone": True})


def _result(operator: Operator, a: Argument, how: dict[str, Any]) -> dict[str, Any]:
    file = a.file
    words: dict[str, Any] = {
        "dtype": "" if a.dtype_of else a.dtypes[0],
        "dtype_of": a.dtype_of,
        "when": {str(dtype): tuple(map(str, choices)) for dtype, choices in (file.when or {}).items()},
        "chosen_by": file.chosen_by,
        **how,
        "shape_by": file.shape_by,
        "unless_said": file.unless_said,
        "needs": file.needs,
    }
    shapes = {form.name: tuple(_places(operator, form, a, exchanged) for exchanged in (False, True))
              for form in operator.forms}  # fmt: skip
    return dict(name=a.name, shapes=shapes, **{name: value for name, value in words.items() if value})


def _places(operator: Operator, form: Form, a: Argument, exchanged: bool) -> tuple[tuple[str, int] | None, ...]:
    like = a.file.needs if a.file.needs in operator.arguments and a.kind == "result" else None
    return tuple(
        place(operator, form, exchanged, one.letter, like) for one in operator.shape(form, a.name, exchanged) or ()
    )


def _independent(operator: Operator) -> dict[str, Any] | None:
    file = operator.file.independent
    if file is None:
        return None
    form, letter = operator.forms[0], file.length
    leading: dict[str, int] = {}
    apart: dict[str, int] = {}
    for a in operator.arrays:
        if a.file.read or a.file.one:
            continue
        own = operator.shape(form, a.name)
        for shape in a.shapes or ([own] if own else []):
            letters = [one.letter for one in shape]
            if letter not in letters:
                apart[a.name] = len(shape)
            elif letters.index(letter) == 0 and letters.count(letter) == 1:
                leading[a.name] = len(shape)
        if a.kind == "result" and a.name not in leading:
            error = f"{a.name} does not begin with {letter} in form {form.name}"
            raise operator.document.error(("independent", "length"), error)
    taken = {a.name for a in operator.arrays if a.kind == "array"}
    leading, apart = ({name: n for name, n in of.items() if name in taken} for of in (leading, apart))
    return {"leading": leading, "apart": apart, "unless": tuple(file.unless)}
