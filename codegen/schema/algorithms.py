# SPDX-License-Identifier: MIT
"""Algorithms of instances: their axes, as a family declares them, and one algorithm of a target.

A family declares as many as it needs, each of some numbers (a tile of two or of nine, a stage count) or with a list of
values (booleans too). A target's `algorithms:` give each entry a value for each axis; only one with a default may be
left out, and then it is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from codegen.schema import yaml_types
from codegen.schema.errors import SelectionError, no_such
from codegen.schema.select import Clause, parse
from codegen.schema.yaml_io import Document

FIXED = ("target", "pipeline")
"""The algorithm axes of every family."""
SETTINGS = ("when", "needs", "best", "rank", "by_number", "receipts")
"""Keys of a target's entry besides its pipeline and the family's algorithm axes."""
_BOOLEAN = ("no", "yes")
_LEAST, _MOST = 1, 65535
_NO_LIMIT = 2**63 - 1

Given = str | int | bool | list[str | int]


class AlgorithmAxis:
    """One algorithm axis. Its value is a text; of numbers, joined by x."""

    def __init__(self, file: yaml_types.AlgorithmAxisFile) -> None:
        self.name, self.about, self.of = file.name, file.about, tuple(file.of or ())
        self.boolean = not self.of and file.values is None
        self.most = dict(zip(self.of, file.most or (), strict=False))
        self.values = _BOOLEAN if self.boolean else tuple(map(str, file.values or ()))
        self.default = _text(file.default) if file.default is not None else None
        form = file.word if isinstance(file.word, str) and file.word else "_{}"
        if self.of:
            self._words: Mapping[str, str] = {}
        elif isinstance(file.word, list):
            self._words = {value: f"_{word}" for value, word in zip(self.values, file.word, strict=True)}
        elif self.boolean:
            self._words = {"no": f"_n{file.word or self.name}", "yes": f"_{file.word or self.name}"}
        else:
            self._words = {value: form.replace("{}", value) for value in self.values}
        self._form = form

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its numbers, as the generated header and selections call them."""
        return self.of or (self.name,)

    def read(self, given: Given) -> str:
        """A value as an entry of a target gives it. ValueError says what it must be."""
        text = "x".join(map(str, given)) if isinstance(given, list) else _text(given)
        if not self.of:
            if text in self.values:
                return text
            raise ValueError(f"no {self.name} '{text}'; values: {', '.join(self.values)}")
        parts = text.split("x")
        if len(parts) != len(self.of) or not all(p.isdecimal() and _LEAST <= int(p) <= _MOST for p in parts):
            count = f"{len(self.of)} numbers with x between them" if len(self.of) > 1 else "a number"
            raise ValueError(f"'{text}' is no {self.name}: write {count} ({', '.join(self.of)}), {_LEAST} to {_MOST}")
        return "x".join(str(int(part)) for part in parts)

    def numbers(self, value: str) -> list[int]:
        """The library's numbers for a value: its parts, or its position among the values."""
        return [int(part) for part in value.split("x")] if self.of else [self.values.index(value)]

    def word(self, value: str) -> str:
        """As part of instance names."""
        if value == self.default:
            return ""
        return self._form.replace("{}", value) if self.of else self._words[value]

    def json(self, value: str) -> str | bool:
        return value == "yes" if self.boolean else value


def _text(value: Given) -> str:
    return _BOOLEAN[value] if isinstance(value, bool) else str(value)


class SizeRule(NamedTuple):
    """A selection over the sizes of a problem; without clauses it always holds."""

    text: str
    clauses: tuple[tuple[tuple[int, int, int], ...], ...]  # of conditions: index of the size, least, most

    def holds(self, sizes: Sequence[int]) -> bool:
        return not self.clauses or any(all(low <= sizes[at] <= high for at, low, high in c) for c in self.clauses)


ALWAYS = SizeRule("", ())


