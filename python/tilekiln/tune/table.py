# SPDX-License-Identifier: MIT
"""Tables of what was measured: JSON with a problem a line, sorted, so that people can read and compare them.

A table is of one library and one kind of machine; a file may hold several. Another library, by its plan and sources, or
another machine finds nothing in it.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core.native import ArgumentError, machine_key
from .._generated.tables import OPERATORS
from ..bench.declaration import CALLS
from ..dispatcher.choice import Measured
from ..dispatcher.instance import Call
from ..dispatcher.libraries import described

if TYPE_CHECKING:
    from ..api.library import Library

FORMAT = "tilekiln tune 3"


class Winner(NamedTuple):
    """The fastest candidate for a problem; `settings` are arguments of the call besides the instance."""

    problem: str  # as dispatcher.Problem writes itself
    shapes: str  # of the arrays that the call was given, q=1x1x8x128
    call: str  # what identifies it to the library, the last line of <operator>_describe
    id: str  # of the kernel's key
    instance: str  # its name
    settings: dict[str, int]  # num_splits, num_threads
    microseconds: float
    ratio: float  # of the time of the untuned choice, paired
    untuned: str  # the name of that instance
    rounds: int

    @property
    def key(self) -> str:
        """The table's key of it: problem and shapes."""
        return f"{self.problem} {self.shapes}"


class Table(NamedTuple):
    """The winners for one library on one kind of machine, by problem."""

    receipt: str
    library: str  # library_key
    machine: str  # machine_of
    winners: dict[str, Winner]  # by Winner.key

    def measured(self) -> dict[str, list[Measured]]:
        """For Dispatcher.set_measured: id and settings for each problem of which all shapes have the same."""
        found: dict[str, list[Measured]] = {}
        for winner in self.winners.values():
            one, listed = Measured(winner.id, winner.settings), found.setdefault(winner.problem, [])
            if one not in listed:
                listed.append(one)
        return {problem: listed for problem, listed in found.items() if len(listed) == 1 and listed[0].id}


