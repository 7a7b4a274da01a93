# SPDX-License-Identifier: MIT
"""CUDA tensors whose kernels no library has: nvcc builds them when they are called, and cudasim runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import shared_objects
from tests.executor.ptx.programs import Emulated
from tests.executor.ptx.test_torch import device

__all__ = ["device"]
pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.torch]


@pytest.mark.day
def test_a_kernel_that_is_built_when_it_is_called(
    device: Path,
    binding: object,
    build_library: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TILEKILN_JIT", str(tmp_path / "store"))
    monkeypatch.setenv("TILEKILN_JIT_OPTIONS", " ".join(shared_objects()))
    of_cpus = build_library("fp32_min")
    run = ("-m", "tests.executor.ptx.built_when_called", device, of_cpus)
    assert Emulated(None, tmp_path, "cuda-sm90a").python(*run) == ("", 0)


@pytest.mark.day
def test_a_config_of_upstream_for_a_gpu(
    device: Path, binding: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEKILN_JIT", str(tmp_path / "store"))
    monkeypatch.setenv("TILEKILN_JIT_OPTIONS", " ".join(shared_objects()))
    run = ("-m", "tests.executor.ptx.upstream_products", device)
    assert Emulated(None, tmp_path, "cuda-sm80").python(*run) == ("", 0)


@pytest.mark.day
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["cuda-sm80", "cuda-sm90a"])
def test_attention_with_functions(
    device: Path, binding: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("TILEKILN_JIT", str(tmp_path / "store"))
    monkeypatch.setenv("TILEKILN_JIT_OPTIONS", " ".join(shared_objects()))
    run = ("-m", "tests.executor.ptx.functions", device)
    assert Emulated(None, tmp_path, target).python(*run) == ("", 0)
