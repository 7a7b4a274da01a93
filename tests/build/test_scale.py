# SPDX-License-Identifier: MIT
"""Cost of the line grows in step with the plan: counted in calls of Python functions, which no load disturbs."""

from __future__ import annotations

import importlib
import pstats
import shutil
import sys

import pytest

COUNTS = (512, 4096)
MOST = 1.1  # times the growth of the plan; a quadratic step would show as 8


@pytest.fixture(scope="module")
def scale():
    return importlib.import_module("tools.bench.scale")


@pytest.fixture
def trees(scale, copy_sources, tmp_path):
    found = []
    for count in COUNTS:
        tree = copy_sources(tmp_path / f"tree{count}")
        assert scale.widen(tree.root, count) == count
        found.append(tree)
    return found


def calls(tree, *command):
    """Number of calls that a Python program makes; it must succeed."""
    tree.run(sys.executable, "-m", "cProfile", "-o", "profile", *command)
    return pstats.Stats(str(tree.root / "profile")).total_calls


def assert_linear(found):
    few, many = found
    assert many / few < MOST * COUNTS[1] / COUNTS[0], found


@pytest.mark.day
def test_listing_and_generating(scale, trees):
    assert_linear([calls(tree, "-m", "codegen", "list", "scale") for tree in trees])
    for tree in trees:
        (tree.root / "generate.py").write_text(scale.GENERATE)
    first = [calls(tree, "generate.py") for tree in trees]
    assert_linear(first)
    again = [calls(tree, "generate.py") for tree in trees]
    assert_linear(again)
    assert again[1] < first[1] / 4


@pytest.mark.day
def test_building(scale, trees, tmp_path):
    variables = scale.fake_tools(tmp_path / "bin")
    cold, no_op = [], []
    for tree in trees:
        for found in (cold, no_op):
            said = tree.scons("receipt=scale", "--profile=profile", "-j1", environment=variables)
            assert said.code == 0, said.out + said.error
            found.append(pstats.Stats(str(tree.root / "profile")).total_calls)
        assert "is up to date" in said.out
        shutil.rmtree(tree.root / "build")
    assert_linear(cold)
    assert_linear(no_op)
