"""python tools/upstream.py: names of flash_attn and aiter that are here, module by module, and how many are not.

python/compat/upstream.yaml lists them; `--absent` prints each that is not here, with the reason.
"""

from __future__ import annotations

import argparse
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


def counted(package: str) -> str:
    """A package's counts, as its page has them."""
    own = [one for one in modules() if one.package == package]
    here, absent = sum(len(one.here) for one in own), sum(len(one.absent) for one in own)
    whole = sum(1 for one in own if one.here)
    of = f"{here} of {here + absent} names of {package} {own[0].version}"
    return f"{of}, in {whole} of {len(own)} modules that were read"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/upstream.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--absent", action="store_true", help="each name that is not here, with the reason")
    asked = parser.parse_args(argv)
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
