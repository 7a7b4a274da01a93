# SPDX-License-Identifier: MIT
"""Libraries whose CUDA kernels the executor runs; the same builds as those of tests/cuda."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.executor.ptx.programs import ALWAYS, NEEDS, WHOLE, Emulated
from tests.programs import need


@pytest.fixture(autouse=True)
def numbers(request: pytest.FixtureRequest) -> None:
    """NUMBERS of a test's module, by the test's name: not by what ran before it in its worker."""
    if hasattr(request.module, "NUMBERS"):
        request.module.NUMBERS = np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture(scope="session")
def needs() -> None:
    """Before anything is built."""
    need(*NEEDS)


@pytest.fixture(scope="session")
def emulated(
    needs: None,
    binding: object,
    build_library: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Callable[..., Emulated]:
    """emulated(name) -> a library of the list below, built, with the PTX of its kernels; each once."""
    from tests.cuda import test_library, test_products

    folder, known = tmp_path_factory.mktemp("ptx"), dict[str, Emulated]()
    hopper, ampere = "cuda-sm90a", "cuda-sm80"
    of = {  # receipt, targets, where, and the target whose rows are asked for
        "attention": ("flash", test_library.TARGETS, test_library.WHERE, hopper),
        "ampere": ("flash", test_library.TARGETS, test_library.WHERE, ampere),
        "ampere_wide": ("ck_default", ampere, "family=fmha_bwd_dq_dk_dv dtype=bf16 hdim_q=256 hdim_v=256", ampere),
        "caches": ("flash", hopper, test_library.OVER_CACHES, hopper),
        "latent": ("flash", hopper, "family=fmha_mla_decode", hopper),
        "biases": ("pytorch", hopper, test_library.BIASES, hopper),
        "rows": ("norm_default", hopper, test_products.ROWS, hopper),
        "fp8": ("fp8", hopper, test_library.FP8, hopper),
        "cache_bytes": ("aiter", hopper, test_library.CACHES_OF_BYTES, hopper),
        "ampere_products": ("gemm_linear", ampere, test_products.PRODUCTS, ampere),
        "products": ("gemm_linear", hopper, "dtype=bf16", hopper),
        "tiles": ("gemm_tiles", hopper, test_products.TILES, hopper),
        "groups": ("gemm_default", hopper, test_products.GROUPS, hopper),
        "words": ("gemm_linear", hopper, test_products.WORDS, hopper),
        "lists": ("gemm_default", hopper, test_products.LISTS, hopper),
        "experts": ("moe_default", hopper, test_products.EXPERTS, hopper),
        "convolutions": ("conv", hopper, "dtype=bf16", hopper),
        "products_of_int8": ("gemm_linear", hopper, test_products.INT8, hopper),
        "sums_of_int8": ("gemm_default", hopper, test_products.SUMS, hopper),
        "products_of_bytes": ("gemm_fp8", hopper, test_products.BYTES, hopper),
    }
    for target, prefix in ((hopper, ""), (ampere, "ampere_")):
        of |= {prefix + receipt: (receipt, target, "", target) for receipt in WHOLE}
    of["gemm_fp8"] = ("gemm_fp8", hopper, "", hopper)
    of["fp8_whole"] = ("ck_default", hopper, "family=fmha_fwd dtype=fp8bf16,fp8fp32", hopper)  # d64 and d256, too

    def make(name: str) -> Emulated:
        if name not in ALWAYS and not pytestconfig.option.full:
            pytest.skip("--full runs it")
        if name not in known:
            receipt, targets, where, target = of[name]
            known[name] = Emulated(build_library(receipt, targets=targets, where=where), folder, target)
        return known[name]

    return make
