"""The dispatcher in C++: problems, keys, registries, choices and plans by hand, then over real libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.test_runtime import passes

Build = Callable[..., Path]


@pytest.mark.parametrize("mode", ["release", "sanitize"])
@pytest.mark.parametrize("name", ["problem", "dispatch"])
def test_by_hand(build_program: Build, name: str, mode: str) -> None:
    passes(build_program(f"dispatcher_{name}", mode=mode))


@pytest.mark.parametrize("mode", ["release", "sanitize", "thread"])
def test_registries(build_program: Build, tmp_path: Path, mode: str) -> None:
    passes(build_program("dispatcher_registry", mode=mode), str(tmp_path))


def test_over_libraries(build_program: Build, build_library: Build, binding: Path, tmp_path: Path) -> None:
    """Call for call the dispatcher chooses what the library does. Python reads its registry and writes it the same."""
    from tilekiln.dispatcher import Registry

    paths = [str(build_library(receipt)) for receipt in ("flash", "gemm_default")]
    passes(build_program("dispatcher_library"), *paths, str(tmp_path / "attention.json"))
    read = Registry("attention")
    assert read.from_file(tmp_path / "attention.json") == len(read) > 1000
    assert read.to_json() == (tmp_path / "attention.json").read_text()
