# SPDX-License-Identifier: MIT
"""A row's result does not depend on its neighbours: the same bits alone, in any batch, beside values of any size.

docs/how-to/call.md says where this holds and where it does not; both are held to here.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import FLOATS

DTYPES = FLOATS
I32 = np.int32


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def results(made: Any) -> list[np.ndarray]:
    return [one for one in (made if isinstance(made, tuple) else (made,)) if one is not None]


def same(whole: Any, part: Any, at: Any) -> None:
    """Each result of `part` has the bits of that of `whole` at `at`."""
    assert len(results(whole)) == len(results(part)) > 0
    for one, other in zip(results(whole), results(part), strict=True):
        assert np.ascontiguousarray(one[at]).tobytes() == np.ascontiguousarray(other).tobytes()


def by_tiles(library: tk.Library, dtype: str) -> bool:
    """Whether tiles answer all but small calls, which vectors do, with other bits."""
    return library.isa.startswith("amx") and dtype == "bf16"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(1, 300), (4, 129), (70, 200), (200, 200)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("heads", [(8, 2), (3, 3)], ids="{0[0]}over{0[1]}".format)
def test_sequences_and_heads(load, dtype, lengths, heads):
    """fmha_fwd, and split-KV of a given number of splits: any part of a batch and of its heads, on any threads."""
    library, (rows, keys), (nhead_q, nhead_k) = load("flash"), lengths, heads
    shapes = [(5, rows, nhead_q, 64), (5, keys, nhead_k, 64), (5, keys, nhead_k, 64)]
    q, k, v = (normal(i, *shape, dtype=DTYPES[dtype]) for i, shape in enumerate(shapes))
    group = nhead_q // nhead_k
    loud = [np.concatenate([x[:1] * 100, x[1:2], np.full_like(x[:1], np.nan)]) for x in (q, k, v)]
    for operator, splits in (("fmha_fwd", 0), ("fmha_fwd_splitkv", 1), ("fmha_fwd_splitkv", 3)):
        more = {"num_splits": splits} if splits else {}

        def call(*arrays: np.ndarray, num_threads: int = 1, operator: str = operator, more: Any = more) -> Any:
            function = getattr(library, operator)
            return function(*arrays, causal=True, return_lse=True, num_threads=num_threads, **more)

        whole = call(q, k, v)
        for part in (slice(1, 2), slice(2, 5)):
            same(whole, call(q[part], k[part], v[part], num_threads=2), part)
        same(call(*loud, num_threads=3), call(q[1:2], k[1:2], v[1:2]), slice(1, 2))
        out, lse = call(q[:, :, -group:], k[:, :, -1:], v[:, :, -1:])
        same(whole[0][:, :, -group:], out, slice(None))
        same(whole[1][:, -group:], lse, slice(None))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_packed_sequences(load, dtype):
    """Each sequence of a pack alone; over pages by one kernel, which calls choose by their longest sequence of q."""
    library, lengths = load("flash"), [1, 130, 64, 7]
    starts = np.cumsum([0, *lengths]).astype(I32)
    q, k, v = (normal(i, starts[-1], heads, 64, dtype=DTYPES[dtype]) for i, heads in enumerate((4, 2, 2)))
    pool = [normal(i, 40, 16, 2, 64, dtype=DTYPES[dtype]) for i in (3, 4)]
    table = np.random.default_rng(5).permutation(40).reshape(4, 10).astype(I32)
    seen = np.array([150, 131, 64, 100], I32)

    def packed(at: slice, cumulative: np.ndarray, threads: int) -> Any:
        given = {"cu_seqlens_q": cumulative, "cu_seqlens_k": cumulative, "num_threads": threads}
        return library.fmha_fwd(q[at], k[at], v[at], causal=True, return_lse=True, **given)

    def paged(at: slice, cumulative: np.ndarray, sequences: slice) -> Any:
        given = {"block_table": table[sequences], "seqlen_k": seen[sequences], "causal": True}
        made = []
        for operator, name in (("fmha_fwd_pagedkv", "seqstart_q"), ("fmha_batch_prefill", "cu_seqlens_q")):
            if operator not in kernels:
                kernels[operator] = getattr(library, f"{operator}_find")(q[at], *pool, **{name: cumulative}, **given)
            kernel = {"instance": kernels[operator]}
            made.append(getattr(library, operator)(q[at], *pool, **{name: cumulative}, **given, **kernel))
        return tuple(made)

    kernels: dict[str, int] = {}
    (out, lse), pages = packed(slice(None), starts, 2), paged(slice(None), starts, slice(None))
    for i, length in enumerate(lengths):
        at, alone = slice(starts[i], starts[i + 1]), np.array([0, length], I32)
        if not (by_tiles(library, dtype) and length <= 4):
            same((out[at], lse[:, at]), packed(at, alone, 1), slice(None))
        same(pages, paged(at, alone, slice(i, i + 1)), at)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(load, dtype):
    """Deterministic ones, of a given number of workers."""
    library = load("flash")
    q, k, v, dout = (normal(i, 4, 130, heads, 64, dtype=DTYPES[dtype]) for i, heads in enumerate((4, 2, 2, 4)))
    out, lse = library.fmha_fwd(q, k, v, causal=True, return_lse=True)

    def backward(at: slice, threads: int) -> Any:
        given = (one[at] for one in (dout, q, k, v, out, lse))
        return library.fmha_bwd(*given, causal=True, deterministic=True, workers=1, num_threads=threads)

    whole = backward(slice(None), 2)
    for part in (slice(0, 1), slice(1, 4)):
        same(whole, backward(part, 1), part)


ROWS = {
    "softmax": ("x", {}),
    "merge": ("out_a lse_a out_b lse_b", {}),
    "rmsnorm2d": ("x residual", {"gamma": 1}),
    "layernorm2d": ("x", {"gamma": 1, "beta": 1}),
    "rmsnorm2d_rdquant": ("x", {"gamma": 1}),
    "layernorm2d_rdquant": ("x", {"gamma": 1}),
    "smoothquant": ("x", {}),
    "gelu_and_mul": ("gate up", {}),
    "gelu_and_mul_bwd": ("dy gate up", {}),
    "silu_and_mul": ("gate up", {}),
    "silu_and_mul_bwd": ("dy gate up", {}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 100, 5000])
@pytest.mark.parametrize("operator", ROWS)
def test_rows(load, operator, columns, dtype):
    library, (names, more) = load("norm_default"), ROWS[operator]
    arrays = {name: normal(i, 40, columns, dtype=DTYPES[dtype]) for i, name in enumerate(names.split())}
    arrays |= {name: arrays[name][:, 0].astype(np.float32) for name in arrays if name.startswith("lse")}
    others = {name: normal(9, columns, dtype=DTYPES[dtype]) for name in more}
    function = getattr(library, operator)
    whole = function(**arrays, **others, num_threads=1)
    for part in (slice(3, 4), slice(5, 30)):
        same(whole, function(**{n: x[part] for n, x in arrays.items()}, **others, num_threads=2), part)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_products(load, monkeypatch, dtype):
    """Row-major b, packed and quantised weights: any rows. Column-major b: more than a few; few have other bits."""
    library, packing = load("gemm_default"), load("gemm_linear")
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [library, packing])
    parts = [slice(0, 1), slice(7, 9), slice(10, 18), slice(20, 38), slice(40, 59), slice(33, 97), slice(0, 200)]
    a, weight = normal(0, 210, 1000, dtype=DTYPES[dtype]), normal(1, 300, 1000, dtype=DTYPES[dtype])
    row_major, packed = np.ascontiguousarray(weight.T), tk.PackedWeight(weight)
    products = [lambda x: library.gemm(x, row_major), lambda x: tk.linear(x, packed)]
    quantised = [tk.QuantisedWeight(weight, bits) for bits in (8, 4)] if dtype != "fp32" else []
    products += [functools.partial(tk.linear, weight=one) for one in quantised]
    tiles = by_tiles(library, dtype)
    for at, product in enumerate(products):
        whole = product(a)
        for part in parts:
            if not (tiles and part.stop - part.start <= (3, 1, 11, 11)[at]):
                same(whole, product(a[part]), part)
    by_column = library if dtype == "fp32" else packing
    many = by_column.gemm(a, weight.T)
    words = {"avx512bf16": 15 if dtype == "fp16" else 18}  # kernels/gemm/cpu/dots.h
    vectors = by_column.isa.replace("amx", "avx512bf16")
    few = 3 if tiles else {"avx512": 15, "avx2": 6, "generic": 0, **words}.get(vectors, 0)
    for part in parts:
        made = by_column.gemm(a[part], weight.T)
        if part.stop - part.start > few:
            same(many, made, part)
        else:
            same(made, by_column.gemm(a[part][-1:], weight.T), slice(-1, None))


@pytest.mark.day
def test_tokens_of_experts(load):
    random = np.random.default_rng(0)
    x, gate_up, down = normal(0, 40, 64), normal(1, 5, 64, 64), normal(2, 5, 64, 32)
    ids, weights = random.integers(0, 5, (40, 2)).astype(I32), random.random((40, 2), np.float32)
    library = load("moe_default")
    whole = library.fused_moe(x, ids, weights, gate_up, down)
    for part in (slice(0, 1), slice(3, 20)):
        same(whole, library.fused_moe(x[part], ids[part], weights[part], gate_up, down), part)
