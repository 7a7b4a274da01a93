# SPDX-License-Identifier: MIT
"""A need of a test that is not met: a skip with its reason, a failure where TILEKILN_CI is set."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import programs

ROOT = Path(__file__).resolve().parent.parent
FILE = """
import pytest
from tests.programs import need

@pytest.fixture
def makes():
    need("make")

@pytest.mark.needs({0!r})
def test_marked():
    pass

def test_in_a_fixture(makes):
    pass

@pytest.mark.needs("make", "pkg-config")
class TestTwo:
    def test_both(self):
        pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., pytest.RunResult]]:
    """run(marked, *programs) -> what pytest says of FILE, where these programs alone are on PATH."""

    def run(marked: str, *there: str) -> pytest.RunResult:
        folder = pytester.mkdir("path")
        for name in there:
            (folder / name).touch(mode=0o755)
        monkeypatch.setenv("PATH", str(folder))
        pytester.makepyfile(test_file=FILE.format(marked))
        programs.missing.cache_clear()
        return pytester.runpytest_inprocess("-p", "tests.programs", "-rs")

    yield run
    programs.missing.cache_clear()


def test_all_there(run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEKILN_CI", raising=False)
    run("make", "make", "pkg-config").assert_outcomes(passed=3)


def test_one_away_is_a_skip_with_its_reason(
    run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TILEKILN_CI", raising=False)
    done = run("pkg-config", "pkg-config")
    done.assert_outcomes(passed=1, skipped=2)
    done.stdout.fnmatch_lines(["SKIPPED*make is not on PATH: apt install make"])


def test_one_away_is_a_failure_for_ci(run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEKILN_CI", "1")
    monkeypatch.setattr(programs, "PACKAGES", ())  # whose absence ends a run
    done = run("pkg-config", "pkg-config")
    assert done.parseoutcomes() == {"passed": 1, "errors": 2}
    done.stdout.fnmatch_lines(["CI must have it: make is not on PATH: apt install make. See .ci/run"])


def test_a_package_away_ends_a_run_of_ci(run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEKILN_CI", "1")
    monkeypatch.setattr(programs, "PACKAGES", ("jax",))
    monkeypatch.setattr(programs, "TABLE", {"jax": programs.Tool(programs._program, "tools/dev --with jax pytest")})
    assert run("pkg-config", "pkg-config").ret == pytest.ExitCode.USAGE_ERROR


def test_a_name_that_the_table_has_not(run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEKILN_CI", raising=False)
    done = run("mkae", "make", "pkg-config")
    assert done.parseoutcomes() == {"passed": 2, "errors": 1}
    done.stdout.fnmatch_lines(["*mkae: not in TABLE of tests/programs.py, which says how each is found"])


@pytest.mark.parametrize("name", [name for name in programs.TABLE if name not in ("nvdisasm", "cuda.h")])
def test_each_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is on PATH and no package is found."""
    sysconfig.get_config_vars()  # asked for when modules are imported: of the true paths, once
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("NVCC", "CUOBJDUMP"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("tools.aarch64_python.PLACE", tmp_path)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"purelib": str(tmp_path)})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    programs.missing.cache_clear()
    try:
        reason = programs.missing(name)
    finally:
        programs.missing.cache_clear()
    assert reason.startswith(f"{name} is not ")
    assert "tools/dev " in reason or "apt install " in reason


def test_ci_installs_the_programs_of_the_machine() -> None:
    """Those that no extra of tools/dev brings."""
    said = (ROOT / ".ci/run").read_text()
    packages = {tool.get.removeprefix("apt install ") for tool in programs.TABLE.values() if "apt" in tool.get}
    assert [one for one in sorted(packages) if one not in said] == []


def test_what_finds_nvcc_behind_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/usr/local/bin/nvcc may start one that lies elsewhere, with its headers there."""
    top = tmp_path / "toolkit"
    (top / "include").mkdir(parents=True)
    script = tmp_path / "nvcc"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "release 13.0, V13.0.88" || echo "#$ TOP={top}/bin/.." >&2\n'
    )
    script.chmod(0o755)
    (top / "bin").mkdir()
    monkeypatch.setenv("NVCC", str(script))
    with pytest.raises(programs.MissingError, match=r"include/cuda\.h of .*/nvcc is missing"):
        programs.cuda_headers()
    (top / "include/cuda.h").touch()
    assert programs.cuda_headers().samefile(top / "include")
