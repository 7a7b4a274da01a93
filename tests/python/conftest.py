"""Libraries for the facade's tests: built by the real build, loaded through the real binding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import tilekiln as tk


@pytest.fixture(scope="session")
def load(build_library: Callable[..., Path], binding: Path) -> Callable[..., tk.Library]:
    """load(receipt, targets="native", where="") -> the library, built."""
    return functools.cache(lambda receipt, **options: tk.Library(build_library(receipt, **options)))


@pytest.fixture(scope="session")
def flash(load: Callable[..., tk.Library]) -> tk.Library:
    return load("flash")
