# SPDX-License-Identifier: MIT
"""Folders of tests: those of a test that passes go at once, all of a run that passes when it ends, with workers too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import os
import pytest

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    place = tmp_path_factory.mktemp("shared")
    (place / "kept").write_text("x")
    return place

@pytest.mark.parametrize("number", range(4))
def test_passes(number, shared, tmp_path):
    (tmp_path / "made").write_text("x")
    folders = [path for path in tmp_path.parent.glob("test_passes*") if not path.is_symlink()]
    assert folders == [tmp_path], "one of a test before is there"

def test_may_fail(shared, tmp_path):
    (tmp_path / "evidence").write_text("x")
    assert not os.environ.get("FAILS")
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "2"]], ids=["alone", "workers"])
def test_only_what_failed_stays(workers: list[str], tmp_path: Path) -> None:
    """By the settings of the tree's own pyproject.toml."""
    (tmp_path / "test_inner.py").write_text(TESTS)
    (tmp_path / "temp").mkdir()

    def left(fails: str) -> list[str]:
        settings = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider", "-q", *workers]
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(tmp_path / "temp"), "FAILS": fails}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
            del environment[name]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *settings, tmp_path / "test_inner.py"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == (1 if fails else 0), done.stdout + done.stderr
        return sorted(path.name for path in (tmp_path / "temp").rglob("*") if path.is_file() and path.name != ".lock")

    assert left("") == []
    assert set(left("yes")) == {"evidence", "kept"}
    assert left("yes").count("evidence") == 1, "that of the last run that failed, alone"
