# SPDX-License-Identifier: MIT
"""Tile tables: what the algorithms of targets of a backend are whose kernels take a tile out of many.

A room's `<backend>/tiles.yaml` has tables of tiles and of what they are emitted with; a target names the tables that
are its own. Every tile goes with every emit whose selection it meets, once for each combination of the values listed
there, and rules take away. So a table of some rows is the thousand algorithms that a hand-written list would repeat.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from codegen.schema import select, yaml_types
from codegen.schema.algorithms import ALWAYS, Algorithm, AlgorithmAxis, ReceiptFilter, SizeRule, read_values, size_rule
from codegen.schema.errors import SelectionError, no_such
from codegen.schema.places import Places
from codegen.schema.select import Clause
from codegen.schema.yaml_io import Document

if TYPE_CHECKING:
    from codegen.schema.axes import Family

FILE = "tiles.yaml"


class _Rule(NamedTuple):
    name: str
    when: list[select.Selected]
    tables: Sequence[str]
    limited: bool  # the file names the tables
    path: tuple[str | int, ...]

    def meets(self, how: Algorithm) -> bool:
        """Whether it takes something of an algorithm away."""
        values = how.selectable("")
        return any(one.answers(values) and select.both(how.when, [one.clause]) for one in self.when)


class TileTables:
    """The tiles.yaml of a family for one backend."""

    def __init__(self, document: Document, family: Family) -> None:
        self.document, self.family = document, family
        file = self.file = document.load(yaml_types.TileTablesFile)
        if file.family != family.name:
            raise document.error(("family",), f"the tables in {family.room} must be of {family.name}")
        self.axes = tuple(AlgorithmAxis(one) for one in file.axes)
        self.pipelines = [pipeline.name for pipeline in file.pipelines]
        self.ck_name = CkName(document, family, file.ck_name, self.axes) if file.ck_name else None
        hows = {"pipeline": list(self.pipelines)}
        for axis in self.axes:
            hows |= {name: [*axis.values] for name in (axis.name, *axis.of)}
        for name in file.tables:
            for how in self.candidates(name):
                for key, value in how.selectable("").items():
                    if key in hows and value not in hows[key]:
                        hows[key].append(value)
        self._hows = {family.name: hows}
        self.rules = [self._rule(index, rule) for index, rule in enumerate(file.rules)]

    def _rule(self, index: int, rule: yaml_types.TileRuleFile) -> _Rule:
        path: tuple[str | int, ...] = ("rules", index, "when")
        texts = [rule.when] if isinstance(rule.when, str) else rule.when
        when: list[select.Selected] = []
        for text in texts:
            try:
                when += select.bind_any([self.family], text, self._hows)[self.family.name]
            except SelectionError as error:
                raise self.document.selection_error(path, error) from error
        for table in rule.tables:
            if table not in self.file.tables:
                message = no_such("table", table, self.file.tables).replace("\n", "; ")
                raise self.document.error(("rules", index, "tables"), message)
        return _Rule(rule.name, when, rule.tables or list(self.file.tables), bool(rule.tables), path)

    def table_of(self, names: Sequence[str]) -> str | None:
        """The first of these tables that there is here."""
        return next((name for name in names if name in self.file.tables), None)

    def algorithms(self, names: Sequence[str]) -> list[Algorithm]:
        """Those of a target that names these tables, in the order of the file."""
        name, found = self.table_of(names), list[Algorithm]()
        for how in self.candidates(name) if name else ():
            left = self.left(name or "", how)
            if left:
                found.append(how._replace(number=len(found), when=left))
        return found

    def candidates(self, name: str) -> Iterator[Algorithm]:
        """Algorithms of all tiles and emits of a table, before the rules."""
        table = self.file.tables[name]
        for tile, emit in itertools.product(range(len(table.tiles)), range(len(table.emits))):
            yield from self._together(name, tile, emit)

    def _together(self, name: str, tile: int, emit: int) -> Iterator[Algorithm]:
        """Algorithms of one tile with one emit."""
        table = self.file.tables[name]
        tile_path: tuple[str | int, ...] = ("tables", name, "tiles", tile)
        emit_path: tuple[str | int, ...] = ("tables", name, "emits", emit)
        fixed, settings = dict(table.tiles[tile]), dict(table.emits[emit])
        pipeline = str(settings.pop("pipeline", ""))
        if pipeline not in self.pipelines:
            message = no_such(f"pipeline of {self.family.name}", pipeline, self.pipelines).replace("\n", "; ")
            raise self.document.error((*emit_path, "pipeline"), message)
        receipts = self._receipts(settings, emit_path)
        when = select.both(self._when(settings, emit_path), self._when(fixed, tile_path))
        best = self._best(fixed, tile_path)
        lists = [
            [(key, value) for value in (values if isinstance(values, list) else [values])]
            for key, values in settings.items()
        ]
        for chosen in itertools.product(*lists) if when else ():
            entry = {**fixed, **dict(chosen)}
            values = read_values(self.axes, entry, self.document, tile_path, self.family.name)
            yield Algorithm(tile, pipeline, self.axes, values, 0, when, ALWAYS, best, receipts)

    def _when(self, row: dict[str, yaml_types.TileValue], path: tuple[str | int, ...]) -> list[Clause]:
        text = row.pop("when", None)
        if not isinstance(text, str):
            raise self.document.error(path, "'when' is missing here: the signatures that it is for")
        return self.family.bind(text, (*path, "when"), self.document)

    def _best(self, row: dict[str, yaml_types.TileValue], path: tuple[str | int, ...]) -> SizeRule:
        text = row.pop("best", "")
        try:
            return size_rule(str(text), self.family.file.sizes, self.family.name)
        except SelectionError as error:
            raise self.document.selection_error((*path, "best"), error) from error

    def _receipts(self, row: dict[str, yaml_types.TileValue], path: tuple[str | int, ...]) -> ReceiptFilter | None:
        only, without = row.pop("receipts", None), row.pop("without", None)
        for key, given in (("receipts", only), ("without", without)):
            if given is not None and not isinstance(given, list):
                raise self.document.error((*path, key), "it must be a list of receipts")
        if only is None and without is None:
            return None
        return ReceiptFilter(
            frozenset(map(str, only)) if isinstance(only, list) else None,
            frozenset(map(str, without)) if isinstance(without, list) else frozenset(),
        )

    def left(self, name: str, how: Algorithm) -> list[Clause]:
        """Signatures of an algorithm that the rules leave, as clauses."""
        left, values = how.when, how.selectable("")
        for rule in self.rules:
            if name in rule.tables:
                for one in rule.when:
                    if one.answers(values):
                        left = [piece for clause in left for piece in select.minus(clause, one.clause)]
        return left


class CkName:
    """CK's name of an instance: a text with the values of its axes, each said in CK's word."""

    def __init__(
        self, document: Document, family: Family, file: yaml_types.CkNameFile, axes: Sequence[AlgorithmAxis]
    ) -> None:
        self.file = file
        self.signature = tuple(family.axes)
        known = {axis.name for axis in axes} | {*family.axis_of, "pipeline", "table", *file.by_pipeline}
        for key in file.words:
            if key not in known:
                raise document.error(("ck_name", "words", f"<{key}>"), no_such("axis", key, sorted(known)))
        try:
            file.text.format_map(dict.fromkeys(known, ""))
        except (KeyError, ValueError, IndexError) as error:
            message = f"{error} is no axis of {family.name}; it may name {', '.join(sorted(known))}"
            raise document.error(("ck_name", "text"), message) from error

    def of(self, packed: int, how: Algorithm, table: str) -> str:
        values = {axis.name: axis.values[axis.code_in(packed)] for axis in self.signature}
        values |= {axis.name: value for axis, value in zip(how.axes, how.values, strict=True)}
        values |= {"pipeline": how.pipeline, "table": table}
        words = self.file.of_pipeline.get(how.pipeline, {})
        said = {key: (words.get(key) or self.file.words.get(key) or {}).get(v, v) for key, v in values.items()}
        return self.file.text.format_map(said | {k: v[how.pipeline] for k, v in self.file.by_pipeline.items()})


def tables_of(places: Places, backend: str, family: Family) -> TileTables | None:
    """The tables of a family's room for a backend; None where it has none."""
    shown = f"{family.room}/{backend}/{FILE}"
    return TileTables(Document(places, shown), family) if os.path.isfile(places.at(shown)) else None


def check(tables: TileTables) -> None:
    """CodegenError at a rule that nothing of a table meets, and at a tile that the rules leave nothing of."""
    candidates = {name: list(tables.candidates(name)) for name in tables.file.tables}
    for rule in tables.rules:
        idle = [name for name in rule.tables if not any(rule.meets(how) for how in candidates[name])]
        if idle and (rule.limited or len(idle) == len(rule.tables)):
            raise tables.document.error(rule.path, f"rule '{rule.name}' never applies in table {idle[0]}")
    for name, table in tables.file.tables.items():
        used = {how.number for how in candidates[name] if tables.left(name, how)}
        for tile in range(len(table.tiles)):
            if tile not in used:
                raise tables.document.error(("tables", name, "tiles", tile), "the rules leave nothing of this tile")
