# SPDX-License-Identifier: MIT
"""Opcodes that runs execute, held to opcodes.yaml."""

from __future__ import annotations

import collections
from pathlib import Path

import yaml

HELD = Path(__file__).with_name("opcodes.yaml")
DAILY = 0.85
"""Share of the opcodes of a library that the problems of any day execute; those of --full execute all."""


def read(coverage: Path) -> dict[str, int]:
    """Executions of each opcode with its modifiers, from a file that TILEKILN_CUDASIM_COVERAGE named."""
    executed = collections.Counter[str]()
    for line in coverage.read_text().splitlines():
        _, opcode, count, _ = line.split()
        executed[opcode] += int(count)
    return dict(executed)


def faults(name: str, executed: dict[str, int], full: bool) -> list[str]:
    """Sentences about opcodes of a library that were not executed and must be, and about entries out of date."""
    table = yaml.safe_load(HELD.read_text())
    if name not in table:  # nobody has written its list yet
        return []
    held = table[name] or {}
    never = {opcode for opcodes in (held.get("never") or {}).values() for opcode in opcodes.split()}
    some_days = set((held.get("some_days") or "").split())
    every = {opcode for opcode, count in executed.items() if not count}
    expected = set(executed) - never - (set() if full else some_days)
    missed = sorted(every & expected)
    if not full and len(missed) <= (1 - DAILY) * len(expected):
        missed = []
    said = [f"{opcode} is executed no longer, or new and not executed yet" for opcode in missed]
    said += [f"{opcode} is executed: strike it under never" for opcode in sorted(never & set(executed) - every) if full]
    return [f"{HELD.name}, {name}: {text}" for text in said]
