"""A family as the generator works with it: axes with codes and bits, head dims and rules as clauses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from codegen import schema, select
from codegen.errors import SelectionError, nearest, no_such
from codegen.select import Clause
from codegen.yaml_io import Document

BOOLEAN, ENUMERATED, INTEGER = 0, 1, 2  # tilekiln::Axis::kind
_BITS = (1, 4, 10)
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
    ) -> None:
        self.position, self.name, self.about, self.kind, self.values = position, name, about, kind, values
        self.shift, self.bits = shift, _BITS[kind]
        self.field = (1 << self.bits) - 1  # the largest number that fits its bits
        self.all_codes = (1 << len(values)) - 1
        self.code_of = {value: code for code, value in enumerate(values)}
        self.word = word
        if isinstance(word, list):
            self.words: tuple[str, ...] = tuple(f"_{one}" for one in word)
        elif kind == BOOLEAN:
            self.words = (f"_n{word or name}", f"_{word or name}")
        else:
            form = word or "_{}"
            self.words = tuple(form.replace("{}", f"n{name}" if value == "none" else value) for value in values)
        numbers = [int(value) for value in values] if kind == INTEGER else range(len(values))
        self.packed = tuple(number << shift for number in numbers)

    def json(self, code: int) -> Value:
        value = self.values[code]
        return code == 1 if self.kind == BOOLEAN else int(value) if value.isdecimal() else value

    def code_in(self, packed: int) -> int:
        """The code of this axis in a packed signature."""
        field = packed >> self.shift & self.field
        return self.code_of[str(field)] if self.kind == INTEGER else field


class Rule(NamedTuple):
    name: str
    says: str
    when: list[Clause]  # a signature that meets one of them is illegal


class Family:
    """One kernels/<family>/family.yaml, checked.

    A companion is a family that exists for another, its `main`: it has a signature exactly where an instance of `main`
    needs it, which is what that instance's values of the axes they share say.
    """

    def __init__(self, document: Document, main: Family | None = None, engine_of: Family | None = None) -> None:
        self.document, self.main = document, main
        self.file = document.load(schema.FamilyFile)
        self.name, self.about = self.file.family, self.file.about
        self.axes = self._axes()
        self.axis_of: Mapping[str, Axis] = {axis.name: axis for axis in self.axes}
        self.everything: Clause = tuple(axis.all_codes for axis in self.axes)
        self.head_dims = self._head_dims()
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
        if file.axes[0].name != "dtype" or from_table != ([] if self.main else ["hdim_q", "hdim_v"]):
            message = "the first axis must be 'dtype', and hdim_q and hdim_v alone take `values: head_dims`"
            raise self.document.error(("axes",), message + (" (here: `values: main`)" if self.main else ""))
        for position, axis in enumerate(file.axes):
            values: tuple[str, ...] = _BOOLEAN_VALUES
            about, word = axis.about, axis.word
            if axis.values == "main":
                of = self._of_main(position, axis.name)
                kind, values, about, word = of.kind, of.values, about or of.about, word or of.word
            elif axis.values is None:
                kind = BOOLEAN
            elif axis.values == "head_dims":
                side = axis.name == "hdim_v"
                numbers = {int(pair.split("x")[side]) for pairs in file.head_dims.values() for pair in pairs}
                kind, values = INTEGER, tuple(str(number) for number in sorted(numbers))
            else:
                kind, values = ENUMERATED, tuple(map(str, axis.values))
                if len(set(values)) != len(values) or len(values) > 1 << _BITS[ENUMERATED]:
                    message = f"an axis has at most {1 << _BITS[ENUMERATED]} values, each once"
                    raise self.document.error(("axes", position, "values"), message)
            if axis.name == "family":
                raise self.document.error(("axes", position, "name"), "'family' means the family in selections")
            if not about:
                raise self.document.error(("axes", position), "'about' is missing here")
            if isinstance(word, list) and len(word) != len(values):
                message = f"{len(word)} words for {len(values)} values: {', '.join(values)}"
                raise self.document.error(("axes", position, "word"), message)
            axes.append(Axis(position, axis.name, about, kind, values, word, shift))
            shift += axes[-1].bits
            if len(set(axes[-1].words)) != len(values):
                raise self.document.error(("axes", position, "word"), "this gives two values one word; {} is the value")
        if shift > 64:
            raise self.document.error(("axes",), f"the axes need {shift} bits; a signature has 64")
        return axes

    def _of_main(self, position: int, name: str) -> Axis:
        if self.main is None:
            raise self.document.error(("axes", position, "values"), _NO_MAIN)
        if name not in self.main.axis_of:
            message = no_such(f"axis of {self.main.name}", name, self.main.axis_of)
            raise self.document.error(("axes", position, "name"), message)
        return self.main.axis_of[name]

    def _engine(self, engine_of: Family | None) -> tuple[schema.EngineFile, Family]:
        """The type of the engines, and the family whose engines they are: its own, or those of `engine_of`."""
        if isinstance(self.file.engine, schema.EngineFile):
            return self.file.engine, self
        if engine_of is None:
            raise self.document.error(("engine",), _NO_MAIN)
        for index, name in enumerate(self.pipelines):
            if name not in engine_of.pipelines:
                message = no_such(f"pipeline of {engine_of.name}", name, engine_of.pipelines)
                raise self.document.error(("pipelines", index, "name"), message)
        return engine_of.engine, engine_of.engine_family

    def _head_dims(self) -> list[tuple[int, int, int]]:
        """The legal (code of dtype, hdim_q, hdim_v), in listing order; 0 where the family has no such axis."""
        if self.main:
            if self.file.head_dims or self.file.base:
                raise self.document.error((), f"head_dims and base of a companion are those of {self.main.name}")
            q, v = "hdim_q" in self.axis_of, "hdim_v" in self.axis_of
            return sorted({(d, hdim_q * q, hdim_v * v) for d, hdim_q, hdim_v in self.main.head_dims})
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
    def head_dim_axes(self) -> str:
        return " x ".join(axis.name for axis in self.axes if axis.kind == INTEGER)

    def head_dims_of(self, dtype: int) -> list[str]:
        """The legal head dims of a dtype (its code) as people write them."""
        return ["x".join(str(hdim) for hdim in hdims if hdim) for code, *hdims in self.head_dims if code == dtype]

    @cached_property
    def head_dim_clauses(self) -> list[Clause]:
        clauses = []
        for dtype, *hdims in self.head_dims:
            clause = list(self.everything)
            clause[0] = 1 << dtype
            for name, hdim in zip(("hdim_q", "hdim_v"), hdims, strict=True):
                if hdim:
                    clause[self.axis_of[name].position] = 1 << self.axis_of[name].code_of[str(hdim)]
            clauses.append(tuple(clause))
        return clauses

    @cached_property
    def hdim_fields(self) -> int:
        """The bits of the head dims in a packed signature."""
        return sum(axis.field << axis.shift for axis in self.axes if axis.kind == INTEGER)

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
        """What signatures of the main family need of this companion, by its packed signature without its own axes."""
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
