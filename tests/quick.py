"""Three levels of the suite. The plain command is a fair sample of every area, within minutes.

    pytest -n auto          at most two cases of each test without the mark `day`, built for this machine's best ISA
    pytest -n auto --day    every test, matrices as a sample of the day: what CI runs
    pytest -n auto --full   every case

    @pytest.mark.quick(20)  of a test that has more cases than two there, as each is quick and of its own kind
    @pytest.mark.day        of a test that takes more than some eight seconds of a core with builds of its own

Tests that are named (a path, -k, -m, --lf, --operator, --page, --receipt) run as on a day. What failed in the last run
comes first.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sampling import sample, values

MOST = 2
"""Cases of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samples")
    group.addoption("--day", action="store_true", help="every test, matrices as a sample of the day")
    group.addoption("--quick", action="store_true", help="what runs where no test is named")


@pytest.hookimpl(tryfirst=True)  # before the plugin that puts failures first
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "quick(most): cases of a test in the plain command, two without it (tests/quick.py)"
    )
    config.addinivalue_line("markers", "day: left to --day, as it takes more than some eight seconds (tests/quick.py)")
    option = config.option
    option.failedfirst = True
    if hasattr(config, "workerinput"):
        option.quick = config.workerinput["quick"]
        return
    words = (
        option.keyword,
        option.markexpr,
        option.operator,
        option.page,
        option.receipt,
        getattr(option, "lf", False),
    )
    named = config.args_source is pytest.Config.ArgsSource.ARGS or any(words)
    option.quick = option.quick or not (named or option.day or option.full)


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
    left_out: set[pytest.Item] = {item for item in items if item.get_closest_marker("day")}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        mark = cases[0].get_closest_marker("quick")
        most = mark.args[0] if mark else MOST
        drawn = sample([values(case) for case in cases], f"{config.option.sample_seed}/{name}", most)
        left_out |= set(cases) - {cases[number] for number in drawn}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def need_of_a_day(config: pytest.Config, targets: str, mode: str) -> None:
    """Skips a test of the quick level that builds for more than this machine's best ISA, or another mode."""
    if config.option.quick and (targets, mode) != ("native", "release"):
        pytest.skip("the quick level builds target=native mode=release alone; --day runs this test")
