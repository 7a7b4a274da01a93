# SPDX-License-Identifier: MIT
"""Blocks of K and V that a thread packs once a key head: results do not show whether or where they were packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tilekiln._core.dtypes import NUMPY

HEADS, HEADS_K = 4, 2
DTYPES = [np.float32, np.float16, NUMPY["bf16"].type]


@pytest.fixture(scope="module")
def library(load):
    return load("flash", targets="all")


def arrays(seqlen_q: int, seqlen_k: int, hdim: int, dtype: Any, seed: int = 0) -> list[Any]:
    """q, k, v, heads inside tokens."""
    random = np.random.default_rng(seed)
    shapes = ((1, seqlen_q, HEADS, hdim), (1, seqlen_k, HEADS_K, hdim), (1, seqlen_k, HEADS_K, hdim))
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def heads_first(library: Any, made: list[Any], **arguments: Any) -> Any:
    """The result where rows lie side by side, which fp32 and K of bf16 use there."""
    turned = [np.ascontiguousarray(array.swapaxes(1, 2)) for array in made]
    return library.fmha_fwd(*turned, layout="bhsd", **arguments).swapaxes(1, 2)


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.astype(np.float32), other.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("hdim", "seqlen_k", "arguments"),
    [
        (64, 300, {}),
        (64, 300, {"causal": True}),
        (128, 290, {"window": (70, 9)}),
        (256, 4200, {"causal": True}),  # more blocks than there are places
    ],
)
def test_layouts_and_threads_give_the_same_bits(library, dtype, hdim, seqlen_k, arguments) -> None:
    made = arrays(280, seqlen_k, hdim, dtype)
    expected = heads_first(library, made, num_threads=1, **arguments)
    for threads in (1, 3):
        same(library.fmha_fwd(*made, num_threads=threads, **arguments), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_sees_what_the_arrays_hold_now(library, dtype) -> None:
    made, other = arrays(280, 300, 64, dtype), arrays(280, 300, 64, dtype, seed=1)
    library.fmha_fwd(*made, num_threads=1)
    for array, values in zip(made[1:], other[1:], strict=True):
        array[...] = values
    same(library.fmha_fwd(*made, num_threads=1), heads_first(library, made, num_threads=1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page", [16, 48, 64])
def test_pages_give_the_bits_of_rows(library, dtype, page) -> None:
    q, k, v = arrays(280, 384, 64, dtype)
    order = np.random.default_rng(2).permutation(384 // page).astype(np.int32)
    pools = []
    for array in (k, v):
        pool = np.empty((len(order), page, HEADS_K, 64), dtype)
        pool[order] = array.reshape(pool.shape)
        pools.append(pool)
    lengths = np.array([384], np.int32)
    for _ in range(2):
        paged = library.fmha_fwd_pagedkv(q, *pools, block_table=order[None], seqlen_k=lengths, causal=True)
        same(paged, heads_first(library, [q, k, v], causal=True))
        pools[1] *= np.array(2, dtype)
        v = v * np.array(2, dtype)
