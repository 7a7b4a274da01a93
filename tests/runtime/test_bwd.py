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


@pytest.mark.parametrize("mode", ["release", "sanitize"])
def test_workspace(build_program: Build, mode: str) -> None:
    passes(build_program("runtime_bwd_workspace", mode=mode))


@pytest.mark.parametrize("mode", ["release", "sanitize", "thread"])
@pytest.mark.parametrize("name", ["bwd", "bwd_launcher"])
def test_through_the_abi(build_program: Build, name: str, mode: str) -> None:
    passes(build_program(f"aiter/{name}", receipt="aiter", mode=mode))


@pytest.mark.parametrize("mode", ["release", "sanitize"])
def test_bad_input_and_inspection(build_program: Build, mode: str) -> None:
    passes(build_program("aiter/bwd_bad_input", receipt="aiter", mode=mode))
