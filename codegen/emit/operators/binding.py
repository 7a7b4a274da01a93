# SPDX-License-Identifier: MIT
"""The table of an operator (include/tilekiln/operator.h): all that a binding must know to call it."""

from __future__ import annotations

from typing import Any

from codegen.emit.operators import page
from codegen.emit.operators.check import code
from codegen.emit.operators.entries import Entry, entries
from codegen.schema.operators import MOST_DIMENSIONS, Argument, Form, Operator

NOWHERE = "TILEKILN_NOWHERE"
MOST_FORMS, MOST_POSITIONAL, MOST_ARGUMENTS, MOST_CHOICES = 4, 8, 64, 6
_KINDS = {"int": "INT", "threads": "INT", "int32": "PAIR_INT", "uint64": "PAIR_ULONG"}


def place(operator: Operator, form: Form, exchanged: bool, letter: str, like: str | None) -> tuple[str, int] | None:
    """The array and dimension that give a length: an array by position if one has it, else `like`, of that shape."""
    of = operator.symbols[letter].file.of
    for a in sorted(operator.positional, key=lambda a: a.name != of):
        for index, one in enumerate(operator.shape(form, a.name, exchanged) or ()):
            if one.letter == letter and not one.at_least:
                return a.name, index
    if like is not None:
        for index, one in enumerate(operator.shape(form, like, exchanged) or ()):
            if one.letter == letter:
                return like, index
    return None


_BYTES = {"float": 4, "int32_t": 4, "int64_t": 8, "uint64_t": 8, "tilekiln_dims": 4 + 4 * MOST_DIMENSIONS}
_ALIGNMENT = {"tilekiln_dims": 4}  # else as many as its bytes


def layout(operator: Operator) -> dict[str, int]:
    """Offset of each field of the struct of arguments on a machine of 64 bits; "": its size."""
    offsets, end = {"size": 0}, 8
    for a in operator.arguments.values():
        bytes_ = _BYTES.get(a.c_type, 8)  # else a pointer
        alignment = _ALIGNMENT.get(a.c_type, bytes_)
        for field in a.fields:
            offsets[field] = -(-end // alignment) * alignment
            end = offsets[field] + bytes_
    return offsets | {"": -(-end // 8) * 8}


class Table:
    """The context of kernels/runtime/operator_table.h.jinja."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.entries = entries(operator)
        self.names = [entry.name for entry in self.entries]
        self.positional = operator.positional
        for count, most, what in (
            (len(self.entries), MOST_ARGUMENTS, "arguments"),
            (len(operator.forms), MOST_FORMS, "forms"),
            (len(self.positional), MOST_POSITIONAL - 1, "arrays by position"),
        ):
            if count > most:
                raise operator.document.error((), f"{count} {what}; there may be {most}")

    def context(self) -> dict[str, Any]:
        operator = self.operator
        untouched = operator.file.untouched
        forms = [form for form in operator.forms if form.mode in untouched.form]
        offsets = layout(operator)
        return {
            "operator": operator,
            "arguments": [self._argument(entry) for entry in self.entries],
            "results": [self._result(result) for result in operator.results],
            "forms": [self._form(form) for form in operator.forms],
            "positional": len(self.positional),
            "optional": sum(1 << index for index, a in enumerate(self.positional) if not a.required),
            "positional_text": page.listed_and([a.name for a in self.positional]),
            "dtypes": [code(dtype) for dtype in operator.first.dtypes],
            "first": self.names.index(operator.first.name),
            "zero_forms": sum(1 << form.index for form in forms),
            "zero_given": self._bits(untouched.given),
            "any_given": self._bits([name for form in operator.forms for name in form.given]),
            "doc": page.docstring(operator),
            "offsets": [(field, at) for field, at in offsets.items() if field],
            "size": offsets[""],
            "problem": operator.problem,
        }

    def _bits(self, names: Any) -> str:
        return f"{sum(1 << index for index in {self.names.index(name) for name in names}):#x}u"

    def _index(self, name: str | None) -> str:
        return NOWHERE if name is None else str(self.names.index(name))

    def _argument(self, entry: Entry) -> dict[str, Any]:
        a = entry.argument
        if a is None:
            kind, field, least = ("ASK" if entry.asks else "CHOOSE"), None, 0
        else:
            kind = "POINTER" if a.is_pointer else _KINDS.get(a.value if a.kind == "pair" else a.kind, a.kind.upper())
            field, least = a.fields[0], a.file.least or 0
        words = entry.words or ([", ".join(a.file.items or [])] if a and a.kind == "pair" else [])
        return {
            "name": entry.name,
            "kind": f"TILEKILN_{kind}",
            "field": field,
            "least": least,
            "words": words,
            "written_with": self._index(a.file.written_with if a else None),
        }

    def _place(self, form: Form, exchanged: bool, letter: str, like: str | None) -> int | None:
        found = place(self.operator, form, exchanged, letter, like)
        return self.names.index(found[0]) << 4 | found[1] if found else None

    def _result(self, result: Argument) -> dict[str, Any]:
        operator, file = self.operator, result.file
        shape = []
        for form in operator.forms:
            dims = []
            for exchanged in (False, True):
                places = []
                for one in operator.shape(form, result.name, exchanged) or ():
                    place = self._place(form, exchanged, one.letter, file.needs)
                    if place is None:
                        at = ("arguments", result.name)
                        raise operator.document.error(at, f"no array given by position says {one.letter}")
                    places.append(place)
                dims.append(places)
            shape.append(dims)
        choices = [(code(when), [code(dtype) for dtype in dtypes]) for when, dtypes in (file.when or {}).items()]
        if max([len(choices), *(len(dtypes) for _, dtypes in choices)]) > MOST_CHOICES:
            where = ("arguments", result.name, "when")
            raise operator.document.error(where, f"has more than {MOST_CHOICES} dtypes; bindings know no more")
        return {
            "argument": self._index(result.name),
            "asked_by": self._index(result.name if file.ask else file.asked_by),
            "unless": self._index(file.unless_said),
            "chosen_by": self._index(file.chosen_by),
            "dtype_of": self._index(result.dtype_of),
            "needs": self._index(file.needs),
            "dtype": 0 if result.dtype_of else code(result.dtypes[0]),
            "choices": choices,
            "ndim": [len(dims[0]) for dims in shape],
            "shape_by": file.shape_by,
            "shape": shape,
        }

    def _form(self, form: Form) -> dict[str, Any]:
        operator = self.operator
        work = []
        for exchanged in (False, True):
            places: list[str] = []
            for what in operator.file.work:
                if what in operator.arguments:
                    shape = operator.shape(form, what, exchanged) or ()
                    places += [str(self.names.index(what) << 4 | index) for index in range(len(shape))]
                else:
                    place = self._place(form, exchanged, what, None)
                    places += [str(place)] if place is not None else []
            if len(places) >= MOST_POSITIONAL:
                raise operator.document.error(("work",), f"{len(places)} lengths; there may be {MOST_POSITIONAL - 1}")
            work.append([*places, "0xffff"])
        first = next(step for step in operator.order if isinstance(step, list))
        return {
            "given": self._bits(form.given),
            # Dimensions of the arrays whose dimensions a library asks for before those of any result.
            "ndim": [len(operator.shape(form, a.name) or ()) if a.name in first else 0 for a in self.positional],
            "work": work,
        }
