"""Tiles of AMX: the words, and the engines over them; where the processor has none, by a trap that emulates each."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernels.test_engine import run

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are x86-64's")


@pytest.mark.parametrize("mode", ["release", "sanitize"])
def test_words(build_program: Callable[..., Path], mode: str) -> None:
    """Instructions and emulation have the same bits, those of the rule."""
    run(build_program("tiles_test", mode=mode))
