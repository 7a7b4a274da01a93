# SPDX-License-Identifier: MIT
"""The tests of one operator alone: `pytest --operator rmsnorm2d`, on this machine's best ISA, with its families alone.

They are the file that its declaration names (`tests:`, else test_<operator>.py) but for cases of other operators, and
its own cases of the files that have some of every operator. Libraries are built for the native target, those of the
operator's receipt with the families of the operators that its file names: a few seconds where a whole receipt takes
minutes.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
OF_EVERY = ("test_cases.py", "test_declared_bad_input.py", "test_strides.py")
"""Files of tests/python with cases of every operator."""


class Alone(NamedTuple):
    """Tests of an operator. names: of all operators; others: targets of this machine that are not its best."""

    operator: str
    file: Path
    names: frozenset[str]
    others: frozenset[str]

    @property
    def paths(self) -> list[Path]:
        return [self.file, *(ROOT / "tests" / "python" / name for name in OF_EVERY)]

    def keeps(self, item: pytest.Item) -> bool:
        """Whether a test is the operator's: in its own file any that names no other operator among its parameters."""
        parameters = item.nodeid.partition("[")[2]
        if any(re.search(rf"\b{one}\b", parameters) for one in self.others):
            return False
        named = self.names & set(re.findall(r"\w+", parameters))
        return self.operator in named if item.path.name in OF_EVERY else not named or self.operator in named

    def narrowed(self, receipt: str, where: str) -> str:
        """`where` of a build of a receipt: the families of the operators that the tests name, where it has them."""
        from codegen.schema.tree import tree

        words = set(re.findall(r"\w+", self.file.read_text())) & self.names | {self.operator}
        listed = set(tree().receipt(receipt).clauses)
        families = {stage for name in words for stage in tree().operators[name].file.stages} & listed
        return where if where or families in (set(), listed) else f"family={','.join(sorted(families))}"


@cache
def alone(operator: str) -> Alone:
    """UsageError where there is no such operator."""
    from codegen.schema.tree import tree

    operators = tree().operators
    if operator not in operators:
        near = difflib.get_close_matches(operator, operators, 3, 0.4)
        help_ = f"did you mean {' or '.join(near)}?" if near else f"it must be one of {', '.join(operators)}"
        raise pytest.UsageError(f"--operator: {operator!r} is no operator; {help_}")
    file = ROOT / "tests" / "python" / f"{operators[operator].file.tests or f'test_{operator}'}.py"
    others = frozenset(tree().of_host) - {tree().native().name}
    return Alone(operator, file, frozenset(operators), others)


def chosen(config: pytest.Config) -> Alone | None:
    return alone(config.option.operator) if config.option.operator else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("samples").addoption("--operator", metavar="NAME", help="the tests of one operator, on one ISA")


def pytest_configure(config: pytest.Config) -> None:
    own = chosen(config)
    if own is None:
        return
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = map(str, own.paths)


@pytest.hookimpl(tryfirst=True)  # a sample is drawn of what is left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    own = chosen(config)
    if own is None:
        return
    left_out = [item for item in items if not own.keeps(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if own.keeps(item)]
