# SPDX-License-Identifier: MIT
"""Many threads in one library, under this Python and under one without a GIL, where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Scons

NAMES = ("python3.14t", "python3.13t")


def threads(python: str, library: Path, package: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "2"}
    command = [python, "-X", "faulthandler", ROOT / "tests/python/threaded_calls.py", library]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def test_eight_threads(build_library: Callable[..., Path], binding: Path) -> None:
    without = hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled()
    assert threads(sys.executable, build_library("fp32_min"), ROOT / "python") == ("no GIL" if without else "GIL")


def test_eight_threads_without_a_gil(scons: Scons, build_library: Callable[..., Path], tmp_path: Path) -> None:
    """By the wheel for that Python, whose import does not bring the GIL back."""
    python = next(filter(None, map(shutil.which, NAMES)), None)
    asked = "import numpy, ml_dtypes"
    if not python or subprocess.run([python, "-c", asked], capture_output=True, check=False).returncode:
        pytest.skip(f"no {' or '.join(NAMES)} with NumPy and ml_dtypes is on PATH")
    library = build_library("fp32_min")
    scons("receipt=fp32_min", "wheel", f"python={python}")
    tag = f"cp{Path(python).name.removeprefix('python').replace('.', '')}"
    [wheel] = (library.parents[1] / "wheel").glob(f"tilekiln_python-*-{tag.removesuffix('t')}-{tag}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    assert threads(python, library, tmp_path) == "no GIL"
