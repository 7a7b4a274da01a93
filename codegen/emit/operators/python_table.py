"""What frameworks must know of operators: python/tilekiln/_tables.py, data that python/tilekiln/_shapes.py reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from codegen.emit.operators import torch_schema
from codegen.emit.operators.binding import place
from codegen.schema.errors import no_such
from codegen.schema.operators import Argument, Form, Operator

HEAD = '''"""Every operator, for the facade's choice of a library, PyTorch's operators, and shapes of results.

Made by `python -m codegen operators --write` from kernels/*/*/operator.yaml; change those.
"""
# fmt: off
# ruff: noqa: E501, RUF100

from __future__ import annotations

from ._shapes import Form, Independent, Operator, Result

OPERATORS: dict[str, Operator] = {
'''


def text(operators: Mapping[str, Operator]) -> str:
    return HEAD + "".join(_operator(one, operators) for one in operators.values()) + "}\n"


def _operator(operator: Operator, operators: Mapping[str, Operator]) -> str:
    torch = operator.file.torch
    if torch.backward is not None and torch.backward not in operators:
        raise operator.document.error(("torch", "backward"), no_such("operator", torch.backward, operators))
    backward = operators[torch.backward] if torch.backward else None
    pairs = [a for a in operator.scalars if a.value == "int32" and a.kind == "pair"]
    states = [a for a in operator.scalars if a.value == "uint64" and a.kind == "pair"]
    fields: dict[str, str] = {
        "arrays": repr(tuple(a.name for a in operator.positional)),
        "optional": repr(tuple(a.name for a in operator.positional if a.file.optional)),
        "written": repr({a.name: a.file.written_with or "" for a in torch_schema.written(operator)}),
        "forms": _tuple(_form(operator, form) for form in operator.forms),
        "exchange": repr(operator.exchange or ("", "")),
        "results": _tuple(_results(operator)),
        "pairs": repr({a.name: tuple(zip(a.fields, a.default, strict=True)) for a in pairs}),
        "states": repr({a.name: torch_schema.state(a) for a in states}),
        "schema": repr(torch_schema.schema(operator, backward)),
        "twin": repr(torch_schema.twin(operator)),
        "contiguous": repr(tuple(torch.contiguous)),
        "backward": repr(torch.backward or ""),
        "backward_flags": repr(tuple(torch_schema.backward_flags(operator, backward))),
        "main": repr(operator.main),
        "looks": repr(_looks(operator)),
        "independent": _independent(operator),
    }
    lines = "".join(f"        {name}={value},\n" for name, value in fields.items())
    return f"    {operator.name!r}: Operator(\n{lines}    ),\n"


def _looks(operator: Operator) -> tuple[int, int]:
    """The places of the arrays whose last lengths steer the choice of a kernel; else that of the first array."""
    names = [a.name for a in operator.positional]
    of = [s.file.of for s in operator.symbols.values() if s.word in operator.held and s.file.of in names]
    places = [names.index(name) for name in of if name] or [names.index(operator.first.name)]
    return places[0], places[-1]


def _tuple(items: Iterator[str]) -> str:
    return "(\n" + "".join(f"            {item},\n" for item in items) + "        )"


def _form(operator: Operator, form: Form) -> str:
    ndim = {a.name: len(operator.shape(form, a.name) or ()) for a in operator.form_of}
    return f"Form(name={form.name!r}, ndim={ndim!r}, given={form.given!r})"


def _results(operator: Operator) -> Iterator[str]:
    always = [a.required for a in operator.results]
    if always != sorted(always, reverse=True):
        late = operator.results[always.index(True, always.index(False))].name
        error = f"'{late}' is always made: it must stand before the results that are asked for"
        raise operator.document.error(("arguments", late), error)
    for a in operator.results:
        yield _result(operator, a, {"asked_by": a.name if a.file.ask else a.file.asked_by})
    for flag, name in operator.file.torch.asks.items():
        yield _result(operator, operator.arguments[name], {"asked_by": flag, "torch_alone": True})


def _result(operator: Operator, a: Argument, how: dict[str, Any]) -> str:
    file = a.file
    words: dict[str, Any] = {
        "dtype": "" if a.dtype_of else a.dtypes[0],
        "dtype_of": a.dtype_of,
        "when": {str(dtype): tuple(map(str, choices)) for dtype, choices in (file.when or {}).items()},
        "chosen_by": file.chosen_by,
        **how,
        "unless_said": file.unless_said,
        "needs": file.needs,
    }
    shapes = {form.name: tuple(_places(operator, form, a, exchanged) for exchanged in (False, True))
              for form in operator.forms}  # fmt: skip
    said = "".join(f", {name}={value!r}" for name, value in words.items() if value)
    return f"Result(name={a.name!r}, shapes={shapes!r}{said})"


def _places(operator: Operator, form: Form, a: Argument, exchanged: bool) -> tuple[tuple[str, int] | None, ...]:
    like = a.file.needs if a.file.needs in operator.arguments and a.kind == "result" else None
    return tuple(
        place(operator, form, exchanged, one.letter, like) for one in operator.shape(form, a.name, exchanged) or ()
    )


def _independent(operator: Operator) -> str:
    file = operator.file.independent
    if file is None:
        return "None"
    form, letter = operator.forms[0], file.length
    leading: dict[str, int] = {}
    apart: dict[str, int] = {}
    for a in operator.arrays:
        if a.file.read == "host" or a.file.one:
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
    return f"Independent(leading={leading!r}, apart={apart!r}, unless={tuple(file.unless)!r})"
