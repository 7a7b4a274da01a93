# SPDX-License-Identifier: MIT
"""Mnemonics that the tests of this folder execute; never_executed.txt records the others.

`python -m tests.executor.amdgcn.test_coverage` writes the record.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.executor.amdgcn import compares, instructions, lanes, test_matrices, test_moves, test_scalars
from tests.executor.amdgcn.assembled import ALL
from tests.executor.amdgcn.cases import computed
from tools.executor.amdgcn.code_object import CodeObject, mnemonics

RECORD = Path(__file__).with_name("never_executed.txt")
HEAD = "# Mnemonics that the executor knows and no test of tests/executor executes. Executed: {executed} of {known}.\n"


def executed_of(code: CodeObject) -> set[str]:
    return {name for name, (times, _) in code.coverage().items() if times}


def record(place: Path) -> str:
    """The text of never_executed.txt."""
    ran: set[str] = set()
    tables = [*instructions.CASES, *compares.CASES, *instructions.FP8_CONVERSIONS, *instructions.FROM_FP8, *lanes.CASES]
    for architecture in ALL:
        ran |= computed(architecture, [case for case in tables if architecture in case.on], place)[1]
        for module in (test_scalars, test_moves, test_matrices):
            ran |= executed_of(module.computed(architecture, place)[-1])
    known = mnemonics()
    never = [name for name in known if name not in ran]
    return HEAD.format(executed=len(known) - len(never), known=len(known)) + "".join(f"{name}\n" for name in never)


def test_what_no_test_executes_is_known(tmp_path):
    text = record(tmp_path)
    print(text.splitlines()[0])
    assert text == RECORD.read_text(), f"write it anew: python -m {__name__}, and look at the difference"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        RECORD.write_text(record(Path(place)))
    sys.stdout.write(RECORD.read_text())
