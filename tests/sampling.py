# SPDX-License-Identifier: MIT
"""Matrices of which a run takes a sample, drawn by a seed of the day; `pytest --full` runs all.

    @pytest.mark.sampled      a few cases in which every two values of two parameters meet that meet in any case
    @pytest.mark.sampled(8)   no more than eight of them; where a test has one parameter, eight values of it

    @pytest.mark.instrumented("thread")   runs on the days of that build mode alone, sanitize or thread: so does every
                              case whose parameter `mode` is one, as both builds of all engines cost minutes

    @pytest.mark.turns(0)     runs one day of four, an even one by its name, those of 1 an odd one: a build from nothing
                              of some twenty seconds, whose like runs each day; turns(0, 2): every even day

A case that is named on the command line runs, whatever was drawn.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Hashable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

INSTRUMENTED = ("sanitize", "thread")
"""Build modes of which a day has one."""
fewer_examples = False
"""Set by tests/quick.py before tests are imported."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samples")
    group.addoption("--full", action="store_true", help="run whole matrices, not a sample of the day")
    group.addoption("--sample-seed", type=int, metavar="N", help="draw the samples of that day, as in 20261122")


def pytest_configure(config: pytest.Config) -> None:
    # A worker of xdist has the controller's day, so midnight does not come between them.
    given = getattr(config, "workerinput", {}).get("sample_seed", config.option.sample_seed)
    config.option.sample_seed = int(time.strftime("%Y%m%d")) if given is None else given
    config.addinivalue_line(
        "markers", "sampled(most): without --full only a sample of its cases runs (tests/sampling.py)"
    )
    config.addinivalue_line(
        "markers", "instrumented(mode): without --full only on the days of that build mode (tests/sampling.py)"
    )
    config.addinivalue_line(
        "markers", "turns(number, of=4): without --full only one day of so many (tests/sampling.py)"
    )


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_configure_node(node: Any) -> None:
    node.workerinput["sample_seed"] = node.config.option.sample_seed


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.full:
        return "matrices: whole"
    drawn = f"--sample-seed={config.option.sample_seed}, builds to {mode_of_the_day(config)}"
    return f"matrices: sampled, {drawn}; --full runs all"


@pytest.hookimpl(trylast=True)  # of what -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.full:
        return
    named = {argument.replace("\\", "/") for argument in config.args if "::" in argument}
    matrices: dict[str, list[pytest.Function]] = {}
    for item in items:
        if getattr(config.option, "quick", False) and item.get_closest_marker("quick"):
            continue  # tests/quick.py draws those of all
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled") and hasattr(item, "callspec"):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    other = {mode for mode in INSTRUMENTED if mode != mode_of_the_day(config)}
    left_out: set[pytest.Item] = {
        item
        for item in items
        if (_mode(item) in other or _of_another_day(item, config.option.sample_seed))
        and not any(one.endswith(item.nodeid) for one in named)
    }
    for name, cases in matrices.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        drawn = sample([values(case) for case in cases], f"{config.option.sample_seed}/{name}", *mark.args)
        asked = {case for case in cases if any(one.endswith(case.nodeid) for one in named)}
        left_out |= set(cases) - {cases[number] for number in drawn} - asked
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def mode_of_the_day(config: pytest.Config) -> str:
    """The one of INSTRUMENTED whose tests run: they take turns."""
    return INSTRUMENTED[config.option.sample_seed % len(INSTRUMENTED)]


def _of_another_day(item: pytest.Item, seed: int) -> bool:
    if (mark := item.get_closest_marker("turns")) is None:
        return False
    number, of = mark.args if mark.args[1:] else (mark.args[0] + 2 * (zlib.crc32(item.nodeid.encode()) % 2), 4)
    return bool(seed % of != number)


def _mode(item: pytest.Item) -> str:
    """The build mode that a test says it needs; "" where it says none."""
    mark = item.get_closest_marker("instrumented")
    if mark is not None:
        return str(mark.args[0])
    return (
        str(item.callspec.params.get("mode", ""))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else ""
    )


def values(case: pytest.Function) -> dict[str, Hashable]:
    """Of its parameters. What has no hash is equal to itself alone: cases of a matrix hold the same objects."""
    return {name: value if _has_hash(value) else id(value) for name, value in case.callspec.params.items()}


def _has_hash(value: object) -> bool:
    try:
        hash(value)
    except TypeError:  # a tuple of a list, too
        return False
    return True


def examples(most: int) -> int:
    """Of a test whose arguments hypothesis draws: a fifth of them in the plain command."""
    return max(5, most // 5) if fewer_examples else most


def sample(cases: Sequence[Mapping[str, Hashable]], seed: str, most: int | None = None) -> list[int]:
    """Numbers of the cases that are drawn, in their order.

    With two parameters or more: greedily, until every pair of values is there that any case has, or `most` are drawn.
    With one: `most` at random.
    """
    random = Random(seed)
    order = random.sample(range(len(cases)), len(cases))
    most = len(cases) if most is None else most
    bits: dict[Hashable, int] = {}  # of every pair
    pairs = []  # of a case, as bits of a number
    for case in cases:
        of_case = 0
        for pair in itertools.combinations(sorted(case.items(), key=lambda one: one[0]), 2):
            of_case |= 1 << bits.setdefault(pair, len(bits))
        pairs.append(of_case)
    if not bits:
        return sorted(order[:most])
    drawn: list[int] = []
    wanted = (1 << len(bits)) - 1
    while wanted and len(drawn) < most:
        best = max(order, key=lambda number: (pairs[number] & wanted).bit_count())
        drawn.append(best)
        wanted &= ~pairs[best]
    return sorted(drawn)
