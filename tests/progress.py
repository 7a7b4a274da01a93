# SPDX-License-Identifier: MIT
"""A line each twenty seconds of a run with workers: time gone, and time left by the seconds that tests took before."""

from __future__ import annotations

import time
from typing import Any

import pytest

EVERY = 20
ENOUGH = 0.03
"""Share of the tests whose seconds must be known before those that are left are told."""
KEPT = "tilekiln/seconds"


class Progress:
    def __init__(self, config: pytest.Config) -> None:
        self.config, self.began, self.told = config, time.monotonic(), time.monotonic()
        self.before: dict[str, float] = config.cache.get(KEPT, {}) if config.cache else {}
        self.now: dict[str, float] = {}
        self.left: set[str] = set()
        self.workers = 1

    def seconds_left(self) -> float:
        """By each test's own seconds; of one that is new, the mean of what is known."""
        known = self.before | self.now
        mean = sum(known.values()) / len(known) if known else 0
        return sum(known.get(name, mean) for name in self.left) / self.workers

    @pytest.hookimpl(optionalhook=True)  # of xdist
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.workers = len(self.config.getoption("tx", []) or [1])
        self.left = set(ids) - set(self.now)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.now[report.nodeid] = self.now.get(report.nodeid, 0) + report.duration
        if report.when != "teardown":
            return
        self.left.discard(report.nodeid)
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if self.left and reporter and time.monotonic() > self.told + EVERY:
            self.told = time.monotonic()
            reporter.ensure_newline()
            known = len(self.before) + len(self.now) > ENOUGH * (len(self.now) + len(self.left))
            left = f"about {clock(self.seconds_left())} left: " if known else "to do: "
            reporter.write_line(f"{clock(self.told - self.began)} gone, {left}{len(self.left)} tests")

    def pytest_sessionfinish(self) -> None:
        if self.config.cache:
            self.config.cache.set(KEPT, {name: round(taken, 2) for name, taken in (self.before | self.now).items()})


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Progress(config), "tilekiln progress")
