# SPDX-License-Identifier: MIT
"""The stub of the driver, and processes beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def beside_stub(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """beside_stub(word, ...): runs Python with these words and the stub in place of the driver; it must say nothing."""
    folder = tmp_path_factory.mktemp("driver")
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-I.", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "tests/cuda/driver_stub.cpp", "-o", folder / "libcuda.so.1"], cwd=ROOT, check=True)
    places = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}

    def run(*words: object) -> None:
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **places}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr

    return run
