# SPDX-License-Identifier: MIT
"""The commands `tilekiln list`, `explain`, `why` and `env`: what the libraries here hold, and would choose."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from .._core.variables import VARIABLES
from .._core.variables import given as set_now

if TYPE_CHECKING:
    from ..api.library import Instance, Library

FORMATS = ("names", "table", "json", "csv")
SELECTION = "a selection, such as 'dtype=bf16 hdim_q=64,128 or tile_q>=64'"

LIST = """Without RECEIPT: a line for each library. With it: the instances of that library, or of a file.

  tilekiln list
  tilekiln list flash --where 'family=fmha_fwd dtype=bf16 hdim_q=128' --format table
"""
EXPLAIN = """An instance by name or number, or a family and a selection of its axes. Ends with 1 where there is none.

  tilekiln explain flash fmha_fwd dtype=bf16 hdim_q=64 mask=causal
  tilekiln explain norm_default 17
"""
WHY = """The words are those of `tilekiln bench OPERATOR --words`. Ends with 1 where no library has a kernel.

  tilekiln why fmha_fwd dtype=bf16 batch=2 seqlen_q=1 seqlen_k=4096 hdim_q=128 hdim_v=128
  tilekiln why rmsnorm2d rows=1 columns=100000 --receipt norm_default
"""


def add(commands: Any) -> None:
    """The commands to those of `tilekiln`."""
    listing = _command(commands, "list", "the available libraries, or the instances of one", LIST)
    listing.add_argument("receipt", nargs="?", metavar="RECEIPT", help="a library, by its receipt or its file")
    listing.add_argument("--where", default="", metavar="SELECTION", help=SELECTION)
    listing.add_argument("--format", choices=FORMATS, default="names", help="[%(default)s]")
    listing.set_defaults(run=run_list)
    explaining = _command(commands, "explain", "what an instance of a library is, or why it has none", EXPLAIN)
    explaining.add_argument("receipt", metavar="RECEIPT", help="a library, by its receipt or its file")
    explaining.add_argument("words", nargs="+", metavar="INSTANCE | FAMILY SELECTION", help="what to explain")
    explaining.set_defaults(run=run_explain)
    asking = _command(commands, "why", "which kernel a call would take in each library, and why not the others", WHY)
    asking.add_argument("operator", metavar="OPERATOR", help="such as fmha_fwd")
    asking.add_argument("words", nargs="*", metavar="WORD=VALUE", help="sizes, axes, arguments")
    asking.add_argument("--receipt", help="in this library alone, by its receipt or its file")
    asking.set_defaults(run=run_why)
    environment = _command(commands, "env", "every environment variable: its value, its default, what reads it", "")
    environment.add_argument("--json", action="store_true", help="as JSON")
    environment.set_defaults(run=run_env)


def _command(commands: Any, name: str, about: str, epilog: str) -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=f"Shows {about}.", epilog=epilog, formatter_class=form
    )
    return parser


def run_list(given: argparse.Namespace) -> int:
    """2 for a library that there is not, or a wrong selection."""
    from .._core.native import ArgumentError
    from ..api.library import libraries, load

    if given.receipt is None:
        if given.where or given.format != "names":
            print("tilekiln list: --where and --format are for the instances of RECEIPT; name one", file=sys.stderr)
            return 2
        return _summary(libraries())
    try:
        library = load(given.receipt)
        found = library.instances(given.where)
    except (ArgumentError, OSError, LookupError) as error:
        print(f"tilekiln list: {error}", file=sys.stderr)
        return 2
    _print(found, given.format)
    return 0


def _summary(found: list[Library]) -> int:
    for library in found:
        families = Counter(one.family for one in library.instances())
        print(f"{library.receipt} {library.version}, {library.isa}, {library.instance_count} instances: {library.path}")
        for family, count in sorted(families.items()):
            print(f"  {count:6}  {family}")
    if not found:
        from ..api.library import looked_in

        print(f"no library; looked in {looked_in()}. `tilekiln info` says what was left out and why", file=sys.stderr)
    return 0 if found else 1


def _print(found: list[Instance], form: str) -> None:
    if form == "names":
        print("\n".join(one.name for one in found))
        return
    rows = [{"number": one.number, "name": one.name, "family": one.family, **one.signature, **one.algorithm}
            for one in found]  # fmt: skip
    if form == "json":
        print(json.dumps(rows, indent=1))
        return
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[_shown(row.get(column)) for column in columns] for row in rows]
    if form == "csv":
        csv.writer(sys.stdout).writerows([columns, *cells])
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in [columns, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _shown(value: Any) -> str:
    from ..api.selection import text

    return "" if value is None else text(value)


def run_explain(given: argparse.Namespace) -> int:
    """1 where the library has no such instance."""
    from .._core.native import ArgumentError
    from ..api.library import load

    try:
        library = load(given.receipt)
    except (ArgumentError, OSError, LookupError) as error:
        print(f"tilekiln explain: {error}", file=sys.stderr)
        return 2
    head, *words = " ".join(given.words).split()
    if not words:
        one = next((one for one in library.instances() if head in (one.name, str(one.number))), None)
        if one is not None:
            print(_instance(library, one))
            return 0
    try:
        if head not in library.manifest["families"] and "=" not in head:
            raise ArgumentError(_no_such(head, library))
        return _explained(
            library, "" if "=" in head else f"family={head}", words if "=" not in head else [head, *words]
        )
    except ArgumentError as error:
        print(f"{library.receipt} has none: {error}")
        return 1


def _no_such(word: str, library: Library) -> str:
    import difflib

    families = library.manifest["families"]
    near = difflib.get_close_matches(word, [*families, *(one.name for one in library.instances())], 1)
    hint = f"; nearest: {near[0]}" if near else ""
    return f"{word!r} is no instance and no family of it{hint}. Its families: {', '.join(sorted(families))}"


def _instance(library: Library, one: Instance) -> str:
    lines = [one.name, f"  number {one.number} of {library.receipt} {library.version}, {library.path}"]
    lines += [f"  family     {one.family}"]
    lines += [f"  signature  {axis}={_shown(value)}" for axis, value in one.signature.items()]
    lines += [f"  algorithm  {axis}={_shown(value)}" for axis, value in one.algorithm.items()]
    return "\n".join(lines)


def _explained(library: Library, family: str, conditions: list[str]) -> int:
    found = library.instances(" ".join([*conditions, family]).strip())
    if found:
        print(_instance(library, found[0]))
        if len(found) > 1:
            print(f"the first of {len(found)}; `tilekiln list {library.receipt} --where '...'` shows them all")
        return 0
    print(f"{library.receipt} has no instance of {' '.join([family.removeprefix('family='), *conditions]).strip()}")
    for at, condition in enumerate(conditions if "or" not in conditions else []):
        others = " ".join([*conditions[:at], *conditions[at + 1 :], family]).strip()
        axis = condition.partition("=")[0].rstrip("<>!")
        values = {one.signature.get(axis, one.algorithm.get(axis)) for one in library.instances(others)} - {None}
        if values:
            listed = ", ".join(sorted(map(_shown, values), key=lambda of: (len(of), of)))
            print(f"  but for {condition}: with the rest, {axis} is {listed}")
    return 1


def run_why(given: argparse.Namespace) -> int:
    """1 where no library has a kernel, 2 for wrong words."""
    from .._core.native import ArgumentError, NoKernelError
    from ..api.library import libraries, load
    from ..bench import problems
    from ..bench.command import combined
    from ..bench.settings import Settings

    held = 0
    try:
        calls = [Settings(given.operator, words) for words in combined(given.words)]
        at_hand = [load(given.receipt)] if given.receipt else libraries()
        asked = [library for library in at_hand if hasattr(library, f"{given.operator}_why")]
        if not asked:
            names = ", ".join(library.receipt for library in at_hand) or "none"
            print(f"no library here has {given.operator}; libraries: {names}")
            return 1
        for settings in calls:
            for library in asked:
                try:
                    call = problems.whole(settings, problems.arrays(settings, 0, library))
                    said = getattr(library, f"{given.operator}_why")(**call)
                    getattr(library, f"{given.operator}_find")(**call)
                    held += 1
                except NoKernelError as error:
                    said = str(error)
                print(f"{library.receipt}: {said}")
    except (ArgumentError, OSError, LookupError) as error:
        print(f"tilekiln why: {error}", file=sys.stderr)
        return 2
    return 0 if held else 1


def run_env(given: argparse.Namespace) -> int:
    """0."""
    values = set_now()
    if given.json:
        rows = [one._asdict() | {"value": values.get(one.name)} for one in VARIABLES]
        print(json.dumps(rows, indent=1))
        return 0
    for one in VARIABLES:
        value = values.get(one.name)
        is_set = f"= {value}" if value is not None else f"not set: {one.default or 'nothing'}"
        print(f"{one.name} {is_set}\n  {one.does}; read by {one.read_by}")
    return 0
