# SPDX-License-Identifier: MIT
"""The backward's host side: the workspace against its vectors, calls and launchers over the C ABI."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Build = Callable[..., Path]


def passes(program: Path) -> None:
    result = subprocess.run([program], capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " checks, 0 failed" in result.stderr


# The engines of aiter are compiled anew for a mode with sanitizers: a minute and a half, every other day of it.
SANITIZE = pytest.param("sanitize", marks=pytest.mark.turns(2, 4))
THREAD = pytest.param("thread", marks=pytest.mark.turns(1, 4))


@pytest.mark.day
@pytest.mark.parametrize("mode", ["release", "sanitize"])
def test_workspace(build_program: Build, mode: str) -> None:
    passes(build_program("runtime_bwd_workspace", mode=mode))


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["release", SANITIZE, THREAD])
@pytest.mark.parametrize("name", ["bwd", "bwd_launcher"])
def test_through_the_abi(build_program: Build, name: str, mode: str) -> None:
    passes(build_program(f"aiter/{name}", receipt="aiter", mode=mode))


@pytest.mark.parametrize("mode", ["release", SANITIZE])
def test_bad_input_and_inspection(build_program: Build, mode: str) -> None:
    passes(build_program("aiter/bwd_bad_input", receipt="aiter", mode=mode))
