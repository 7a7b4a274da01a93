# SPDX-License-Identifier: MIT
"""A tree in which nothing was built yet: its tests are collected all the same, and build what they need later."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.day
@pytest.mark.turns(1)
def test_tests_are_collected_before_anything_is_built(copy_sources, tmp_path):
    tree = copy_sources(tmp_path / "tree").root
    for name in ("tests", "examples", "docs", "tools"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy2(ROOT / name, tree / name)
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / 'python'}{os.pathsep}{tree}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout[-4000:] + said.stderr[-4000:]
    assert not list((tree / "build").glob("python-*"))
