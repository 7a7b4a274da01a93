# SPDX-License-Identifier: MIT
"""python tools/upstream.py: names of flash_attn and aiter that are here, module by module, and how many are not.

python/compat/upstream.yaml lists them; `--absent` prints each that is not here, with the reason. Counted are functions
and classes, under each of their names, at the top of upstream's modules whose names begin with no underscore.
`--against flash_attn DIR` compares the
list with a checkout of upstream: names that either lacks, and other arguments.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

LIST = Path(__file__).resolve().parents[1] / "python/compat/upstream.yaml"


class Module(NamedTuple):
    """A module of upstream."""

    package: str
    version: str
    name: str
    tests: list[str]
    """The files whose tests call its names; empty: none is here."""
    here: dict[str, str]
    """Name -> arguments; a method has its class before it."""
    absent: dict[str, str]
    """Name -> reason."""


def modules() -> list[Module]:
    """All that the list has, in its order."""
    return [
        Module(
            package,
            of["version"],
            name,
            one.get("tests", []),
            one.get("here", {}),
            {gone: reason for reason, names in one.get("absent", {}).items() for gone in names},
        )
        for package, of in yaml.safe_load(LIST.read_text()).items()
        for name, one in of["modules"].items()
    ]


def public(names: Iterable[str]) -> set[str]:
    """Functions and classes that begin with no underscore; a method stands for its class."""
    return {name.partition(".")[0] for name in names if not name.startswith("_")}


def counted(package: str) -> str:
    """A package's counts, as its page has them."""
    own = [one for one in modules() if one.package == package]
    here, absent = (
        sum(len(public(names)) for names in which) for which in ([m.here for m in own], [m.absent for m in own])
    )
    whole = sum(1 for one in own if one.here)
    of = f"{here} of {here + absent} public names of {package} {own[0].version}"
    return f"{of}, in {whole} of {len(own)} modules"


def of_checkout(directory: Path, package: str) -> dict[str, dict[str, str]]:
    """Module -> name -> arguments, as a checkout of upstream has them; of a class those of __init__ and forward."""
    places = {one: directory / f"{one.replace('.', '/')}.py" for one in _modules_of(package)}
    if package == "flash_attn":
        files = [file for file in sorted((directory / package).rglob("*.py")) if file.parent.name != "cute"]
        places |= {".".join(file.relative_to(directory).with_suffix("").parts): file for file in files}
        places["flash_attn_3.flash_attn_interface"] = directory / "hopper/flash_attn_interface.py"
    found = {}
    for module, file in places.items():
        names = {name: text for name, text in _defined(file) if not name.split(".")[0].startswith("_")}
        if names:
            found[module] = names
    return found


def _modules_of(package: str) -> list[str]:
    return [one.name for one in modules() if one.package == package]


def _defined(file: Path) -> Iterator[tuple[str, str]]:
    """Functions, under another name too, and classes, with their arguments."""
    functions: set[str] = set()
    for node in ast.parse(file.read_text()).body if file.is_file() else []:
        if isinstance(node, ast.FunctionDef):
            functions.add(node.name)
            yield node.name, _arguments(node)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if getattr(value, "attr", "") == "apply" or getattr(value, "id", "") in functions:
                yield node.targets[0].id, ""
        if isinstance(node, ast.ClassDef):
            yield node.name, ""
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "forward"):
                    yield f"{node.name}.{one.name}", _arguments(one)


def _arguments(function: ast.FunctionDef) -> str:
    """Names and defaults, without annotations."""
    for one in ast.walk(function.args):
        if isinstance(one, ast.arg):
            one.annotation = None
    text = ast.unparse(function.args)
    return re.sub(r"\b(?:nn|F|aiter)\.(?:functional\.)?(\w+)", r"\1", text)


def differences(directory: Path, package: str) -> list[str]:
    """Names that a checkout has and the list has not, or says otherwise."""
    theirs = of_checkout(directory, package)
    listed = {one.name: one for one in modules() if one.package == package}
    said = []
    for module, names in theirs.items():
        mine = listed.get(module)
        known = public([*mine.here, *mine.absent]) if mine else set()
        said += [f"{module}.{name}: is not in the list" for name in sorted(public(names) - known)]
        for name, arguments in (mine.here if mine else {}).items():
            upstream = names.get(name, "")
            if upstream and upstream != arguments.partition(", *, ")[0]:
                said.append(f"{module}.{name}: is listed as ({arguments}), is ({upstream})")
    for module, mine in listed.items():
        gone = public([*mine.here, *mine.absent]) - public(theirs.get(module, {}))
        said += [f"{module}.{name}: is in the list alone" for name in sorted(gone)]
    return said


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/upstream.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--absent", action="store_true", help="each name that is not here, with the reason")
    parser.add_argument("--against", nargs=2, metavar=("PACKAGE", "DIR"), help="compare the list with a checkout")
    asked = parser.parse_args(argv)
    if asked.against:
        said = differences(Path(asked.against[1]), asked.against[0])
        print("\n".join(said) or f"the list has all of {asked.against[1]}")
        return 1 if said else 0
    every = modules()
    console = Console(width=140)
    if asked.absent:
        for one in every:
            for name, reason in one.absent.items():
                console.print(f"{one.name}.{name}: {reason}", highlight=False, soft_wrap=True)
        return 0
    table = Table("module", "here", "absent", "tests", box=None, pad_edge=False)
    for one in every:
        table.add_row(one.name, str(len(one.here)), str(len(one.absent)), " ".join(one.tests))
    console.print(table)
    for package in dict.fromkeys(one.package for one in every):
        console.print(counted(package), highlight=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
