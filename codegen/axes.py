"""A family as the generator works with it: axes with codes and bits, head dims and rules as clauses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from codegen import schema, select
from codegen.errors import SelectionError, nearest
from codegen.select import Clause
from codegen.yaml_io import Document

BOOLEAN, ENUMERATED, INTEGER = 0, 1, 2  # tilekiln::Axis::kind
_BITS = (1, 4, 10)
_BOOLEAN_VALUES = ("no", "yes")

Value = bool | int | str


class Axis:
    """One axis. A code is the position of a value in `values`; integers pack the value itself, the others the code."""

    def __init__(
        self, position: int, name: str, about: str, kind: int, values: tuple[str, ...], word: str, shift: int
    ) -> None:
        self.position, self.name, self.about, self.kind, self.values = position, name, about, kind, values
        self.shift, self.bits = shift, _BITS[kind]
        self.field = (1 << self.bits) - 1  # the largest number that fits its bits
        self.all_codes = (1 << len(values)) - 1
        self.code_of = {value: code for code, value in enumerate(values)}
        if kind == BOOLEAN:
            self.words: tuple[str, ...] = (f"_n{word or name}", f"_{word or name}")
        else:
            form = word or "_{}"
            self.words = tuple(form.replace("{}", f"n{name}" if value == "none" else value) for value in values)
        numbers = [int(value) for value in values] if kind == INTEGER else range(len(values))
        self.packed = tuple(number << shift for number in numbers)

    def json(self, code: int) -> Value:
        value = self.values[code]
        return code == 1 if self.kind == BOOLEAN else int(value) if self.kind == INTEGER else value

    def code_in(self, packed: int) -> int:
        """The code of this axis in a packed signature."""
        field = packed >> self.shift & self.field
        return self.code_of[str(field)] if self.kind == INTEGER else field


class Rule(NamedTuple):
    name: str
    says: str
    when: list[Clause]  # a signature that meets one of them is illegal


class Family:
    """One kernels/<family>/family.yaml, checked."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.file = document.load(schema.FamilyFile)
        self.name, self.about = self.file.family, self.file.about
        self.axes = self._axes()
        self.axis_of: Mapping[str, Axis] = {axis.name: axis for axis in self.axes}
        self.everything: Clause = tuple(axis.all_codes for axis in self.axes)
        self.head_dims = self._head_dims()
        self.rules = [
            Rule(rule.name, rule.says, self.bind(rule.when, ("rules", index, "when")))
            for index, rule in enumerate(self.file.rules)
        ]
        self._unique("rules", [rule.name for rule in self.rules])
        for index, rule in enumerate(self.rules):
            if self.everything in rule.when:
                raise document.error(("rules", index, "when"), "this rule would forbid everything")
        self.pipelines = tuple(pipeline.name for pipeline in self.file.pipelines)
        self._unique("pipelines", list(self.pipelines))
        for index, name in enumerate(self.file.batch_by):
            if name not in self.axis_of:
                near = ", ".join(nearest(name, self.axis_of)) or ", ".join(self.axis_of)
                raise document.error(("batch_by", index), f"no axis '{name}'; nearest: {near}")

    def _unique(self, part: str, names: list[str]) -> None:
        for index, name in enumerate(names):
            if name in names[:index]:
                raise self.document.error((part, index, "name"), f"'{name}' stands here twice")

    def _axes(self) -> list[Axis]:
        file, axes, shift = self.file, list[Axis](), 0
        self._unique("axes", [axis.name for axis in file.axes])
        from_table = [axis.name for axis in file.axes if axis.values == "head_dims"]
        if file.axes[0].name != "dtype" or from_table != ["hdim_q", "hdim_v"]:
            message = "the first axis must be 'dtype', and hdim_q and hdim_v alone take `values: head_dims`"
            raise self.document.error(("axes",), message)
        for position, axis in enumerate(file.axes):
            values: tuple[str, ...] = _BOOLEAN_VALUES
            if axis.values is None:
                kind = BOOLEAN
            elif axis.values == "head_dims":
                side = axis.name == "hdim_v"
                numbers = {int(pair.split("x")[side]) for pairs in file.head_dims.values() for pair in pairs}
                kind, values = INTEGER, tuple(str(number) for number in sorted(numbers))
            else:
                kind, values = ENUMERATED, tuple(axis.values)
                if len(set(values)) != len(values) or len(values) > 1 << _BITS[ENUMERATED]:
                    message = f"an axis has at most {1 << _BITS[ENUMERATED]} values, each once"
                    raise self.document.error(("axes", position, "values"), message)
            axes.append(Axis(position, axis.name, axis.about, kind, values, axis.word, shift))
            shift += axes[-1].bits
            if len(set(axes[-1].words)) != len(values):
                raise self.document.error(("axes", position, "word"), "this gives two values one word; {} is the value")
        if shift > 64:
            raise self.document.error(("axes",), f"the axes need {shift} bits; a signature has 64")
        return axes

    def _head_dims(self) -> list[tuple[int, int, int]]:
        """The legal (code of dtype, hdim_q, hdim_v), in listing order."""
        dtype, pairs = self.axes[0], list[tuple[int, int, int]]()
        for name, listed in self.file.head_dims.items():
            if name not in dtype.code_of:
                near = ", ".join(nearest(name, dtype.values)) or ", ".join(dtype.values)
                raise self.document.error(("head_dims", f"<{name}>"), f"no dtype '{name}'; nearest: {near}")
            for index, pair in enumerate(listed):
                if pair in listed[:index]:
                    raise self.document.error(("head_dims", name, index), f"'{pair}' stands here twice")
                hdim_q, hdim_v = map(int, pair.split("x"))
                pairs.append((dtype.code_of[name], hdim_q, hdim_v))
        return sorted(pairs)

    @cached_property
    def head_dim_clauses(self) -> list[Clause]:
        q, v = self.axis_of["hdim_q"], self.axis_of["hdim_v"]
        clauses = []
        for dtype, hdim_q, hdim_v in self.head_dims:
            clause = list(self.everything)
            clause[0] = 1 << dtype
            clause[q.position], clause[v.position] = 1 << q.code_of[str(hdim_q)], 1 << v.code_of[str(hdim_v)]
            clauses.append(tuple(clause))
        return clauses

    def bind(
        self, selection: schema.Selection, path: tuple[str | int, ...], document: Document | None = None
    ) -> list[Clause]:
        """The clauses of a selection that stands at `path` of a document (of the family's own by default)."""
        clauses: list[Clause] = []
        for index, text in enumerate([selection] if isinstance(selection, str) else selection):
            at = path if isinstance(selection, str) else (*path, index)
            try:
                clauses += select.bind(self, text)
            except SelectionError as error:
                raise (document or self.document).selection_error(at, error) from error
        return clauses

    def signature(self, packed: int) -> dict[str, Value]:
        return {axis.name: axis.json(axis.code_in(packed)) for axis in self.axes}

    def selection(self, packed: int) -> str:
        """A packed signature as a selection that only it meets."""
        return " ".join(f"{axis.name}={axis.values[axis.code_in(packed)]}" for axis in self.axes)
