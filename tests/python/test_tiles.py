# SPDX-License-Identifier: MIT
"""Products by tiles through the host's code: matrices of other files, on emulated tiles and on the processor's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tilekiln as tk

from tests.python import test_gemm as gemm
from tests.python import test_gemm_lists as lists
from tests.python import test_gemm_quant as quant
from tests.python import tiles

pytestmark = tiles.of_x86_64

CASES: list[tuple[str, Callable[..., None], list[str]]] = [
    ("gemm_default", gemm.test_every_shape_and_layout, ["bf16", "int8", "fp16"]),
    ("gemm_default", gemm.test_few_rows_of_linear_layers, ["bf16", "int8", "fp16"]),
    ("gemm_default", gemm.test_epilogues, ["bf16", "fp16"]),
    ("gemm_default", gemm.test_guard_pages, ["bf16", "int8", "fp16"]),
    ("gemm_fp8", gemm.test_fp8, ["fp8", "bf8"]),
    ("gemm_multi_d", lists.test_multi_d, ["bf16", "fp16"]),
    ("gemm_default", lists.test_batched, ["bf16", "int8", "fp16"]),
    ("gemm_default", lists.test_grouped, ["bf16", "fp16"]),
    ("gemm_default", lists.test_grouped_with_packed_weights, ["bf16", "fp16"]),
    ("gemm_linear", quant.test_against_float64, ["bf16", "int8", "fp8"]),
]
"""Receipt, matrix, dtypes that tiles multiply."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("receipt", "matrix", "dtype"),
    [(receipt, matrix, dtype) for receipt, matrix, dtypes in CASES for dtype in dtypes],
    ids=[f"{matrix.__module__.rpartition('.')[2]}-{matrix.__name__}-{d}" for _, matrix, ds in CASES for d in ds],
)
@pytest.mark.parametrize("target", tiles.ENGINES)
def test_matrix(
    load: Callable[..., tk.Library], target: str, receipt: str, matrix: Callable[..., None], dtype: str
) -> None:
    matrix(load(receipt, targets=tiles.TARGETS), target, dtype)


@pytest.mark.parametrize("target", tiles.ENGINES)
def test_scaled_int8(load: Callable[..., tk.Library], target: str) -> None:
    gemm.test_scaled_int8(load("gemm_linear", targets=tiles.TARGETS), target)
