# SPDX-License-Identifier: MIT
"""examples/devices on the CPU; tests/executor has those of GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import ROOT

SAID = """{}: the same bits twice: 1, gradients are there: 1
pinned memory was taken: 1, and is given back: 1
"""


def launcher(library: Path, folder: Path) -> Path:
    """The program of the launcher, compiled and linked with a library."""
    source, made = ROOT / "examples/devices/backward_launcher.cpp", folder / "launcher"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{ROOT / 'include'}"]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, source, library, "-ldl", "-o", made], check=True)
    return made


def test_the_launcher(build_library: Callable[..., Path], tmp_path: Path) -> None:
    library = build_library("flash")
    program = launcher(library, tmp_path)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run([program, "cpu"], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (SAID.format("cpu"), "")
    assert subprocess.run([program, "gpu"], env=environment, capture_output=True, check=False).returncode == 2


def test_what_buffers_are_told_wrongly() -> None:
    command = [sys.executable, "examples/devices/buffers.py", "rocm", "library"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "usage: examples/devices/buffers.py hip|cuda LIBRARY\n")
