# SPDX-License-Identifier: MIT
"""Docstring and reference page of an operator."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from codegen.emit.operators.check import listed
from codegen.emit.operators.entries import Entry, entries
from codegen.emit.operators.header import capital, dtype_text, numbers_text, shape_text
from codegen.schema.operators import Operator

WIDTH = 100


def listed_and(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def default(entry: Entry) -> str:
    """The default as Python writes it."""
    a = entry.argument
    if a is None:
        return "False" if entry.asks and not (entry.result and entry.result.file.unless_said) else "None"
    if a.is_array or a.is_pointer or a.kind == "stream":
        return "None"
    if a.kind == "dims":
        return "()"
    if a.kind == "flag":
        return str(bool(a.value))
    if a.kind == "word":
        return repr(a.value[0])
    if a.kind == "pair":
        return f"({', '.join(map(str, a.default))})"
    return repr(float(a.value)) if a.kind == "float" else str(a.default)


def signature(operator: Operator) -> str:
    """ "($self, q, k, v, *, out=None, ...)"."""
    places = [a.name for a in operator.positional]
    named = [f"{entry.name}={default(entry)}" for entry in entries(operator) if entry.name not in places]
    return f"($self, {', '.join(places)}, *, {', '.join(named)})"


def what(operator: Operator, entry: Entry) -> str:
    """Kind, dtype and shape of an argument in a few words."""
    a, result = entry.argument, entry.result
    if a is None:
        assert result is not None
        if entry.asks:
            return f"whether {result.name} is returned"
        return f"dtype of a new {result.name}: {listed([repr(word) for word in entry.words])}"
    if a.is_array:
        return dtype_text(a) + shape_text(operator, a)
    if a.kind == "word":
        return listed([repr(word) for word in a.value])
    if a.kind == "pair":
        return f"({', '.join(a.file.items or [])})"
    if a.kind == "dims":
        return numbers_text(a)
    return {"flag": "bool", "float": "float", "instance": "number or name of the kernel to use"}.get(a.kind, "")


def says(entry: Entry) -> str:
    a = entry.argument
    if a is None:
        return ""
    if a.kind == "instance":
        return "-1 lets the library choose"
    if a.kind == "stream":
        return "a tilekiln.Stream; None runs now, in the caller"
    text = a.file.about.replace("null", "None").replace("yes:", "True:")
    return f"{text}. None: a new array of the framework of the others" if a.kind == "result" and a.required else text


def docstring(operator: Operator) -> str:
    """Text of help(), after the function's name."""
    lines = [signature(operator), "--", "", *textwrap.wrap(operator.about, WIDTH), ""]
    lines += [*operator.file.details.rstrip().split("\n"), ""]
    for entry in entries(operator):
        text = ". ".join(part for part in (what(operator, entry), capital(operator, says(entry))) if part)
        lines += textwrap.wrap(f"{entry.name}: {text}", WIDTH, subsequent_indent="    ")
    lines += ["", *textwrap.wrap(returns(operator), WIDTH)]
    lines += ["", *textwrap.wrap(_COMMON, WIDTH)]
    return "\n".join(lines)


_COMMON = """Arrays are NumPy arrays, torch tensors or anything with __dlpack__, on the CPU. They are used where they \
lie, with their strides, and never copied. Every argument is checked before anything is written. Raises ArgumentError \
for a wrong argument, by name, and NoKernelError when this library has no instance for the problem, with the nearest \
ones and the command that builds it."""


def returns(operator: Operator) -> str:
    always = [r.name for r in operator.results if not r.file.asked_by and not r.file.ask]
    asked = [f"{r.name} with {r.file.asked_by or r.name + '=True'}" for r in operator.results if r.name not in always]
    parts = ([listed_and(always)] if always else []) + asked
    if not parts:
        return f"Returns None: {listed_and([a.name for a in operator.arrays if a.kind == 'written'])} are written."
    return f"Returns {listed_and(parts)}." + (" Several are a tuple." if len(operator.results) > 1 else "")
