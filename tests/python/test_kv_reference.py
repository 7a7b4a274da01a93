# SPDX-License-Identifier: MIT
"""The reference over caches against the reference without one, a scalar rotation, and numbers worked out by hand."""

import math

import numpy as np
import pytest
from tilekiln import reference
from tilekiln._core.dtypes import NUMPY

random = np.random.default_rng(7)


def normal(*shape):
    return random.standard_normal(shape)


def scattered(dense, page_size, spare=3):
    """A pool that holds (batch, tokens, nhead, hdim) in shuffled pages, and the block table."""
    batch, tokens = dense.shape[:2]
    blocks = -(-tokens // page_size)
    pages = random.permutation(batch * blocks + spare)[: batch * blocks].reshape(batch, blocks)
    pool = np.full((batch * blocks + spare, page_size, *dense.shape[2:]), np.nan)
    for b in range(batch):
        for j in range(tokens):
            pool[pages[b, j // page_size], j % page_size] = dense[b, j]
    return pool, pages.astype(np.int32)


@pytest.mark.parametrize(
    ("seqlen", "splits", "expected"),
    [
        (100, 8, [(0, 13), (13, 26), (26, 39), (39, 52), (52, 65), (65, 78), (78, 91), (91, 100)]),
        (5, 8, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 5), (5, 5), (5, 5)]),
        (0, 2, [(0, 0), (0, 0)]),
        (7, 1, [(0, 7)]),
    ],
)
def test_split_ranges(seqlen, splits, expected):
    assert reference.split_ranges(seqlen, splits) == expected


@pytest.mark.parametrize(
    ("blocks", "workers", "splits"),
    # facts: 304 and 256 compute units, two workers each; then all busy, nothing to do
    [(8, 608, 65), (16, 608, 33), (32, 608, 17), (1, 608, 109), (512, 608, 1), (64, 512, 7), (2, 2, 1), (0, 4, 1)],
)
def test_best_splits(blocks, workers, splits):
    assert reference.best_splits(blocks, workers) == splits


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 64, 128])
@pytest.mark.parametrize("seqlen_k", [0, 1, 5, 33])
@pytest.mark.parametrize("sink", [None, 0.7])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_splits_combine_to_the_whole(splits, seqlen_k, sink, softcap):
    q, k, v = normal(4, 8), normal(seqlen_k, 8), normal(seqlen_k, 6)
    rest = {"visible": reference.visible(4, seqlen_k, causal=True), "softmax_scale": 0.4, "softcap": softcap}
    o_acc, lse_acc = reference.head_splits(q, k, v, num_splits=splits, sink=sink, **rest)
    for i, (begin, end) in enumerate(reference.split_ranges(seqlen_k, splits)):
        if begin == end and (i or sink is None):
            assert np.all(lse_acc[i] == -np.inf)
            assert not o_acc[i].any()
    out, lse = reference.combine(o_acc, lse_acc)
    expected = reference.head(q, k, v, sink=sink, **rest)
    np.testing.assert_allclose(out, expected[0], atol=1e-13)
    np.testing.assert_allclose(lse, expected[1], atol=1e-13)


