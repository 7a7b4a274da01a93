# SPDX-License-Identifier: MIT
"""Three levels of the suite. The plain command is a fair sample of every area, within minutes.

    pytest -n auto          at most two cases of each test without the mark `day`, built for this machine's best ISA
                            alone, which stands there for target=all; a fifth of what hypothesis draws
    pytest -n auto --day    every test, matrices as a sample of the day: what CI runs. Beside the best ISA one other of
                            this machine, of the day too, stands for target=all
    pytest -n auto --full   every case, every ISA: so does what is named with its test, as in FILE::TEST

    @pytest.mark.quick(20)  of a test that has more cases than two there, as each is quick and of its own kind
    @pytest.mark.quick(each="operator")   of a test that has one case there of each value of that parameter
    @pytest.mark.day        of a test that takes some seconds of a core and whose like runs there, or needs kernels of
                            several targets

Tests that are named (a path, -k, -m, --lf, --operator, --page, --receipt) run as on a day. What failed in the last run
comes first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Sequence
from random import Random
from typing import Any

import pytest

from tests import sampling
from tests.sampling import INSTRUMENTED, sample, values

MOST = 2
"""Cases of a test."""
OTHERS = pytest.StashKey[frozenset[str]]()
"""Targets of this machine for which target=all builds nothing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samples")
    group.addoption("--day", action="store_true", help="every test, matrices as a sample of the day")
    group.addoption("--quick", action="store_true", help="what runs where no test is named")


@pytest.hookimpl(tryfirst=True)  # before the plugin that puts failures first
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "quick(most or each=): cases of a test in the plain command, two without it (tests/quick.py)"
    )
    config.addinivalue_line("markers", "day: left to --day: it takes seconds, and its like runs there (tests/quick.py)")
    option = config.option
    option.failedfirst = True
    if hasattr(config, "workerinput"):
        option.quick = config.workerinput["quick"]
    else:
        option.quick = option.quick or not (option.day or option.full or _named(config))
    sampling.fewer_examples = option.quick


def pytest_sessionstart(session: pytest.Session) -> None:
    from tests import gpu_run  # a plugin, too, which comes after this one

    if (words := stands_for_all(session.config)) != "all":
        from codegen.plan.plan import pick_targets
        from codegen.schema.tree import tree

        others = tree().of_host.keys() - {one.name for one in pick_targets(tree(), words.split(","))}
        session.config.stash[OTHERS] = frozenset(others)
        gpu_run.leave_out(session.config.stash[OTHERS])


def stands_for_all(config: pytest.Config) -> str:
    """Words of target= that a build of `all` gets in this run."""
    option = config.option
    if option.operator or option.quick:
        return "native"
    if option.full or os.environ.get("TILEKILN_TEST_LIBRARIES") or any("::" in one for one in config.args):
        return "all"
    from codegen.schema.tree import tree

    usable = [one.name for one in tree().of_host.values() if one.usable and one.beside is None]
    others = [name for name in usable if name not in {one.name for one in tree().natives()}]
    return f"native,{others[option.sample_seed % len(others)]}" if others else "native"


def _named(config: pytest.Config) -> bool:
    option = config.option
    words = (
        option.keyword,
        option.markexpr,
        option.operator,
        option.page,
        option.receipt,
        getattr(option, "lf", False),
    )
    return config.args_source is pytest.Config.ArgsSource.ARGS or any(words)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_configure_node(node: Any) -> None:
    node.workerinput["quick"] = node.config.option.quick


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.quick:
        return "level: quick, a sample of every area; --day runs every test"
    return f"target=all is {stands_for_all(config)}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests: dict[str, list[pytest.Function]] = {}
    quick, names = config.option.quick, "|".join(config.stash.get(OTHERS, ())).replace("-", "[-_]")
    others = re.compile(rf"(?<![a-z0-9])(?:{names or '(?!)'})(?![a-z0-9])")
    left_out = {
        item
        for item in items
        if _of_another_build(item, others) or (quick and (item.get_closest_marker("day") or _instrumented(item)))
    }
    for item in items if quick else ():
        if item in left_out:
            continue
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        mark = cases[0].get_closest_marker("quick")
        seed = f"{config.option.sample_seed}/{name}"
        if mark and "each" in mark.kwargs:
            drawn = one_of_each([values(case)[mark.kwargs["each"]] for case in cases], seed)
        else:
            drawn = sample([values(case) for case in cases], seed, mark.args[0] if mark else MOST)
        left_out |= set(cases) - {cases[number] for number in drawn}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def one_of_each(cases: Sequence[Hashable], seed: str) -> list[int]:
    """Numbers of the cases that are drawn, one of each value."""
    order = Random(seed).sample(range(len(cases)), len(cases))
    return sorted({cases[number]: number for number in order}.values())


def _of_another_build(item: pytest.Item, others: re.Pattern[str]) -> bool:
    """Whether its parameters name another target, whose kernels it calls."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    calls = {"load", "build_library", "build_program"} & set(item.fixturenames)
    return bool(calls and others.search(item.callspec.id))


def _instrumented(item: pytest.Item) -> bool:
    """Whether its parameters name a mode with sanitizers."""
    return (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("mode") in INSTRUMENTED
    )


def need_of_a_day(config: pytest.Config, targets: str, mode: str) -> None:
    """Skips a test of the quick level that builds for more than this machine's best ISA, or another mode."""
    if config.option.quick and (targets, mode) != ("native", "release"):
        pytest.skip("the quick level builds target=native mode=release alone; --day runs this test")