def size_rule(text: str, sizes: Sequence[str], family: str) -> SizeRule:
    """Reads `seqlen_q>=1 seqlen_q<=8 or ...`. SelectionError for anything but sizes, >=, <= and one value after =."""
    clauses = []
    for conditions in parse(text):
        ranges: dict[int, tuple[int, int]] = {}
        for condition in conditions:
            if condition.axis not in sizes:
                message = no_such(f"size of {family}", condition.axis, sizes)
                raise SelectionError(message, text, condition.offset)
            if condition.negated or len(condition.values) > 1 or not condition.values[0].isdecimal():
                message = f"'{condition}': a size is compared with one number, by =, >= or <="
                raise SelectionError(message, text, condition.offset)
            at, number = sizes.index(condition.axis), int(condition.values[0])
            if number > _NO_LIMIT:
                raise SelectionError(f"'{number}' is more than 64 bits hold", text, condition.offsets[0])
            low, high = ranges.get(at, (-_NO_LIMIT, _NO_LIMIT))
            low = low if condition.sign == "<=" else max(low, number)
            high = high if condition.sign == ">=" else min(high, number)
            if low > high:
                raise SelectionError(f"this leaves nothing of size '{condition.axis}'", text, condition.offset)
            ranges[at] = (low, high)
        clauses.append(tuple((at, low, high) for at, (low, high) in ranges.items()))
    return SizeRule(text, tuple(clauses)) if all(clauses) else ALWAYS


class ReceiptFilter(NamedTuple):
    """The receipts that have an algorithm."""

    only: frozenset[str] | None  # all but `without`
    without: frozenset[str]

    def has(self, names: Iterable[str]) -> bool:
        """Of a receipt, by its name and those that it extends."""
        listed = set(names)
        return not listed & self.without and (self.only is None or bool(listed & self.only))


class Algorithm(NamedTuple):
    """The algorithm of instances: a value for each algorithm axis, and its rules."""

    number: int  # among the entries of the target whose they are: Row::algorithm
    pipeline: str
    axes: tuple[AlgorithmAxis, ...]
    values: tuple[str, ...]  # by axis
    rank: int
    when: list[Clause]
    needs: SizeRule  # it answers no other problems
    best: SizeRule  # it is preferred to one without, and one without to it elsewhere
    receipts: ReceiptFilter | None = None  # all
    by_number: tuple[Clause, ...] = ()  # of these signatures nothing chooses it: callers name the instance

    @property
    def word(self) -> str:
        """As part of instance names."""
        return self.pipeline + "".join(axis.word(value) for axis, value in zip(self.axes, self.values, strict=True))

    @property
    def shown(self) -> str:
        """The values that are no defaults, as people are told them."""
        return " ".join(map(str, self.given.values()))

    @property
    def given(self) -> dict[str, str | bool]:
        """The values that are no defaults, by axis, for JSON."""
        pairs = zip(self.axes, self.values, strict=True)
        return {axis.name: axis.json(value) for axis, value in pairs if value != axis.default}

    @property
    def numbers(self) -> list[int]:
        """By field of the family."""
        return [n for axis, value in zip(self.axes, self.values, strict=True) for n in axis.numbers(value)]

    def selectable(self, target: str) -> dict[str, str]:
        """Words that selections may ask of an instance on a target besides its signature: axes, and numbers by name."""
        values = {"target": target, "pipeline": self.pipeline}
        for axis, value in zip(self.axes, self.values, strict=True):
            values[axis.name] = value
            values |= dict(zip(axis.of, value.split("x"), strict=True)) if axis.of else {}
        return values


def read_values(
    axes: Sequence[AlgorithmAxis],
    entry: Mapping[str, Given],
    document: Document,
    path: tuple[str | int, ...],
    family: str,
) -> tuple[str, ...]:
    """The values of an entry by axis. CodegenError at what is unknown, missing or wrong."""
    known = [axis.name for axis in axes]
    for key in entry:
        if key not in known:
            message = no_such(f"algorithm axis of {family}", key, [*known, "pipeline", *SETTINGS])
            raise document.error((*path, f"<{key}>"), message)
    values = []
    for axis in axes:
        given = entry.get(axis.name, axis.default)
        if given is None:
            raise document.error(path, f"'{axis.name}' is missing here")
        try:
            values.append(axis.read(given))
        except ValueError as error:
            raise document.error((*path, axis.name), str(error)) from error
    return tuple(values)
