# SPDX-License-Identifier: MIT
"""The schema of an operator of PyTorch: arguments by position, further arrays, all else in the order of Python."""

from __future__ import annotations

import string
from collections.abc import Iterator

from codegen.emit.operators.entries import Entry, entries
from codegen.schema.operators import Argument, Operator


def written(operator: Operator) -> list[Argument]:
    """The arrays by position that a call writes."""
    return [a for a in operator.positional if a.kind == "written" or a.file.written_with]


def state(pair: Argument) -> str:
    """The tensor in place of a seed and an offset."""
    return f"{pair.name}_state"


def backward_flags(operator: Operator, backward: Operator | None) -> list[str]:
    """Flags that the derivative alone has."""
    return (
        [a.name for a in backward.scalars if a.kind == "flag" and a.name not in operator.arguments] if backward else []
    )


def schema(operator: Operator, backward: Operator | None) -> str:
    names = [a.name for a in operator.results] + list(operator.file.torch.asks.values())
    results = ", ".join(f"Tensor {name}" for name in names)
    return f"({', '.join(_arguments(operator, backward))}) -> {'Tensor' if len(names) == 1 else f'({results})'}"


def twin(operator: Operator) -> str:
    """The one result that is always made; empty where that is none, or several."""
    always = [a.name for a in operator.results if a.required]
    return always[0] if len(always) == 1 and not written(operator) else ""


def _arguments(operator: Operator, backward: Operator | None) -> Iterator[str]:
    torch = operator.file.torch
    letters = dict(zip((a.name for a in written(operator)), string.ascii_lowercase, strict=False))
    for a in operator.positional:
        alias = f"({letters[a.name]}!)" if a.name in letters else ""
        yield f"Tensor{alias}{'?' if a.file.optional else ''} {a.name}"
    for a in operator.arrays:
        if a.kind == "array" and not a.file.place and a.name not in torch.without:
            yield f"Tensor? {a.name}=None"
    # The derivative reads these, so they are made unless declined.
    reads = [a.name for a in backward.positional] if backward else []
    for entry in entries(operator):
        if entry.name not in torch.without and not (entry.argument and entry.argument.is_array):
            yield from _scalar(entry, reads)
    yield from (f"bool {a.name}=False" for a in operator.results if a.file.ask)
    yield from (f"bool {flag}=False" for flag in torch.asks)
    yield from (f"bool {flag}=False" for flag in backward_flags(operator, backward))


def _scalar(entry: Entry, reads: list[str]) -> Iterator[str]:
    a, name = entry.argument, entry.name
    if a is None:
        assert entry.result is not None
        if not entry.asks:
            yield f"str? {name}=None"
        elif entry.result.file.unless_said:
            yield f"bool? {name}=None"
        else:
            yield f"bool {name}={entry.result.name in reads}"
    elif a.kind == "pair" and a.value == "uint64":
        yield f"Tensor? {state(a)}=None"
    elif a.kind == "pair":
        yield from (f"SymInt {field}={value}" for field, value in zip(a.fields, a.default, strict=True))
    elif a.kind == "dims":
        yield f"int[] {name}=[]"
    elif a.is_pointer:
        yield f"float? {name}=None"
    elif a.kind == "instance":
        yield f"str? {name}=None"
    elif a.kind in ("int", "threads"):
        yield f"SymInt {name}={a.default}"
    elif a.kind == "float":
        yield f"float {name}={float(a.value)!r}"
    elif a.kind == "flag":
        yield f"bool {name}={bool(a.value)}"
    elif a.kind == "word":
        yield f"str {name}={a.value[0]!r}"
