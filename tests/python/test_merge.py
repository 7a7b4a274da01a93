# SPDX-License-Identifier: MIT
"""merge against float64: shapes, parts without keys, NaN, memory, every ISA; attention over a shared prefix by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import merge as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

SHAPES = [(1, 1), (5, 33), (70, 128), (9, 576)]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(rows: int, columns: int, dtype: str, scale: float = 3.0) -> list[Any]:
    random = np.random.default_rng(rows * columns)
    made: list[Any] = []
    for _ in range(2):
        made.append(random.standard_normal((rows, columns)).astype(NUMPY[dtype]))
        made.append((scale * random.standard_normal(rows)).astype(np.float32))
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, shape: tuple[int, int]) -> None:
    for scale in (0.0, 3.0, 80.0):
        given = draw(*shape, dtype, scale)
        for one in instances(lib, "merge", dtype=dtype):
            out, lse = lib.merge(*given, return_lse=True, instance=one)
            assert reference.excess(out, lse, *given) <= 1
    out_a, lse_a, out_b, lse_b = given
    assert reference.excess(lib.merge(*given), lse, out_b, lse_a, out_a, lse_b) > 1  # one that is wrong is seen


def test_parts_without_keys_are_not_read(lib: tk.Library) -> None:
    none = -np.inf
    for one in instances(lib, "merge", dtype="fp32"):
        out_a, lse_a, out_b, lse_b = draw(5, 40, "fp32")
        lse_a[0], lse_b[1] = none, none
        lse_a[2] = lse_b[2] = none
        lse_a[3], lse_b[4] = np.nan, np.inf
        out_a[[0, 2]], out_b[[1, 2]] = np.nan, np.nan
        out, lse = lib.merge(out_a, lse_a, out_b, lse_b, return_lse=True, instance=one)
        assert np.array_equal(out[0], out_b[0])
        assert np.array_equal(out[1], out_a[1])
        assert not out[2].any()
        assert np.isnan(out[3:]).all()
        assert np.isnan(lse[3:]).all()
        assert np.array_equal(lse[:3], [lse_b[0], lse_a[1], none])


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str) -> None:
    for columns in (1, 33, 130):
        given = [guarded(one, where) for one in draw(3, columns, "bf16")]
        out = guarded(np.zeros_like(given[0]), where)
        lib.merge(*given, out=out)
        assert reference.excess(out, None, *given) <= 1
        want = out.copy()
        lib.merge(*given, out=given[0])
        assert np.array_equal(given[0], want)


def test_a_prefix_that_sequences_share(lib: tk.Library, load: Callable[..., tk.Library]) -> None:
    """The prefix is read once for all queries of the batch, as one sequence of them; heads are rows of merge."""
    flash = load("fp32")
    random = np.random.default_rng(0)
    q = random.standard_normal((3, 2, 4, 64), np.float32)  # batch, seqlen_q, nhead, hdim
    prefix = [random.standard_normal((1, 50, 2, 64), np.float32) for _ in "kv"]
    own = [random.standard_normal((3, 9, 2, 64), np.float32) for _ in "kv"]
    out_a, lse_a = flash.fmha_fwd(q.reshape(1, 6, 4, 64), *prefix, return_lse=True)
    out_b, lse_b = flash.fmha_fwd(q, *own, causal=True, return_lse=True)
    rows_a = out_a.reshape(24, 64), lse_a.transpose(0, 2, 1).reshape(24)
    out = lib.merge(*rows_a, out_b.reshape(24, 64), lse_b.transpose(0, 2, 1).reshape(24)).reshape(q.shape)
    whole = [np.concatenate([one.repeat(3, 0), two], 1) for one, two in zip(prefix, own, strict=True)]
    want = flash.fmha_fwd(q, *whole, causal=True)
    assert np.abs(out - want).max() <= 2e-6
