# SPDX-License-Identifier: MIT
"""Tables of measured choices (`tilekiln tune`) that receipts pin, for machines of the kind they were measured on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from codegen.schema import typed
from codegen.schema.errors import CodegenError, no_such
from codegen.schema.places import Places
from codegen.schema.yaml_io import Document

FORMAT = "tilekiln tune 3"


class Winner(Struct, frozen=True, forbid_unknown_fields=True):
    """The fastest candidate for a problem, as python/tilekiln/tune/table.py writes it."""

    problem: str
    shapes: str
    call: str
    id: str
    instance: str
    settings: dict[str, int]
    microseconds: float
    ratio: float
    untuned: str
    rounds: int


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    receipt: str
    library: str
    machine: str
    problems: list[Winner]


class File(Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    tables: list[Table]


class Pinned(NamedTuple):
    """A winner as a library holds it."""

    machine: str
    call: str
    instance: int
    num_splits: int
    num_threads: int


class Tuned:
    """The table of a receipt."""

    def __init__(self, places: Places, path: str, receipt: str) -> None:
        import json  # few receipts have a table

        self.shown = places.shown(path)
        data = places.read(path)
        if data is None:
            raise CodegenError(f"{self.shown}: there is no such table; write it by: tilekiln tune {receipt} --out FILE")
        self.text = data.decode(errors="replace")
        try:
            json.loads(self.text)
            self.tables = typed.decode(data, File)
        except json.JSONDecodeError as error:
            raise CodegenError(f"{self.shown}:{error.lineno}:{error.colno}: {error.msg}") from error
        except msgspec.MsgspecError as error:
            raise CodegenError(f"{self.shown}:1: is no table of tilekiln tune: {error}") from error
        if self.tables.format != FORMAT:
            raise CodegenError(f"{self.shown}:1: format was {self.tables.format!r}, must be {FORMAT!r}; measure again")
        for table in self.tables.tables:
            if table.receipt != receipt:
                raise self._wrong(table.receipt, f"was measured for receipt {table.receipt}, must be of {receipt}")

    def _wrong(self, word: str, what: str) -> CodegenError:
        line = next((at for at, text in enumerate(self.text.splitlines(), 1) if f'"{word}"' in text), 1)
        return CodegenError(f"{self.shown}:{line}: {what}")

    def of(self, instances: Iterable[str], whole: Iterable[str]) -> list[tuple[Table, list[tuple[Winner, int]]]]:
        """By table the winners, with the numbers of their instances among those of a plan.

        whole: the ends of names of which the plan has all; a winner with such a name that it has not is a CodegenError.
        """
        numbers = {name: at for at, name in enumerate(instances)}
        ends = tuple(whole)
        found = []
        for table in self.tables.tables:
            kept = [(one, numbers[one.instance]) for one in table.problems if one.instance in numbers]
            for one in table.problems:
                if one.instance not in numbers and one.instance.endswith(ends):
                    message = no_such("instance", one.instance, numbers)
                    raise self._wrong(one.instance, f"{message}; the receipt has changed: measure again")
            found.append((table, kept))
        return found


def beside(document: Document, name: str | None, receipt: str) -> Tuned | None:
    """The table that a receipt's file names, which lies beside it."""
    return None if name is None else Tuned(document.places, os.path.join(os.path.dirname(document.path), name), receipt)


def pinned(found: Iterable[tuple[Table, list[tuple[Winner, int]]]]) -> list[Pinned]:
    """For the tables of a library."""
    return [
        Pinned(table.machine, one.call, at, one.settings.get("num_splits", 0), one.settings.get("num_threads", 0))
        for table, winners in found
        for one, at in winners
    ]
