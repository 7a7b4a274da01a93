# SPDX-License-Identifier: MIT
"""Sizes of problems that every run draws, whatever the seed."""

from __future__ import annotations

import pytest
from tilekiln.reference.drawn import WIDE

from tests import cases

SIGNATURE = {
    "dtype": "fp16",
    "layout_a": "row",
    "layout_b": "column",
    "layout_out": "row",
    "activation": "none",
    "bias": True,
    "c": True,
    "scaled": False,
    "out_dtype": "fp16",
}


@pytest.mark.parametrize("seed", range(5))
def test_every_wide_size_has_its_turn(seed: int) -> None:
    drawn = cases.calls("gemm", [SIGNATURE], WIDE, seed)
    ran = [next(drawn).given for _ in WIDE.products]
    assert sorted((*of["a"].shape, of["b"].shape[1]) for of in ran) == sorted((m, k, n) for m, n, k in WIDE.products)