def call_key(
    library: Library, operator: str, arrays: Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[str, str, str]:
    """The problem of a call, the shapes of what it is given, its results not, and what identifies it: the first fields
    of a Winner."""
    problem, call = described(library, Call(operator, *arrays, **arguments))
    table = OPERATORS[operator]
    results = {one.name for one in table.results}
    named = {**dict(zip(CALLS[operator].arrays, arrays, strict=False)), **arguments}
    shapes = {
        name: "x".join(map(str, array.shape)) for name, array in named.items()
        if hasattr(array, "shape") and name not in results
    }  # fmt: skip
    return str(problem), " ".join(f"{name}={shape}" for name, shape in sorted(shapes.items())), call


def machine_of(device: str = "cpu") -> str:
    """The kind of machine that a table is of: this one's processor, and the GPU beside it where calls ran there."""
    if device == "cpu":
        return machine_key()
    from .gpu import clock_of

    return f"{machine_key()} + {clock_of(device).device.name}"


def library_key(library: Library) -> str:
    """Of its plan and sources: what was measured for one library says nothing of another."""
    manifest = library.manifest
    return f"{manifest['plan_hash'][:16]}-{manifest['source_hash'][:16]}"


def taken(library: Library, table: Table) -> list[tuple[int, int, int, int]]:
    """A table as Library.take_tuned wants it. ArgumentError where it is of another library, or names a kernel or a call
    that none has."""
    if table.library != library_key(library):
        raise ArgumentError(
            f"table: was of {table.receipt} ({table.library}), must be of {library.receipt} ({library_key(library)}): "
            "this library was built from other sources or another plan; tune it"
        )
    numbers = {row[0]: at for at, row in enumerate(library.manifest["instances"]["rows"])}
    winners = table.winners.values()
    splits, threads = ([one.settings.get(name, 0) for one in winners] for name in ("num_splits", "num_threads"))
    for one in winners:
        known = isinstance(one.instance, str) and one.instance in numbers
        if not known or not re.fullmatch("[0-9a-fA-F]{1,16}", str(one.call)):
            what = f"call {one.call!r}" if known else f"instance {one.instance!r}"
            raise ArgumentError(
                f"table: {what} of {one.problem} is none of {library.receipt}: write the table again by tilekiln tune"
            )
    calls, ways = ([int(one.call, 16) for one in winners], [numbers[one.instance] for one in winners])
    return list(zip(calls, ways, splits, threads, strict=True))


def pinned(library: Library) -> Table | None:
    """The table that a library takes when it is loaded, for this machine: the one beside it, else its receipt's.

    ArgumentError where what lies beside it was measured here for another library, or names what this one has not.
    """
    if os.environ.get("TILEKILN_TUNED") == "no":
        return None
    place, here, of = beside(library), machine_key(), library_key(library)
    for table in read_all(place) if place.is_file() else []:
        if table.machine == here and table.library == of:
            taken(library, table)
            return table
    if place.is_file() and any(table.machine == here for table in read_all(place)):
        raise ArgumentError(f"{place}: was measured for other sources or another plan than {of}: tune again")
    for said in library.manifest.get("tuned", []):
        if said["machine"] == here:
            winners = [Winner(**one, microseconds=0, ratio=1, untuned="", rounds=0) for one in said["problems"]]
            return Table(library.receipt, of, here, {one.key: one for one in winners})
    return None


def beside(library: Library) -> pathlib.Path:
    """The table that is pinned to a library: it lies beside it, and `Tuned(library)` takes it."""
    return pathlib.Path(library.path).with_suffix(".tuned.json")


def merged(tables: Iterable[Table]) -> list[Table]:
    """One for each library and machine. Of a problem that was measured twice the better ratio counts, then the name:
    the order of the tables makes no difference."""
    found: dict[tuple[str, str, str], dict[str, Winner]] = {}
    for table in tables:
        winners = found.setdefault((table.receipt, table.library, table.machine), {})
        for winner in table.winners.values():
            other = winners.get(winner.key)
            if other is None or _order(winner) < _order(other):
                winners[winner.key] = winner
    return [Table(*key, dict(sorted(winners.items()))) for key, winners in sorted(found.items())]


def _order(winner: Winner) -> tuple[float, str]:
    return winner.ratio, json.dumps(winner)


def written(tables: Iterable[Table]) -> str:
    """The text of a file."""
    parts = []
    for table in merged(tables):
        head = {"receipt": table.receipt, "library": table.library, "machine": table.machine}
        lines = ",\n".join(json.dumps(winner._asdict()) for winner in table.winners.values())
        parts.append(f'{json.dumps(head)[:-1]}, "problems": [\n{lines}\n]}}')
    return f'{{"format": "{FORMAT}", "tables": [\n' + ",\n".join(parts) + "\n]}\n"


def write(path: str | os.PathLike[str], tables: Iterable[Table]) -> None:
    """Whole or not at all."""
    place = pathlib.Path(path)
    new = place.with_name(f".{place.name}.{os.getpid()}")
    new.write_text(written(tables))
    new.replace(place)


def read_all(path: str | os.PathLike[str]) -> list[Table]:
    """Every table of a file. ArgumentError, file:line, for what is none."""
    try:
        text = pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: cannot be read: {error}; tilekiln tune writes such a table") from error
    try:
        said = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{path}:{error.lineno}: {error.msg}") from error
    form = said.get("format") if isinstance(said, dict) else None
    if form != FORMAT:
        what = f"format was {form!r}, must be {FORMAT!r}: measure again"
        raise ArgumentError(f"{path}:1: is no table of tilekiln tune as it is now: {what}")
    try:
        return [_table(one) for one in said["tables"]]
    except (KeyError, TypeError) as error:
        raise ArgumentError(f"{path}:1: is damaged: {error!r}; write it again by tilekiln tune") from error


def _table(said: dict[str, Any]) -> Table:
    winners = [Winner(**one) for one in said["problems"]]
    return Table(said["receipt"], said["library"], said["machine"], {one.key: one for one in winners})


def read(path: str | os.PathLike[str], library: Library | None = None, device: str = "cpu") -> Table:
    """The table of a file for a library on this machine; without a library, the only one there is.

    device: cpu, cuda or hip, where what it is of was measured. ArgumentError where there is none, with what there is.
    """
    tables = read_all(path)
    if library is None and len(tables) == 1:
        return tables[0]
    here, of = machine_of(device), None if library is None else library_key(library)
    for table in tables:
        if table.machine == here and of in (None, table.library):
            return table
    there = "; ".join(f"{one.receipt} ({one.library}) on {one.machine}" for one in tables) or "nothing"
    asked = f"library {library.receipt} ({of}) on {here}" if library else f"this machine, {here}"
    raise ArgumentError(f"{path}: has no table for {asked}; it has {there}: measure here by tilekiln tune")
