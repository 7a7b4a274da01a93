# SPDX-License-Identifier: MIT
"""The sample of a matrix has every pair of values, is the same for the same seed and another for another."""

from __future__ import annotations

import itertools

import pytest

from tests.sampling import sample

MATRIX = [
    {"dtype": dtype, "mask": mask, "mode": mode}
    for dtype, mask, mode in itertools.product(("fp32", "fp16", "bf16"), ("none", "window", "causal"), range(4))
    if (dtype, mode) != ("fp32", 3)
]


def pairs(cases: list[dict]) -> set:
    return {pair for case in cases for pair in itertools.combinations(case.items(), 2)}


@pytest.mark.parametrize("seed", range(5))
def test_every_pair_is_there(seed: int) -> None:
    drawn = [MATRIX[number] for number in sample(MATRIX, str(seed))]
    assert pairs(drawn) == pairs(MATRIX)
    assert 12 <= len(drawn) <= 16 < len(MATRIX)


def test_another_day_draws_another_sample() -> None:
    assert sample(MATRIX, "1") == sample(MATRIX, "1") != sample(MATRIX, "2")
    assert len(sample(MATRIX, "1", 5)) == 5
    one = [{"number": number} for number in range(10)]
    assert len(sample(one, "1", 3)) == 3
    assert set().union(*(sample(one, str(seed), 3) for seed in range(40))) == set(range(10))


FILE = """
import pytest
@pytest.mark.parametrize("b", "xyz")
@pytest.mark.parametrize("a", range(9))
@pytest.mark.sampled(4)
def test_it(a, b): pass
@pytest.mark.parametrize("c", [(1, 2), {3: 4}, [5], 6])
@pytest.mark.parametrize("b", "xyz")
@pytest.mark.parametrize("a", (7, 8))
@pytest.mark.sampled
def test_pairs(a, b, c): pass
"""


@pytest.mark.parametrize(
    ("words", "least", "most"),
    [
        ([], 4 + 12, 4 + 14),
        (["--full"], 27 + 24, 27 + 24),
        (["-k", "x"], 4 + 8, 4 + 8),
    ],
)
def test_what_runs(pytester: pytest.Pytester, words: list[str], least: int, most: int) -> None:
    done = run(pytester, *words).parseoutcomes()
    assert least <= done["passed"] <= most
    assert "failed" not in done
    assert done.get("deselected", 0) == 27 + 24 - done["passed"]


def test_cases_that_are_named_run(pytester: pytest.Pytester) -> None:
    run(pytester, *(f"test_file.py::test_it[{number}-y]" for number in range(9))).assert_outcomes(passed=9)


def test_the_seed_is_told_and_draws(pytester: pytest.Pytester) -> None:
    said = [run(pytester, "-v", "--sample-seed", seed).outlines for seed in ("20261122", "20261123")]
    one, other = ([line for line in lines if "PASSED" in line] for lines in said)
    assert one != other
    (head,) = (line for line in said[0] if line.startswith("matrices: sampled, --sample-seed=20261122, builds to "))
    assert head.endswith("; --full runs all")


MODES = """
import pytest
@pytest.mark.parametrize("mode", ["release", "sanitize", "thread"])
def test_mode(mode): pass
@pytest.mark.instrumented("thread")
def test_threads(): pass
@pytest.mark.instrumented("sanitize")
def test_bounds(): pass
"""


def test_a_day_has_one_kind_of_instrumented_build(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_modes=MODES)
    seen = set()
    for seed in range(4):
        said = pytester.runpytest_inprocess("-p", "tests.sampling", "-v", "--sample-seed", str(seed), "test_modes.py")
        said.assert_outcomes(passed=3, deselected=2)
        ran = frozenset(line.split("::")[1].split(" ")[0] for line in said.outlines if " PASSED" in line)
        seen.add(ran)
    assert seen == {
        frozenset({"test_mode[release]", "test_mode[sanitize]", "test_bounds"}),
        frozenset({"test_mode[release]", "test_mode[thread]", "test_threads"}),
    }
    for words, passed in (
        (["--full", "test_modes.py"], 5),
        (["test_modes.py::test_threads", "test_modes.py::test_bounds"], 2),
    ):
        pytester.runpytest_inprocess("-p", "tests.sampling", *words).assert_outcomes(passed=passed)


TURNS = """
import pytest
@pytest.mark.turns(0)
def test_even(): pass
@pytest.mark.turns(1)
def test_odd(): pass
@pytest.mark.turns(3, 4)
def test_fourth(): pass
"""


def test_turns(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_days=TURNS)

    def ran(*words: str) -> set[str]:
        said = pytester.runpytest_inprocess("-p", "tests.sampling", "-v", *words)
        return {line.split("::")[1].split(" ")[0] for line in said.outlines if " PASSED" in line}

    days = [ran(f"--sample-seed={day}") for day in range(4)]
    assert [sum(name in day for day in days) for name in ("test_even", "test_odd", "test_fourth")] == [1, 1, 1]
    assert "test_even" in days[0] | days[2]
    assert "test_odd" in days[1] | days[3]
    assert "test_fourth" in days[3]
    assert ran("--full") == {"test_even", "test_odd", "test_fourth"}
    assert ran("--sample-seed=1", "test_days.py::test_even") == {"test_even"}


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """In this process, with the plugin alone."""
    pytester.makepyfile(test_file=FILE)
    return pytester.runpytest_inprocess("-p", "tests.sampling", *words)
