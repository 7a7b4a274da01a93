# SPDX-License-Identifier: MIT
"""Tiles of keys under masks, against a count of every key: what CUDA's forward walks, on the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_tiles_under_masks_are_those_that_a_count_finds(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    program = tmp_path / "key_range"
    command = [
        "g++",
        "-std=c++20",
        "-O2",
        "-fsanitize=undefined",
        "-fno-sanitize-recover",
        "-I.",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    subprocess.run([*command, "tests/cuda/key_range.cpp", "-o", program], cwd=ROOT, check=True)
    seed = str(request.config.option.sample_seed)
    said = subprocess.run([program, seed, "20000"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, f"seed {seed}: {said.stdout}{said.stderr}"
    assert said.stdout == "20000 cases hold\n"
