# SPDX-License-Identifier: MIT
"""A family as the generator works with it: axes with codes and bits, tables and rules as clauses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from codegen.schema import rooms, select, yaml_types
from codegen.schema.algorithms import FIXED, AlgorithmAxis
from codegen.schema.errors import SelectionError, nearest, no_such
from codegen.schema.select import Clause
from codegen.schema.yaml_io import Document

BOOLEAN, ENUMERATED, INTEGER = 0, 1, 2  # tilekiln::Axis::kind
ENUMERATED_MOST = 64  # tilekiln::Condition::allowed has a bit for each
CODES = (1 << 64) - 1
INTEGERS = 64  # shift of the integers in a packed signature: the first 64 bits are the other axes
MOST_INTEGERS, MOST_SIZES = 6, 6  # tilekiln::Query
_BOOLEAN_VALUES = ("no", "yes")
_NO_MAIN = "only a companion (`companion_of`) has a main family"

Value = bool | int | str


class Axis:
    """One axis. A code is the position of a value in `values`; integers pack the value itself, the others the code."""

    def __init__(
        self,
        position: int,
        name: str,
        about: str,
        kind: int,
        values: tuple[str, ...],
        word: str | list[str],
        shift: int,
        holds: str = "",
    ) -> None:
        self.position, self.name, self.about, self.kind, self.values = position, name, about, kind, values
        self.holds = holds  # of an integer: at_least, equal
        self.apart: frozenset[int] = frozenset()  # codes of the values whose rows have sources of their own
        self.shift, self.bits = shift, _bits(kind, values)
        self.field = (1 << self.bits) - 1  # the largest number that fits its bits
        self.all_codes = (1 << len(values)) - 1
        self.code_of = {value: code for code, value in enumerate(values)}
        self.word = word
        if isinstance(word, list):
            self.words: tuple[str, ...] = tuple(one and f"_{one}" for one in word)
        elif kind == BOOLEAN:
            self.words = (f"_n{word or name}", f"_{word or name}")
        else:
            form = word or "_{}"
            self.words = tuple(form.replace("{}", f"n{name}" if value == "none" else value) for value in values)
        numbers = [int(value) for value in values] if kind == INTEGER else range(len(values))
        self.packed = tuple(number << shift for number in numbers)

    @property
    def table_words(self) -> tuple[str, ...]:
        """tilekiln::Axis::words: by code; of an integer what stands before and after its value."""
        if self.kind != INTEGER:
            return self.words
        before, _, after = (str(self.word) or "_{}").partition("{}")
        return before, after

    def json(self, code: int) -> Value:
        value = self.values[code]
        return code == 1 if self.kind == BOOLEAN else int(value) if value.isdecimal() else value

    def code_in(self, packed: int) -> int:
        """The code of this axis in a packed signature."""
        field = packed >> self.shift & self.field
        return self.code_of[str(field)] if self.kind == INTEGER else field


def _bits(kind: int, values: tuple[str, ...]) -> int:
    """The width of an axis in a signature, in steps, so that a further value seldom moves the axes after it.

    Of an integer the highest bit stays 0 (tilekiln::Dispatcher compares all integers at once).
    """
    if kind == BOOLEAN:
        return 1
    if kind == ENUMERATED:
        return 4 if len(values) <= 16 else 6
    most = max(map(int, values), default=0)
    return next(bits for bits in (10, 16, 22, 32) if bits == 32 or most < (1 << bits - 1) - 1)


class Table(NamedTuple):
    """Values of integer axes that exist together."""

    name: str
    by: Axis
    columns: list[Axis]
    rows: list[tuple[int, tuple[int, ...]]]  # (code of `by`, values of the columns), in listing order

    @property
    def title(self) -> str:
        """As people say it: head dims."""
        return self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        return " x ".join(axis.name for axis in self.columns)

    def of(self, code: int) -> list[str]:
        """The rows of a value of `by` as people write them."""
        return ["x".join(map(str, row)) for by, row in self.rows if by == code]


class Entry(NamedTuple):
    """A member of an engine that answers some signatures: null there is an engine that lacks rows it lists."""

    member: str  # of the engine's type, with {axis} for the value of `axis`
    axis: Axis | None
    when: list[Clause]  # empty: always

    def members(self) -> list[str]:
        """By code of the axis."""
        if self.axis is None:
            return [self.member]
        return [self.member.replace(f"{{{self.axis.name}}}", value) for value in self.axis.values]


class Rule(NamedTuple):
    name: str
    says: str
    when: list[Clause]  # a signature that meets one of them is illegal


class Family:
    """One family.yaml of a room, checked.

    A companion is a family that exists for another, its `main`: it has a signature exactly where an instance of `main`
    needs it, which is what that instance's values of the axes they share say.
    """

    def __init__(self, document: Document, main: Family | None = None, engine_of: Family | None = None) -> None:
        self.document, self.main, self._engine_of = document, main, engine_of
        self.file = document.load(yaml_types.FamilyFile)
        self.name, self.about = self.file.family, self.file.about
        self.room = rooms.folder_of(document)
        self.algorithm_axes = self._algorithm_axes()
        self.axes = self._axes()
        self.axis_of: Mapping[str, Axis] = {axis.name: axis for axis in self.axes}
        self.everything: Clause = tuple(axis.all_codes for axis in self.axes)
        self.integers = [axis for axis in self.axes if axis.kind == INTEGER]
        self.table = self._table()
        self.fits = self._fits()
        self.base = self.bind(self.file.base, ("base",)) if self.file.base else [self.everything]
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
        self.engine, self.engine_family = self._engine(engine_of)
        if self.file.targets and self.engine_family is self:
            raise document.error(("targets",), "the engines are the family's own: targets say what they answer")
        self.entries = [self._entry(index, entry) for index, entry in enumerate(self.file.entries)]
        for index, name in enumerate(self.file.source_by):
            if name not in self.axis_of:
                near = ", ".join(nearest(name, self.axis_of)) or ", ".join(self.axis_of)
                raise document.error(("source_by", index), f"no axis '{name}'; nearest: {near}")

    def shares(self, pipeline: str) -> tuple[str, ...]:
        """The sources that its engine for that pipeline needs beside its own, as paths of the tree."""
        return tuple(path for one in self.file.pipelines if one.name == pipeline for path in one.shares)

    def owner(self, pipeline: str) -> Family:
        """The family in whose room the engines of that pipeline stand."""
        own = any(one.own for one in self.file.pipelines if one.name == pipeline)
        return self if own else self.engine_family

    def _entry(self, index: int, file: yaml_types.EntryFile) -> Entry:
        path = ("entries", index)
        found = re.findall(r"{(\w*)}", file.member)
        axis = self.axis_of.get(found[0]) if len(found) == 1 else None
        if len(found) > 1 or (found and (axis is None or axis.kind == INTEGER)):
            choices = [one.name for one in self.axes if one.kind != INTEGER]
            raise self.document.error((*path, "member"), f"it may name one axis in braces: {', '.join(choices)}")
        return Entry(file.member, axis, self.bind(file.when, (*path, "when")) if file.when else [])

    def _unique(self, part: str, names: list[str]) -> None:
        for index, name in enumerate(names):
            if name in names[:index]:
                raise self.document.error((part, index, "name"), f"'{name}' stands here twice")

    def _axes(self) -> list[Axis]:
        file, axes, shift, integers = self.file, list[Axis](), 0, INTEGERS
        self._unique("axes", [axis.name for axis in file.axes])
        for position, axis in enumerate(file.axes):
            values: tuple[str, ...] = _BOOLEAN_VALUES
            about, word, holds = axis.about, axis.word, str(axis.holds or "")
            if axis.values in ("main", "engine"):
                of = self._of(axis.values, position, axis.name)
                kind, values, about, word, holds = of.kind, of.values, about or of.about, word or of.word, of.holds
            elif axis.values is None:
                kind = BOOLEAN
            elif isinstance(axis.values, str) or holds:
                kind, values = INTEGER, self._integers(position, axis)
            else:
                kind, values = ENUMERATED, tuple(map(str, axis.values))
                if len(set(values)) != len(values) or len(values) > ENUMERATED_MOST:
                    message = f"an axis has at most {ENUMERATED_MOST} values, each once"
                    raise self.document.error(("axes", position, "values"), message)
            if axis.name in ("family", *self._how_names):
                what = "the family" if axis.name == "family" else "a part of the algorithm"
                message = f"'{axis.name}' means {what} in selections"
                raise self.document.error(("axes", position, "name"), message)
            if not about:
                raise self.document.error(("axes", position), "'about' is missing here")
            if isinstance(word, list) and len(word) != len(values):
                message = f"{len(word)} words for {len(values)} values: {', '.join(values)}"
                raise self.document.error(("axes", position, "word"), message)
            at = integers if kind == INTEGER else shift
            axes.append(Axis(position, axis.name, about, kind, values, word, at, holds))
            for index, value in enumerate(map(str, axis.apart)):
                if value not in values:
                    raise self.document.error(("axes", position, "apart", index), no_such("value", value, values))
            axes[-1].apart = frozenset(map(values.index, map(str, axis.apart)))
            if kind == INTEGER:
                integers += axes[-1].bits
            else:
                shift += axes[-1].bits
            if len(set(axes[-1].words)) != len(values):
                raise self.document.error(("axes", position, "word"), "this gives two values one word; {} is the value")
        for what, bits in (("axes", shift), ("integer axes", integers - INTEGERS)):
            if bits > 64:
                raise self.document.error(("axes",), f"the {what} need {bits} bits; a signature has 64 for them")
        if sum(axis.kind == INTEGER for axis in axes) > MOST_INTEGERS:
            raise self.document.error(("axes",), f"a family has at most {MOST_INTEGERS} integer axes")
        return axes

    @property
    def _how_names(self) -> list[str]:
        """Names of `target`, `pipeline`, algorithm axes and their numbers."""
        return [*FIXED, *(name for axis in self.algorithm_axes for name in (axis.name, *axis.of))]

    def _integers(self, position: int, axis: yaml_types.AxisFile) -> tuple[str, ...]:
        """The values of an integer axis, ascending: its own, or what the family's table has in its column."""
        if isinstance(axis.values, str):
            if axis.values not in self.file.tables:
                message = no_such("table", axis.values, self.file.tables) + ": write main, engine, the table or a list"
                raise self.document.error(("axes", position, "values"), message)
            if axis.holds is None:
                message = "'holds' is missing here: at_least (an instance takes any problem up to its value) or equal"
                raise self.document.error(("axes", position), message)
            columns = [one.name for one in self.file.axes if one.values == axis.values]
            numbers = set()
            for by, listed in self.file.tables[axis.values].values.items():
                for index, row in enumerate(listed):
                    parts = str(row).split("x")
                    if len(parts) != len(columns):
                        message = f"'{row}' must be {len(columns)} numbers ({', '.join(columns)}) with x between them"
                        raise self.document.error(("tables", axis.values, "values", by, index), message)
                    numbers.add(int(parts[columns.index(axis.name)]))
        else:
            given = axis.values or []
            if any(isinstance(value, str) for value in given) or len(set(given)) != len(given) or not given:
                message = "an axis that holds problems has numbers, each once"
                raise self.document.error(("axes", position, "values"), message)
            numbers = {int(value) for value in given}
        if max(numbers) >= (1 << 31) - 1:
            raise self.document.error(("axes", position), f"{max(numbers)} is more than an integer axis holds")
        return tuple(str(number) for number in sorted(numbers))

    def _algorithm_axes(self) -> tuple[AlgorithmAxis, ...]:
        self._unique("algorithm", [axis.name for axis in self.file.algorithm])
        found, seen = list[AlgorithmAxis](), set(FIXED) | {"family"}
        for index, file in enumerate(self.file.algorithm):
            path = ("algorithm", index)
            if file.of and file.values is not None:
                raise self.document.error(path, "an algorithm axis has numbers (`of`) or `values`, not both")
            axis = AlgorithmAxis(file)
            if file.most is not None and len(file.most) != len(axis.of):
                has = f"{len(axis.of)}: {', '.join(axis.of)}" if axis.of else "none, since it has no numbers (of)"
                raise self.document.error((*path, "most"), f"most was of {len(file.most)} numbers, must be of {has}")
            if isinstance(file.word, list) and len(file.word) != len(axis.values):
                message = f"{len(file.word)} words for {len(axis.values)} values: {', '.join(axis.values)}"
                raise self.document.error((*path, "word"), message)
            if axis.default is not None:
                try:
                    axis.default = axis.read(axis.default)
                except ValueError as error:
                    raise self.document.error((*path, "default"), str(error)) from error
            for name in dict.fromkeys((axis.name, *axis.of)):
                if name in seen:
                    raise self.document.error((*path, "name"), f"'{name}' stands here twice")
                seen.add(name)
            found.append(axis)
        return tuple(found)

    @cached_property
    def fields(self) -> list[str]:
        """The numbers of an algorithm, in the order in which the library holds them."""
        return [field for axis in self.algorithm_axes for field in axis.fields]

    def _fits(self) -> list[tuple[int, int]]:
        """(index of a size, index of the field that covers it)."""
        if len(self.file.sizes) > MOST_SIZES:
            raise self.document.error(("sizes",), f"a family has at most {MOST_SIZES} sizes")
        found = []
        for size, field in (self.file.choice.fit if self.file.choice else {}).items():
            for kind, word, known in (("size", size, self.file.sizes), ("number of the algorithm", field, self.fields)):
                if word not in known:
                    raise self.document.error(("choice", "fit", size), no_such(kind, word, known))
            found.append((self.file.sizes.index(size), self.fields.index(field)))
        return found

    def _of(self, whose: str, position: int, name: str) -> Axis:
        """The axis of that name of the main family, or of the one whose engines hold this one."""
        family = self.main if whose == "main" else self._engine_of
        if family is None:
            message = _NO_MAIN if whose == "main" else "only a family that names another under `engine` has its axes"
            raise self.document.error(("axes", position, "values"), message)
        if name not in family.axis_of:
            message = no_such(f"axis of {family.name}", name, family.axis_of)
            raise self.document.error(("axes", position, "name"), message)
        return family.axis_of[name]

    def _engine(self, engine_of: Family | None) -> tuple[yaml_types.EngineFile, Family]:
        """The type of the engines, and the family whose engines they are: its own, or those of `engine_of`."""
        if isinstance(self.file.engine, yaml_types.EngineFile):
            return self.file.engine, self
        if engine_of is None:
            raise self.document.error(("engine",), _NO_MAIN)
        for index, (name, one) in enumerate(zip(self.pipelines, self.file.pipelines, strict=True)):
            if name not in engine_of.pipelines and not one.own:
                message = no_such(f"pipeline of {engine_of.name}", name, engine_of.pipelines)
                raise self.document.error(("pipelines", index, "name"), message)
        return engine_of.engine, engine_of.engine_family

    def _table(self) -> Table | None:
        """The family's table, or what a companion shares of its main family's."""
        if self.main:
            if self.file.tables or self.file.base:
                raise self.document.error((), f"tables and base of a companion are those of {self.main.name}")
            table = self.main.table
            columns = [axis.name for axis in table.columns if axis.name in self.axis_of] if table else []
            if table is None or not columns or (table.by.name not in self.axis_of):
                return None
            kept = [at for at, axis in enumerate(table.columns) if axis.name in columns]
            rows = sorted({(by, tuple(row[at] for at in kept)) for by, row in table.rows})
            return Table(table.name, self.axis_of[table.by.name], [self.axis_of[name] for name in columns], rows)
        for name, file in self.file.tables.items():
            columns_ = [axis for axis, its in zip(self.axes, self.file.axes, strict=True) if its.values == name]
            if not columns_:
                raise self.document.error(("tables", f"<{name}>"), f"no axis has `values: {name}`")
            by = self.axis_of.get(file.by)
            if by is None or by.kind == INTEGER:
                choices = [axis.name for axis in self.axes if axis.kind != INTEGER]
                raise self.document.error(("tables", name, "by"), no_such("axis", file.by, choices))
            found = list[tuple[int, tuple[int, ...]]]()
            for value, listed in file.values.items():
                if value not in by.code_of:
                    near = ", ".join(nearest(value, by.values)) or ", ".join(by.values)
                    message = f"no {by.name} '{value}'; nearest: {near}"
                    raise self.document.error(("tables", name, "values", f"<{value}>"), message)
                for index, row in enumerate(listed):
                    if row in listed[:index]:
                        message = f"'{row}' stands here twice"
                        raise self.document.error(("tables", name, "values", value, index), message)
                    found.append((by.code_of[value], tuple(map(int, str(row).split("x")))))
            return Table(name, by, columns_, sorted(found))
        return None

    @cached_property
    def axes_apart(self) -> list[Axis]:
        """Those with values whose rows have sources of their own, but for those that sources are made by anyway."""
        return [axis for axis in self.axes if axis.apart and axis.name not in self.file.source_by]

    @cached_property
    def integers_name(self) -> str:
        """Common name of the integer axes, for people; "" without one."""
        if self.table and len(self.table.columns) == len(self.integers):
            return self.table.title
        return " x ".join(axis.name for axis in self.integers)

    @cached_property
    def table_clauses(self) -> list[Clause]:
        """Combinations that the table allows, as clauses."""
        if self.table is None:
            return [self.everything]
        clauses = []
        for by, row in self.table.rows:
            clause = list(self.everything)
            clause[self.table.by.position] = 1 << by
            for axis, number in zip(self.table.columns, row, strict=True):
                clause[axis.position] = 1 << axis.code_of[str(number)]
            clauses.append(tuple(clause))
        return clauses

    @cached_property
    def legal_integers(self) -> list[tuple[int, ...]]:
        """Every combination of values of the integer axes, in listing order, after the code of the table's `by` (0
        without a table)."""
        rows: list[tuple[int, dict[str, int]]] = [(0, {})]
        if self.table:
            names = [axis.name for axis in self.table.columns]
            rows = [(by, dict(zip(names, row, strict=True))) for by, row in self.table.rows]
        result = []
        for by, fixed in rows:
            choices = [[fixed[a.name]] if a.name in fixed else [*map(int, a.values)] for a in self.integers]
            result += [(by, *numbers) for numbers in itertools.product(*choices)]
        return sorted(result)

    @cached_property
    def shared(self) -> list[tuple[Axis, Axis]]:
        """Of a companion: its axes that are the main family's, each with that of the main family."""
        mains = self.main.axis_of if self.main else {}
        return [(self.axes[at], mains[axis.name]) for at, axis in enumerate(self.file.axes) if axis.values == "main"]

    @cached_property
    def shared_fields(self) -> int:
        """The bits of the shared axes in a packed signature of this companion."""
        return sum(axis.field << axis.shift for axis, _ in self.shared)

    def needed(self, packed: Iterable[int]) -> dict[int, Clause]:
        """Clauses of this companion that the main family's signatures need, by packed signature less its own axes."""
        found: dict[int, Clause] = {}
        for signature in packed:
            codes = [(axis, of.code_in(signature)) for axis, of in self.shared]
            key = sum(axis.packed[code] for axis, code in codes)
            if key not in found:
                clause = list(self.everything)
                for axis, code in codes:
                    clause[axis.position] = 1 << code
                found[key] = tuple(clause)
        return found

    def of_main(self, clause: Clause) -> Clause:
        """A clause of a companion as one of its main family: the signatures that could need it."""
        assert self.main is not None
        result = list(self.main.everything)
        for axis, of in self.shared:
            result[of.position] = clause[axis.position]
        return tuple(result)

    def bind(
        self, selection: yaml_types.Selection, path: tuple[str | int, ...], document: Document | None = None
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

    @property
    def answered_as(self) -> Family | None:
        """The family whose place in targets and kernels this one takes where they say nothing of it."""
        return self._engine_of if self.file.targets else None

    def bind_of(
        self, said_of: Family, selection: yaml_types.Selection, path: tuple[str | int, ...], document: Document
    ) -> list[Clause]:
        """A selection over the axes of `said_of`, bound to this family; values that it lacks select nothing."""
        if said_of is self:
            return self.bind(selection, path, document)
        said_of.bind(selection, path, document)
        none: select.Hows = {said_of.name: {}, self.name: {}}
        texts = [selection] if isinstance(selection, str) else selection
        return [one.clause for text in texts for one in select.bind_any([said_of, self], text, none)[self.name]]

    def signature(self, packed: int) -> dict[str, Value]:
        return {axis.name: axis.json(axis.code_in(packed)) for axis in self.axes}

    def meets(self, packed: int, clauses: Iterable[Clause]) -> bool:
        """Does one of the clauses allow a packed signature?"""
        return any(
            all(allowed >> axis.code_in(packed) & 1 for axis, allowed in zip(self.axes, clause, strict=True))
            for clause in clauses
        )

    def selection(self, packed: int) -> str:
        """A packed signature as a selection that only it meets."""
        return " ".join(f"{axis.name}={axis.values[axis.code_in(packed)]}" for axis in self.axes)
