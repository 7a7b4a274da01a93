# SPDX-License-Identifier: MIT
"""Clients of flash_attn and aiter, from PyPI, in folders beside the environment, as two versions of one need."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

ROOT = Path(__file__).resolve().parents[2]
DROP_INS = [ROOT / "python" / "compat" / name for name in ("flash_attn", "aiter")]


def _missing(lock: str) -> str:
    """The requirements of a lock file that the environment has not in that version."""
    wanted = []
    for requirement in re.split(r"\n(?=\S)", lock):
        name, version = re.match(r"([\w.-]+)==([^\s;]+)", requirement).groups()  # type: ignore[union-attr]
        try:
            there = importlib.metadata.version(name) == version
        except importlib.metadata.PackageNotFoundError:
            there = False
        if not there:
            wanted.append(requirement)
    return "\n".join(wanted)


def _install(requirements: str, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    file = place.with_suffix(".txt")
    file.write_text(requirements + "\n")
    # The lock is complete, so pip resolves nothing, torch least of all; wheels only, so that no package builds itself.
    options = (
        "install -qq --no-compile --disable-pip-version-check --no-deps --only-binary :all: --require-hashes".split()
    )
    unfinished = place.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [sys.executable, "-m", "pip", *options, "--target", unfinished, "-r", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"{place.name} could not be installed: {done.stderr.strip()[-2000:]}"
        pytest.fail(message, pytrace=False) if "TILEKILN_CI" in os.environ else pytest.skip(message)
    unfinished.rename(place)


@pytest.fixture(scope="session")
def overlay() -> Callable[[str], Path]:
    """overlay("clients") -> a folder with what requirements/clients.lock has beyond the environment, installed."""

    def overlay(name: str) -> Path:
        requirements = _missing((ROOT / "requirements" / f"{name}.lock").read_text().strip())
        key = hashlib.sha256(f"{sys.version}\n{requirements}".encode()).hexdigest()[:12]
        place = ROOT / "build" / "clients" / f"{name}-{key}"
        place.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{place}.lock"):
            if not place.exists():
                _install(requirements, place)
        return place

    return overlay
