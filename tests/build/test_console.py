# SPDX-License-Identifier: MIT
"""A build's lines on a terminal: the time that is left, and its totals."""

from __future__ import annotations

import pytest

from build_support import console


class Node:
    """As SCons's: a step, or a source."""

    def __init__(self, name, *sources):
        self.name, self.sources, self.depends = name, sources, []

    def __str__(self):
        return self.name

    def has_explicit_builder(self):
        return self.name.endswith(".o")


@pytest.fixture
def progress(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    one = console.Progress()
    one.now = now
    return one


def test_what_is_left_is_told_by_what_it_took_before(progress):
    nodes = [Node(f"{at}.o", Node(f"{at}.cpp")) for at in range(10)]
    progress.aim([Node("all", *nodes)], {"8.o": 30.0, "9.o": 11.0, "0.o": 2.0, "elsewhere.o": 500.0})
    assert progress.prefix() == "[ 0/10] "
    for node in nodes[:8]:
        progress.visit(node)
        progress.ran("compile", 2.0, 1000)
    progress.now[0] += 3
    assert progress.prefix() == "[ 8/10] ", "too early to tell"
    progress.now[0] += 5
    assert progress.prefix() == "[ 8/10, 20 s left] ", "41 s of CPU are left, 16 took 8 s"
    progress.visit(nodes[9])
    assert progress.prefix() == "[ 9/10, 15 s left] "
    progress.visit(nodes[8])
    assert progress.prefix() == "[10/10, 0.0 s left] "


def test_a_step_that_was_never_made_takes_what_others_took(progress):
    nodes = [Node(f"{at}.o") for at in range(4)]
    progress.aim(nodes, {})
    for node in nodes[:3]:
        progress.visit(node)
        progress.ran("compile", 20.0, 1000)
    progress.now[0] += 60
    assert progress.prefix() == "[3/4, 20 s left] "


def test_sums(progress):
    assert progress.sums() == ""
    for cpu, peak in ((70.0, 3_000_000), (60.5, 400_000_000)):
        progress.ran("compile", cpu, peak)
    progress.ran("link", 0.5, 50_000_000)
    progress.now[0] += 75.4
    assert progress.sums() == "compile 2, link 1: 1:15 min, 2:11 min of CPU, 400.0 MB the hungriest"


def test_times_are_short():
    said = [console.clock(seconds) for seconds in (0.04, 9.94, 9.96, 59.4, 59.6, 3599.6, 7300)]
    assert said == ["0.0 s", "9.9 s", "10 s", "59 s", "1:00 min", "1:00 h", "2:01 h"]
