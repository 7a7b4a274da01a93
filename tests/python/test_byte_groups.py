# SPDX-License-Identifier: MIT
"""grouped_gemm of int8, gemm_list of int8 and fp8: against float64 on every ISA, with what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gemm as reference

from tests.python.test_gemm import TARGETS, draw, out_like
from tests.python.test_gemm_list import products_of
from tests.python.test_gemm_lists import check, kernel

F32 = np.float32


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_default", targets="all")


@pytest.mark.parametrize(("receipt", "dtype"), [("gemm_default", "int8"), ("gemm_fp8", "fp8")])
@pytest.mark.parametrize("target", TARGETS)
def test_bytes_against_float64(load: Callable[..., tk.Library], target: str, receipt: str, dtype: str) -> None:
    """int8: its sums as they are; e4m3, of which products are bf16."""
    products_of(load(receipt, targets="all"), target, dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_grouped_int8_with_factors(library: tk.Library, target: str) -> None:
    """Of rows, of columns of each group, and of both; sums of int8 are exact."""
    random = np.random.default_rng(9)
    for sizes, n, k, names in [
        ([3, 0, 7, 50], 70, 130, "row_scale column_scale"),
        ([1, 9], 5, 64, "row_scale"),
        ([2], 33, 0, "column_scale"),
    ]:
        groups, rows = len(sizes), 1 + sum(sizes) + 2
        starts = np.cumsum([1, *sizes], dtype=np.int32)
        a, b = draw(random, rows, k, "int8", False), draw(random, groups * n, k, "int8", False)
        b = b.reshape(groups, n, k).transpose(0, 2, 1)
        scales = {"row_scale": random.random(rows).astype(F32), "column_scale": random.random((groups, n)).astype(F32)}
        call: dict[str, Any] = {name: scales[name] for name in names.split()}
        bias, out = random.standard_normal((groups, n)).astype(F32), out_like(rows, n, "bf16", False)
        number = kernel(library, "grouped_gemm", target, a, b, starts, out=out, bias=bias, **call)
        library.grouped_gemm(a, b, starts, out=out, bias=bias, instance=number, **call)
        for g, first in enumerate(starts[:-1]):
            own = slice(first, starts[g + 1])
            of = {"row_scale": call.get("row_scale", np.ones(rows, F32))[own]}
            if "column_scale" in call:
                of["column_scale"] = call["column_scale"][g]
            check(out[own], reference.gemm(a[own], b[g], bias=bias[g], dtype="bf16", **of))
        assert (out[[0, -1]] == 77).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"row_scale": None}, "row_scale: was null, must be given, or column_scale, with a of int8"),
        ({"row_scale": np.zeros(4, F32)}, "row_scale: rows was 4, must be 5, the row count of a"),
        ({"column_scale": np.zeros((2, 6), F32)}, "column_scale: n was 6, must be 7"),
        ({"column_scale": np.zeros((2, 14), F32)[:, ::2]}, "column_scale: "),
    ],
)
def test_bad_groups_of_int8(library: tk.Library, change: dict[str, Any], text: str) -> None:
    a, b = np.zeros((5, 130), np.int8), np.zeros((2, 7, 130), np.int8).transpose(0, 2, 1)
    call = {"row_scale": np.zeros(5, F32), **change}
    with pytest.raises(tk.ArgumentError) as error:
        library.grouped_gemm(a, b, np.array([0, 2, 5], np.int32), **call)
    assert str(error.value).startswith(text), str(error.value)
