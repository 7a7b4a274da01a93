# SPDX-License-Identifier: MIT
"""Three levels of the suite. The plain command is a fair sample of every area, within minutes.

    pytest -n auto          at most two cases of each test without the mark `day`, built for this machine's best ISA
                            alone, which stands there for target=all
    pytest -n auto --day    every test, matrices as a sample of the day: what CI runs
    pytest -n auto --full   every case

    @pytest.mark.quick(20)  of a test that has more cases than two there, as each is quick and of its own kind
    @pytest.mark.quick(each="operator")   of a test that has one case there of each value of that parameter
    @pytest.mark.day        of a test that takes more than some eight seconds of a core with builds of its own, or needs
                            kernels of several targets

Tests that are named (a path, -k, -m, --lf, --operator, --page, --receipt) run as on a day. What failed in the last run
comes first.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from random import Random
from typing import Any

import pytest

from tests.sampling import INSTRUMENTED, sample, values

MOST = 2
"""Cases of a test."""
OTHERS = pytest.StashKey[frozenset[str]]()
"""Targets of this machine for which nothing is built."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samples")
    group.addoption("--day", action="store_true", help="every test, matrices as a sample of the day")
    group.addoption("--quick", action="store_true", help="what runs where no test is named")


@pytest.hookimpl(tryfirst=True)  # before the plugin that puts failures first
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "quick(most or each=): cases of a test in the plain command, two without it (tests/quick.py)"
    )
    config.addinivalue_line("markers", "day: left to --day, as it takes more than some eight seconds (tests/quick.py)")
    from tests import gpu_run  # a plugin, too, which comes after this one

    option = config.option
    option.failedfirst = True
    if hasattr(config, "workerinput"):
        option.quick = config.workerinput["quick"]
    else:
        option.quick = option.quick or not (option.day or option.full or _named(config))
    config.stash[OTHERS] = gpu_run.best_alone() if option.quick else frozenset()


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


def pytest_report_header(config: pytest.Config) -> str | None:
    return "level: quick, a sample of every area; --day runs every test" if config.option.quick else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.quick:
        return
    tests: dict[str, list[pytest.Function]] = {}
    others = re.compile("|".join(config.stash[OTHERS]) or "(?!)")
    left_out = {item for item in items if item.get_closest_marker("day") or _of_another_build(item, others)}
    for item in items:
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
    """Whether its parameters name a mode with sanitizers, or another target whose kernels it calls."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    calls = {"load", "build_library"} & set(item.fixturenames)
    return item.callspec.params.get("mode") in INSTRUMENTED or bool(calls and others.search(item.callspec.id))


def need_of_a_day(config: pytest.Config, targets: str, mode: str) -> None:
    """Skips a test of the quick level that builds for more than this machine's best ISA, or another mode."""
    if config.option.quick and (targets, mode) != ("native", "release"):
        pytest.skip("the quick level builds target=native mode=release alone; --day runs this test")
