"""Libraries whose CUDA kernels the executor runs; the same builds as those of tests/cuda."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from build_support.toolchain import ToolchainError
from build_support.toolchains import nvcc
from tests.executor.ptx.programs import Emulated

ALWAYS = ("attention", "caches", "rows")
"""Libraries whose kernels run in every test run."""


@pytest.fixture(scope="session")
def need_nvcc() -> None:
    try:
        nvcc.find_nvcc()
    except ToolchainError as error:
        if "TILEKILN_CI" in os.environ:  # where a skip would go unseen
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def emulated(
    need_nvcc: None,
    binding: object,
    build_library: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Callable[..., Emulated]:
    """emulated(name) -> a library of the list below, built, with the PTX of its kernels; each once."""
    from tests.cuda import test_library

    folder, known = tmp_path_factory.mktemp("ptx"), dict[str, Emulated]()
    of = {
        "attention": ("flash", test_library.TARGETS, test_library.WHERE),
        "caches": ("flash", "cuda-sm90a", test_library.OVER_CACHES),
        "products": ("gemm_linear", "cuda-sm90a", "dtype=bf16"),
        "rows": ("norm_default", "cuda-sm90a", "family=softmax dtype=bf16"),
        "flash": ("flash", "cuda-sm90a", ""),
        "gemm_default": ("gemm_default", "cuda-sm90a", ""),
        "norm_default": ("norm_default", "cuda-sm90a", ""),
    }

    def make(name: str) -> Emulated:
        if name not in ALWAYS and not pytestconfig.option.full:
            pytest.skip("--full runs it")
        if name not in known:
            receipt, targets, where = of[name]
            known[name] = Emulated(build_library(receipt, targets=targets, where=where), folder)
        return known[name]

    return make
