# SPDX-License-Identifier: MIT
"""Levels of the suite, and the tests of one page or receipt: what runs, in this process and in workers."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.progress import Progress, clock

FILE = """
import pytest
from tests.sampling import examples
@pytest.mark.quick(99)
@pytest.mark.parametrize("d", range(examples(10)))
def test_drawn(d): pass
@pytest.mark.parametrize("a", range(9))
def test_cases(a): pass
@pytest.mark.quick(each="b")
@pytest.mark.parametrize("a", range(5))
@pytest.mark.parametrize("b", range(3))
def test_each(a, b): pass
@pytest.mark.sampled(2)
@pytest.mark.quick(each="c")
@pytest.mark.parametrize("c", range(7))
def test_each_of_a_sample(c): pass
@pytest.mark.day
def test_long(): pass
def test_short(): pass
@pytest.mark.parametrize("page", ["docs/how-to/serve.md", "docs/how-to/wheels.md"])
@pytest.mark.parametrize("receipt", ["flash", "fp32_min"])
def test_named(receipt, page): pass
"""
PLUGINS = [word for name in ("sampling", "quick", "named", "alone") for word in ("-p", f"tests.{name}")]


def run(pytester: pytest.Pytester, *words: str) -> dict[str, int]:
    pytester.makepyfile(FILE)
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\ntestpaths = ["."]\n')
    done = pytester.runpytest_subprocess(*PLUGINS, "--sample-seed=1", *words)
    return done.parseoutcomes()


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ([], 5 + 2 + 3 + 7 + 1 + 2),
        (["--day"], 10 + 9 + 15 + 2 + 1 + 1 + 4),
        (["--full"], 10 + 9 + 15 + 7 + 1 + 1 + 4),
        (["test_what_runs.py"], 10 + 9 + 15 + 2 + 1 + 1 + 4),
        (["-k", "long or short"], 2),
        (["--quick", "-k", "long or short"], 1),
        (["--receipt", "flash"], 2),
        (["-n", "1"], 5 + 2 + 3 + 7 + 1 + 2),
    ],
)
def test_what_runs(pytester: pytest.Pytester, words: list[str], passed: int) -> None:
    assert run(pytester, *words)["passed"] == passed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--page", "how-to/srve"], "*--page: there is no page 'how-to/srve'; it must be one of how-to/serve*"),
        (["--receipt", "flsh"], "*--receipt: there is no receipt 'flsh'; it must be one of flash*"),
    ],
)
def test_a_name_that_is_none(pytester: pytest.Pytester, words: list[str], said: str) -> None:
    pytester.makepyfile(FILE)
    done = pytester.runpytest_subprocess(*PLUGINS, *words)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([said])


def test_what_failed_comes_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass\ndef test_b(): assert 0\n")
    assert pytester.runpytest_subprocess(*PLUGINS).ret == pytest.ExitCode.TESTS_FAILED
    again = pytester.runpytest_subprocess(*PLUGINS, "-x").parseoutcomes()
    assert again == {"failed": 1}


def test_a_run_in_the_background_can_interrupt_its_programs() -> None:
    """SIGINT, ignored in `nohup pytest &`, is not ignored by programs that tests start."""
    code = "import signal, tests.conftest; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    command = f"trap '' INT; {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    assert subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "True\n"


def test_a_day_builds_the_best_isa_and_another(pytester: pytest.Pytester) -> None:
    """Days take turns with the others; --full, and a test that is named, have all."""
    from codegen.schema.tree import tree

    best = tree().native()
    others = {one.name for one in tree().of_host.values() if one.usable and one.beside is None} - {best.name}
    pytester.makepyfile(test_one="def test_one(): pass")

    def told(*words: str) -> str:
        lines = pytester.runpytest_inprocess(*PLUGINS, *words).outlines
        return next(line.removeprefix("target=all is ") for line in lines if line.startswith("target=all is "))

    days = {told("--day", f"--sample-seed={day}") for day in range(len(others))}
    assert days == ({f"native,{name}" for name in others - {best.beside}} or {"native"})
    assert told("--full") == told("test_one.py::test_one") == "all"


def test_time_left(pytestconfig: pytest.Config) -> None:
    progress = Progress(pytestconfig)
    progress.before, progress.now = {"a": 10.0}, {"b": 20.0}
    progress.left, progress.workers = {"a", "new"}, 2
    assert progress.seconds_left() == (10 + 15) / 2
    assert clock(125.9) == "2:05"


def test_planted_faults_are_of_this_tree() -> None:
    """Each text is there once, so that tools/planted.py can change it."""
    from tools import planted

    faults = planted.yaml.safe_load(planted.FAULTS.read_text())
    assert len({fault["name"] for fault in faults}) == len(faults) == 20
    for fault in faults:
        assert (planted.ROOT / fault["file"]).read_text().count(fault["there"]) == 1, fault
        assert fault["there"] != fault["becomes"]
        path, _, name = fault["by"].partition("::")
        assert f"def {name}" in (planted.ROOT / path).read_text()
