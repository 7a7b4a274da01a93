# SPDX-License-Identifier: MIT
"""The wheels under every later Python that this machine has: a call, a refusal, and eight threads at once."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import filelock
import pytest

from tests.build.test_wheels import packed, wheel_of  # noqa: F401
from tests.conftest import ROOT

PROGRAM = """
import sys, warnings
warnings.simplefilter("error")
import numpy as np, tilekiln as tk
ones = np.ones((1, 8, 2, 64), np.float32)
try:
    tk.attention(ones, ones, ones[:, :3])
except tk.ArgumentError as error:
    print(error)
print(tk.load("fp32_min").receipt, float(tk.attention(ones, ones, ones).sum()), "/site/tilekiln/" in tk.__file__)
"""


def program(version: str) -> str | None:
    """Path of Python `version` with a GIL, on PATH or among pyenv's; None where there is none."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for candidate in (f"python{version}", *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python{version}"))):
        asked = "import sys; print(sys.version_info[:2], getattr(sys, '_is_gil_enabled', lambda: True)())"
        found = shutil.which(candidate)
        if found and subprocess.run([found, "-c", asked], capture_output=True, text=True, check=False).stdout == (
            f"({version.replace('.', ', ')}) True\n"
        ):
            return found
    return None


def needed(python: str, version: str) -> Path:
    """A folder with NumPy and ml_dtypes of requirements/dev.lock for that Python, which pip installs there once."""
    lock = (ROOT / "requirements/dev.lock").read_text()
    wanted = "\n".join(one for one in re.split(r"\n(?=\S)", lock) if re.match(r"(numpy|ml-dtypes)==", one))
    place = ROOT / "build" / "clients" / f"python-{version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{place}.lock"):
        file = Path(f"{place}.txt")
        if not place.is_dir() or file.read_text() != wanted:
            file.write_text(wanted)
            shutil.rmtree(place, ignore_errors=True)
            options = "-qq --no-compile --disable-pip-version-check --no-deps --only-binary :all: --require-hashes"
            command = [python, "-m", "pip", "install", *options.split(), "--target", place, "-r", file]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(place, ignore_errors=True)
                message = f"NumPy and ml_dtypes of requirements/dev.lock for {python}: {done.stderr[-1000:]}"
                pytest.fail(message, pytrace=False) if "TILEKILN_CI" in os.environ else pytest.skip(message)
    return place


@pytest.mark.day
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14", "3.15"])
def test_a_later_python(packed: Path, tmp_path: Path, version: str) -> None:  # noqa: F811
    python = program(version)
    if python is None:
        pytest.skip(f"no python{version} on PATH or in ~/.pyenv/versions")
    for name in ("tilekiln_python", "tilekiln_fp32_min"):
        with zipfile.ZipFile(wheel_of(packed, name)) as wheel:
            wheel.extractall(tmp_path / "site")
    search = os.pathsep.join([str(tmp_path / "site"), str(needed(python, version))])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": search, "OMP_NUM_THREADS": "2"}
    threads = [ROOT / "tests/python/threaded_calls.py", tmp_path / "site/tilekiln_fp32_min/libtilekiln_fp32_min.so"]
    for words, said in (
        (["-c", PROGRAM], "v: seqlen was 3, must be 8, the seqlen of k\nfp32_min 1024.0 True\n"),
        (["-X", "faulthandler", *threads], "GIL\n"),
    ):
        done = subprocess.run([python, *words], env=environment, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == (said, 0), done.stderr
