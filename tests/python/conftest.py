"""Libraries for the facade's tests: built by the real build, loaded through the real binding."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tilekiln as tk


@pytest.fixture(scope="session")
def load(build_library: Callable[..., Path], binding: Path) -> Callable[..., tk.Library]:
    """load(receipt, targets="native", where="") -> the library, built."""
    return functools.cache(lambda receipt, **options: tk.Library(build_library(receipt, **options)))


@pytest.fixture(scope="session")
def flash(load: Callable[..., tk.Library]) -> tk.Library:
    return load("flash")


@pytest.fixture
def run(flash: tk.Library) -> Callable[..., str]:
    """run(code, *PYTHONPATH) -> what it printed; fails with what it said otherwise."""

    def run(code: str, *path: pathlib.Path, fails: str = "") -> str:
        environment = {**os.environ, "TILEKILN_PATH": flash.path, "PYTHONPATH": os.pathsep.join(map(str, path))}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/", check=False
        )
        if not fails:
            assert done.returncode == 0, done.stderr
            return done.stdout
        assert fails in done.stderr, done.stderr
        assert done.returncode != 0
        return done.stderr

    return run
