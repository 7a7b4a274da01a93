# SPDX-License-Identifier: MIT
"""Mnemonics and signatures that runs of a library execute, held to executed.yaml."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import yaml

HELD = Path(__file__).with_name("executed.yaml")


def read(coverage: Path) -> dict[str, int]:
    """Executions of each mnemonic of the loaded code objects, from a file of TILEKILN_HIPSIM_COVERAGE."""
    executed = collections.Counter[str]()
    in_waits = False
    for line in coverage.read_text().splitlines():
        if line.endswith(":"):
            in_waits = line == "waits:"
        elif not in_waits:
            mnemonic, count, _ = line.split()
            executed[mnemonic] += int(count)
    return dict(executed)


def faults(executed: dict[str, int], full: bool) -> list[str]:
    """Sentences about mnemonics that were not executed and must be."""
    held = yaml.safe_load(HELD.read_text())
    never = {name for names in held["never"].values() for name in names.split()}
    missed = sorted(name for name, count in executed.items() if not count and name not in never)
    if len(missed) <= (1 - held["full" if full else "daily"]) * len(executed):
        return []
    return [f"{HELD.name}: {name} is in a kernel and no problem executes it" for name in missed]


def signatures(said: str, library: str) -> list[str]:
    """Sentences about the signatures that `tools/hip report` counts on gfx942, of a library of the table."""
    counted = re.search(r"signatures: (\d+) executed of (\d+);", said)
    if counted is None:
        return [f"no count of signatures in: {said}"]
    held = yaml.safe_load(HELD.read_text())["signatures"].get(library, int(counted[2]))
    return [] if int(counted[2]) == held else [f"{HELD.name}, {library}: was {counted[2]} signatures, must be {held}"]