@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("leftpad", [False, True])
def test_pages_change_nothing(page_size, layout, leftpad):
    q, k, v = normal(3, 4, 4, 8), normal(3, 21, 2, 8), normal(3, 21, 2, 5)
    lengths = np.array([21, 0, 7], np.int32)
    rest = {"causal": True, "alibi_slopes": normal(4)}
    first = np.array([2, 0, 3] if leftpad else [0, 0, 0], np.int32)
    k_pool, table = scattered(k, page_size)
    v_pool = np.full((*k_pool.shape[:3], 5), np.nan)
    for b in range(3):
        for j in range(21):
            v_pool[table[b, j // page_size], j % page_size] = v[b, j]

    def arranged(array):
        return np.swapaxes(array, 1, 2) if layout == "bhsd" else array

    arrays = (arranged(array) for array in (q, k_pool, v_pool))
    pads = {"cache_leftpad": first} if leftpad else {}
    result = reference.splitkv(*arrays, block_table=table, seqlen_k=lengths, layout=layout, **pads, **rest)
    for b, length in enumerate(lengths):
        keys = slice(first[b], length)
        alone = reference.forward(q[b : b + 1], k[b : b + 1, keys], v[b : b + 1, keys], **rest)
        np.testing.assert_allclose(arranged(result.out)[b], alone.out[0], atol=1e-13)
        np.testing.assert_allclose(result.lse[b], alone.lse[0], atol=1e-13)


def test_rows_of_a_contiguous_cache():
    q, k, v = normal(2, 3, 2, 8), normal(4, 9, 2, 8), normal(4, 9, 2, 8)
    rows, lengths = np.array([3, 1], np.int32), np.array([9, 4], np.int32)
    result = reference.splitkv(q, k, v, cache_batch_idx=rows, seqlen_k=lengths)
    expected = reference.forward(q, k[rows], v[rows], seqlen_k=lengths)
    np.testing.assert_array_equal(result.out, expected.out)
    whole = reference.splitkv(q, k[rows], v[rows])
    np.testing.assert_array_equal(whole.out, reference.forward(q, k[rows], v[rows]).out)


def test_gappy_groups():
    k = normal(2, 12, 1, 8)
    pool, table = scattered(k, 4)
    q, cu = normal(5, 2, 8), np.array([0, 2, 5], np.int32)
    first, lengths = np.array([3, 0], np.int32), np.array([6, 11], np.int32)
    result = reference.splitkv(
        q, pool, pool, cu_seqlens_q=cu, block_table=table, seqstart_k=first, seqlen_k=lengths, is_gappy=True
    )
    for b in range(2):
        rows, keys = slice(cu[b], cu[b + 1]), slice(first[b], first[b] + lengths[b])
        alone = reference.forward(q[None, rows], k[b : b + 1, keys], k[b : b + 1, keys])
        np.testing.assert_allclose(result.out[rows], alone.out[0], atol=1e-13)
    sums = np.cumsum([0, *lengths])  # without gaps: lengths in any of three ways
    for how in ({"seqlen_k": lengths}, {"cu_seqlens_k": sums}, {"seqstart_k": sums}):
        other = reference.splitkv(q, pool, pool, cu_seqlens_q=cu, block_table=table, **how)
        alone = reference.forward(q[None, 2:], k[1:, :11], k[1:, :11])
        np.testing.assert_allclose(other.out[2:], alone.out[0], atol=1e-13)


def test_fp8_output_saturates():
    q = np.zeros((1, 1, 1, 4), NUMPY["fp8"])
    v = np.full((1, 2, 1, 4), -3, NUMPY["fp8"])
    k = np.zeros((1, 2, 1, 4), NUMPY["fp8"])
    two, many = np.full(1, 2, np.float32), np.full(1, 100, np.float32)
    assert reference.splitkv(q, k, v, v_descale=two).out.ravel().tolist() == [-6.0] * 4
    assert reference.splitkv(q, k, v, v_descale=two, out_scale=many).out.ravel().tolist() == [-448.0] * 4


def test_rotation_of_one_pair():
    angle = np.array([[0.0, 0.0], [0.3, 1.1]])
    cos, sin = np.cos(angle), np.sin(angle)
    x = np.array([[[1.0, 2.0, 3.0, 4.0, 5.0]]], np.float32)
    turned = reference.rotate(x, [1], cos, sin, True)[0, 0]
    expected = [math.cos(0.3) - 2 * math.sin(0.3), 2 * math.cos(0.3) + math.sin(0.3)]
    expected += [3 * math.cos(1.1) - 4 * math.sin(1.1), 4 * math.cos(1.1) + 3 * math.sin(1.1), 5.0]
    np.testing.assert_allclose(turned, expected, rtol=1e-6)
    halves = reference.rotate(x[..., [0, 2, 1, 3, 4]], [1], cos, sin, False)[0, 0]
    np.testing.assert_array_equal(halves[[0, 2, 1, 3, 4]], turned)
    np.testing.assert_array_equal(reference.rotate(x, [0], cos, sin, True), x)
    assert x[0, 0, 0] == 1.0, "the argument is not written"


@pytest.mark.parametrize("page_size", [None, 2, 16])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_appends_add_up_to_one_prefill(page_size, layout):
    """Scores of rotated q and k depend on distances only, and the cache holds what was appended and nothing else."""
    steps, heads, hdim = 9, 2, 8
    angle = np.arange(steps)[:, None] * np.array([1.0, 0.3, 0.05])
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    k, v = normal(2, steps, heads, hdim).astype(np.float32), normal(2, steps, heads, hdim).astype(np.float32)
    pools, table = [np.full((2, 16, heads, hdim), np.nan, np.float32) for _ in "kv"], None
    if page_size is not None:
        table = random.permutation(2 * 8).reshape(2, 8).astype(np.int32)
        pools = [np.full((16, page_size, heads, hdim), np.nan, np.float32) for _ in "kv"]

    def arranged(array):
        return np.swapaxes(array, 1, 2) if layout == "bhsd" else array

    rest = {"rotary_cos": cos, "rotary_sin": sin, "block_table": table, "causal": True, "layout": layout}
    lengths, made = np.array([0, 0], np.int32), []
    q = normal(2, steps, heads, hdim).astype(np.float32)
    for begin, end in ((0, 1), (1, 1), (1, 6), (6, 9)):
        part = [arranged(array[:, begin:end].copy()) for array in (q, k, v)]
        result = reference.appendkv(part[0], *map(arranged, pools), *part[1:], seqlen_k=lengths, **rest)
        made.append(arranged(result.out))
        lengths += end - begin
    turned_q, turned_k = (
        np.stack([reference.rotate(row, range(steps), cos, sin, True) for row in array]) for array in (q, k)
    )
    whole = reference.forward(turned_q, turned_k, v, causal=True)
    np.testing.assert_allclose(np.concatenate(made, axis=1), whole.out, atol=1e-6)
    distance = np.einsum("ihd,jhd->hij", turned_q[0], turned_k[0])
    moved = [reference.rotate(array[0][:-3], range(3, steps), cos, sin, True) for array in (q, k)]
    np.testing.assert_allclose(np.einsum("ihd,jhd->hij", *moved), distance[:, :-3, :-3], atol=1e-5)
    for b in range(2):
        if table is None:
            np.testing.assert_array_equal(pools[0][b, :steps], turned_k[b])
            assert np.isnan(pools[0][b, steps:]).all()
        else:
            np.testing.assert_array_equal(reference.gather(pools[1], table[b], (0, steps)), v[b])
    assert np.isnan(pools[0]).sum() == pools[0].size - k.size


def test_queries_without_a_mask_share_a_position():
    cos, sin = np.cos(np.arange(9.0))[:, None], np.sin(np.arange(9.0))[:, None]
    q, cache, new = normal(1, 3, 1, 2), np.zeros((1, 8, 1, 2)), normal(1, 1, 1, 2)
    before = q.copy()
    tables = {"rotary_cos": cos, "rotary_sin": sin}
    assert reference.appendkv(q, cache, cache.copy(), new, new, seqlen_k=[4], attend=False, **tables) is None
    np.testing.assert_allclose(q[0], reference.rotate(before[0], [4, 4, 4], cos, sin, True))


@pytest.mark.parametrize("lookup", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("page_size", "form"),
    [(1, "tokens"), (1, "linear"), (16, "linear"), (32, "linear"), (16, "vectorized"), (32, "vectorized")],
)
def test_batch_prefill(page_size, lookup, form):
    lengths = [33, 0, 16]
    cu = np.array([0, 5, 5, 9], np.int32)
    pool_k, pool_v = (normal(80 if page_size == 1 else 9, page_size, 2, 8).astype(np.float16) for _ in "kv")
    counts = [-(-length // page_size) for length in lengths]
    pages = np.split(random.permutation(len(pool_k))[: sum(counts)], np.cumsum(counts)[:-1])
    if lookup == "sglang":
        where = {
            "kv_indptr": np.cumsum([0, *counts]),
            "kv_page_indices": np.concatenate([*pages, [-1]]),
            "kv_last_page_lens": [(length - 1) % page_size + 1 for length in lengths],
        }
    else:
        table = np.full((3, max(counts)), -1)
        for row, one in zip(table, pages, strict=True):
            row[: len(one)] = one
        where = {"block_table": table, "seqlen_k": lengths}
    k, v = {
        "linear": lambda: (pool_k, pool_v),
        "vectorized": lambda: reference.vectorized_pages(pool_k, pool_v),
        "tokens": lambda: (pool_k[:, 0], pool_v[:, 0]),
    }[form]()
    q, bias = normal(9, 4, 8), normal(9, 33)
    result = reference.batch_prefill(q, k, v, cu_seqlens_q=cu, bias=bias, causal=True, **where)
    for b, length in enumerate(lengths):
        rows = slice(cu[b], cu[b + 1])
        keys, values = (reference.gather(pool, pages[b], (0, length))[None] for pool in (pool_k, pool_v))
        alone = reference.forward(q[None, rows], keys, values, bias=bias[None, None, rows, :length], causal=True)
        np.testing.assert_allclose(result.out[rows], alone.out[0], atol=1e-13)


def test_vectorized_layout_by_hand():
    """fp8: 16 elements a vector. Element (page 1, token 3, head 1, dim 18) of each."""
    k = np.arange(2 * 16 * 2 * 32).reshape(2, 16, 2, 32).astype(np.uint8)
    packed_k, packed_v = reference.vectorized_pages(k, k)
    assert packed_k.shape == (2, 2, 2, 16, 16)
    assert packed_v.shape == (2, 2, 1, 32, 16)
    assert packed_k[1, 1, 1, 3, 2] == packed_v[1, 1, 0, 18, 3] == k[1, 3, 1, 18]
    for array in reference.linear_pages(packed_k, packed_v):
        np.testing.assert_array_equal(array, k)


@pytest.mark.parametrize("page_scale", [False, True])
def test_quantised_caches(page_scale):
    pool = normal(4, 16, 2, 8) * np.array([1e-3, 1.0, 30.0, 0.0])[:, None, None, None]
    codes, descale = reference.quantise(pool, page_scale)
    assert codes.dtype == NUMPY["fp8"]
    assert descale.shape == ((4, 2) if page_scale else (1,))
    back = codes.astype(np.float64) * (descale[:, None, :, None] if page_scale else descale)
    largest = np.max(np.abs(pool), axis=(1, 3) if page_scale else None, keepdims=True)
    assert np.all(np.abs(back - pool) <= 2.0**-4 * np.abs(pool) + 2.0**-17 * largest)
    where = {"cu_seqlens_q": [0, 3], "block_table": [[2, 1]], "seqlen_k": [30]}
    if page_scale:
        scales = {"kv_block_descale": np.stack([descale, descale], axis=-1)}
    else:
        scales = {"k_descale": descale, "v_descale": descale}
    q = normal(3, 2, 8)
    result = reference.batch_prefill(q, codes, codes, **where, **scales)
    expected = reference.batch_prefill(q, back, back, **where)
    np.testing.assert_allclose(result.out, expected.out, rtol=1e-9, atol=1e-9)
