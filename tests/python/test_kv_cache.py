# SPDX-License-Identifier: MIT
"""tk.KVCache and tk.decode: sequences that come, grow and go, checked against the reference."""

from __future__ import annotations

import copy
import pathlib
import pickle

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import dtypes, reference

HEADS, HDIM = 2, 64


def contiguous(library=None, **changes):
    return tk.KVCache(**{"sequences": 3, "capacity": 40, "nhead_k": HEADS, "hdim": HDIM, "library": library} | changes)


def paged(library=None, **changes):
    return tk.KVCache(**{"pages": 8, "page_size": 16, "nhead_k": HEADS, "hdim": HDIM, "library": library} | changes)


KINDS = pytest.mark.parametrize("make", [contiguous, paged])


@KINDS
def test_sequences_of_different_ages(flash, make):
    """Random steps: each sequence's keys are kept beside, and every output is checked against them."""
    cache, random = make(flash), np.random.default_rng(5)
    kept: dict[int, list[np.ndarray]] = {}

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    for step in range(60):
        if len(kept) == 3 or (kept and step % 9 == 8):
            oldest = next(iter(kept))
            cache.free(oldest)
            del kept[oldest]
        if len(kept) < 2 or step % 5 == 0:
            one = cache.add()
            kept[one] = [normal(0, HEADS, HDIM)] * 2
        chosen = [one for one in kept if random.integers(2)] or list(kept)
        tokens = int(random.integers(1, 5))
        chosen = [one for one in chosen if cache.length(one) + tokens <= 40]
        if not chosen:
            continue
        k, v = (normal(len(chosen), tokens, HEADS, HDIM) for _ in "kv")
        assert cache.append(chosen, k, v) is None
        for b, one in enumerate(chosen):
            kept[one] = [np.concatenate(pair) for pair in zip(kept[one], (k[b], v[b]), strict=True)]
            assert cache.length(one) == len(kept[one][0])
        q = normal(len(kept), 2, 2 * HEADS, HDIM)
        out = tk.decode(q, cache, list(kept), causal=True)
        for b, (keys, values) in enumerate(kept.values()):
            expected = reference.forward(q[b : b + 1], keys[None], values[None], causal=True)
            assert reference.excess("fp32", expected, out[b : b + 1]) <= 1
    places = [place for one in cache.sequences for place in cache.pages_of(one)]
    assert len(places) == len(set(places)), "a page belongs to one sequence"
    assert len(places) + cache.free_places == len(cache.k)
    for one in list(kept):
        cache.free(one)
    assert cache.free_places == len(cache.k)
    assert cache.sequences == []


@KINDS
def test_append_that_attends(flash, make):
    cache, random = make(flash), np.random.default_rng(1)
    angle = random.uniform(0, 7, (40, 16))
    tables = {"rotary_cos": np.cos(angle).astype(np.float32), "rotary_sin": np.sin(angle).astype(np.float32)}
    pair = [cache.add(), cache.add()]
    for tokens in (7, 1, 20):
        k, v = (random.standard_normal((2, tokens, HEADS, HDIM)).astype(np.float32) for _ in "kv")
        q = random.standard_normal((2, tokens, HEADS, HDIM)).astype(np.float32)
        before = cache.lengths(pair)
        cache.reserve(pair, tokens)
        where = {name: value.copy() for name, value in cache.view(pair).items()}
        theirs = q.copy()
        expected = reference.appendkv(theirs, knew=k, vnew=v, causal=True, **where, **tables)
        out = cache.append(pair, k, v, q, causal=True, **tables)
        assert q.tobytes() == theirs.tobytes()
        assert cache.k.tobytes() == where["k"].tobytes()
        assert cache.v.tobytes() == where["v"].tobytes()
        assert reference.excess("fp32", expected, out) <= 1
        np.testing.assert_array_equal(cache.lengths(pair), before + tokens)


@pytest.mark.parametrize("lookup", ["sglang", "vllm"])
def test_views_of_each_family(flash, lookup):
    cache, random = paged(flash, dtype="bf16", hdim=128), np.random.default_rng(2)
    dtype = cache.k.dtype
    pair = [cache.add(), cache.add()]
    for one, tokens in zip(pair, (33, 16), strict=True):
        cache.append([one], *(random.standard_normal((1, tokens, HEADS, 128)).astype(dtype) for _ in "kv"))
    q = random.standard_normal((2, 3, HEADS, 128)).astype(dtype)
    splitkv, pagedkv = (
        run(q, **cache.view(pair), causal=True) for run in (flash.fmha_fwd_splitkv, flash.fmha_fwd_pagedkv)
    )
    packed = flash.fmha_batch_prefill(
        q.reshape(6, HEADS, 128),
        **cache.prefill_view(pair, lookup),
        cu_seqlens_q=np.array([0, 3, 6], np.int32),
        causal=True,
    )
    expected = reference.splitkv(q, **cache.view(pair), causal=True)
    for out in (splitkv, pagedkv, packed.reshape(q.shape)):
        assert reference.excess("bf16", expected, out) <= 1


def test_a_full_cache_says_so_and_takes_nothing(flash):
    cache = contiguous(flash)
    ones = [cache.add() for _ in range(3)]
    with pytest.raises(MemoryError, match="holds 3 sequences"):
        cache.add()
    new = np.ones((1, 41, HEADS, HDIM), np.float32)
    with pytest.raises(MemoryError, match="would have 41 tokens, the cache has room for 40"):
        cache.append(ones[:1], new, new)
    assert cache.length(ones[0]) == 0
    cache = paged(flash)
    pair = [cache.add(), cache.add()]
    cache.append(pair, *(np.ones((2, 50, HEADS, HDIM), np.float32) for _ in "kv"))
    assert cache.free_places == 0
    before = cache.k.copy()
    with pytest.raises(MemoryError, match="2 pages are needed and 0 are free"):
        cache.append(pair, *(np.zeros((2, 20, HEADS, HDIM), np.float32) for _ in "kv"))
    np.testing.assert_array_equal(cache.k, before)
    assert cache.lengths(pair).tolist() == [50, 50]
    cache.free(pair[0])
    cache.append(pair[1:], *(np.zeros((1, 20, HEADS, HDIM), np.float32) for _ in "kv"))
    assert cache.length(pair[1]) == 70


@KINDS
def test_a_refused_append_gives_back_what_it_took(flash, make):
    cache = make(flash, **({"pages": 4} if make is paged else {}))
    one, two = cache.add(), cache.add()
    cache.append([one], *(np.zeros((1, 3, HEADS, HDIM), np.float32) for _ in "kv"))
    if make is paged:
        cache.reserve([two], 16)  # what a caller reserved stays
    before = cache.free_places, cache.pages_of(one), cache.pages_of(two)
    new = np.zeros((2, 20, HEADS, HDIM), np.float32)
    for wrong in (new[:, :1], new.astype(np.float64)):
        with pytest.raises(tk.ArgumentError, match=r"^vnew: "):
            cache.append([one, two], new, wrong)
        assert (cache.free_places, cache.pages_of(one), cache.pages_of(two)) == before
    cache.append([one, two], new, new)
    taken = cache.pages_of(one), cache.pages_of(two)
    again = make(flash, **({"pages": 4} if make is paged else {}))
    one, two = again.add(), again.add()
    again.append([one], *(np.zeros((1, 3, HEADS, HDIM), np.float32) for _ in "kv"))
    if make is paged:
        again.reserve([two], 16)
    again.append([one, two], new, new)
    assert (again.pages_of(one), again.pages_of(two)) == taken  # as if nothing had been refused


def test_a_refused_append_leaves_lengths(flash):
    cache = paged(flash)
    one, new = cache.add(), np.zeros((1, 2, HEADS, HDIM), np.float32)
    with pytest.raises(tk.ArgumentError, match=r"^vnew: "):
        cache.append([one], new, new[:, :1])
    assert cache.length(one) == 0


REFUSED = {
    "capacity": lambda: tk.KVCache(nhead_k=1, hdim=8, sequences=2),
    "capacity of both": lambda: tk.KVCache(nhead_k=1, hdim=8, sequences=2, capacity=3, pages=2, page_size=16),
    "pages": lambda: paged(pages=0),
    "pages of a fraction": lambda: paged(pages=2.5),
    "sequences of a word": lambda: contiguous(sequences="3"),
    "capacity too large": lambda: contiguous(capacity=2**31),
    "hdim": lambda: paged(hdim=0),
    "dtype": lambda: paged(dtype="fp64"),
    "sequence": lambda: paged().length(0),
    "sequence freed": lambda: paged().free(3),
    "k": lambda: paged().append([], np.zeros((1, 1, HEADS, HDIM)), np.zeros((1, 1, HEADS, HDIM))),
    "cache none": lambda: tk.decode(np.zeros((1, 1, HEADS, HDIM), np.float32), None, []),
    "block_table": lambda: tk.decode(np.zeros((0, 1, HEADS, HDIM), np.float32), paged(), [], block_table=None),
    "layout": lambda: tk.decode(np.zeros((0, 1, HEADS, HDIM), np.float32), contiguous(), [], layout="bhsd"),
    "cache": lambda: contiguous().prefill_view([]),
    "lookup": lambda: paged().prefill_view([], "list"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    with pytest.raises(tk.ArgumentError, match=rf"^{case.split()[0]}: was "):
        REFUSED[case]()


def test_a_sequence_twice(flash):
    cache = paged(flash)
    one = cache.add()
    with pytest.raises(tk.ArgumentError, match=r"^sequences: was .* must name each sequence once"):
        cache.append([one, one], *(np.zeros((2, 1, HEADS, HDIM), np.float32) for _ in "kv"))


def test_libraries_at_hand_are_asked(flash, finds):
    finds(flash)
    cache = paged()
    one = cache.add()
    cache.append([one], *(np.ones((1, 5, HEADS, HDIM), np.float32) for _ in "kv"))
    out = tk.decode(np.ones((1, 1, HEADS, HDIM), np.float32), cache, [one])
    np.testing.assert_allclose(out, 1, rtol=1e-6)
    with pytest.raises(tk.NoKernelError, match=r"^no kernel in library \(flash\) for fmha_fwd_splitkv "):
        tk.decode(np.ones((1, 1, HEADS, HDIM), np.float32), cache, [one], sink=np.zeros(HEADS, np.float32))


@pytest.mark.host_only("its arrays are fp32")
def test_an_append_without_a_kernel_writes_nothing(flash):
    cache = paged(flash)
    one = cache.add()
    new, q = np.ones((1, 3, HEADS, HDIM), np.float32), np.ones((1, 1, HEADS, HDIM), np.float32)
    with pytest.raises(tk.NoKernelError, match="fmha_fwd_splitkv"):
        cache.append([one], new, new, q, sink=np.zeros(HEADS, np.float32))
    assert not cache.k.any()
    assert cache.length(one) == 0


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp8"])
@pytest.mark.parametrize("like", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_memory_begins_at_a_cache_line(flash, like, dtype):
    for size in (1, 100, 5000):
        cache = tk.KVCache(pages=size, page_size=16, nhead_k=1, hdim=64, dtype=dtype, like=like, library=flash)
        for array in (cache.k, cache.v):
            assert (array.data_ptr() if like == "torch" else array.ctypes.data) % 64 == 0


@KINDS
def test_no_sequences(flash, make):
    cache = make(flash)
    nothing = np.zeros((0, 1, HEADS, HDIM), np.float32)
    assert cache.append([], nothing, nothing) is None
    assert tk.decode(nothing, cache, []).shape == nothing.shape


@pytest.mark.torch
@pytest.mark.parametrize("make", [contiguous, paged])
def test_torch_tensors(flash, make):
    """Whatever holds the cache, the bits are the same."""
    import torch

    random = np.random.default_rng(3)
    k, v, q = (random.standard_normal((2, 9, HEADS, HDIM)).astype(np.float32) for _ in "kvq")
    results = {}
    for like in ("numpy", "torch"):
        cache = make(flash, like=like)
        pair = [cache.add(), cache.add()]
        arrays = [torch.from_numpy(x.copy()) if like == "torch" else x.copy() for x in (k, v, q)]
        assert cache.append(pair, *arrays[:2]) is None
        one = cache.append(pair[:1], *(x[:1, :3] for x in arrays[:2]), arrays[2][:1, :3].clone()
                           if like == "torch" else arrays[2][:1, :3].copy(), causal=True)  # fmt: skip
        results[like] = [one, tk.decode(arrays[2][:, :1], cache, pair), cache.k, cache.v]
        assert all(isinstance(x, torch.Tensor if like == "torch" else np.ndarray) for x in results[like])
    for ours, theirs in zip(results["torch"], results["numpy"], strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.torch
def test_torch_dtypes():
    from tilekiln._core.dtypes import TORCH

    for dtype in ("fp32", "fp16", "bf16", "fp8"):
        cache = paged(dtype=dtype, like="torch", hdim_v=32)
        assert cache.k.dtype == cache.v.dtype == TORCH[dtype]
        assert tk.KVCache.over(cache.k, cache.v, paged=True).dtype == dtype


@KINDS
def test_over_arrays_that_exist(flash, make):
    """Rows of a larger array, as an engine that owns its memory gives them."""
    made, random = make(flash), np.random.default_rng(4)
    whole = np.full((*made.k.shape[:3], 3 * HDIM), 7, np.float32)
    cache = tk.KVCache.over(whole[..., :HDIM], whole[..., HDIM : 2 * HDIM], paged=made.paged, library=flash)
    assert (cache.dtype, cache.paged, cache.page_size) == ("fp32", made.paged, made.page_size)
    k, v, q = (random.standard_normal((1, 20, HEADS, HDIM)).astype(np.float32) for _ in "kvq")
    one = cache.add()
    cache.append([one], k, v)
    expected = reference.forward(q[:, :1], k, v)
    assert reference.excess("fp32", expected, tk.decode(q[:, :1], cache, [one])) <= 1
    assert np.all(whole[..., 2 * HDIM :] == 7)


OVER = {
    "k of 3 dimensions": ("k", np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 1, 4), np.float32)),
    "no pages": ("k", np.zeros((0, 16, 1, 4), np.float32), np.zeros((0, 16, 1, 4), np.float32)),
    "v of other heads": ("v", np.zeros((2, 3, 1, 4), np.float32), np.zeros((2, 3, 2, 4), np.float32)),
    "v of another dtype": ("v", np.zeros((2, 3, 1, 4), np.float32), np.zeros((2, 3, 1, 4), np.float16)),
    "int32": ("k", np.zeros((2, 3, 1, 4), np.int32), np.zeros((2, 3, 1, 4), np.int32)),
}  # fmt: skip


@pytest.mark.parametrize("case", OVER)
def test_over_what_cannot_be_a_cache(case):
    name, k, v = OVER[case]
    with pytest.raises(tk.ArgumentError, match=rf"^{name}: was .* must be "):
        tk.KVCache.over(k, v, paged=False)


def test_like_what():
    with pytest.raises(tk.ArgumentError, match="device: was 'cuda', must be left out unless like is 'torch'"):
        paged(device="cuda")
    with pytest.raises(tk.ArgumentError, match="like: was 'jax', must be 'numpy' or 'torch'"):
        paged(like="jax")


@KINDS
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copies_grow_alone(flash, make, copied):
    cache = make(flash)
    sequence = cache.add()
    cache.append([sequence], *(np.ones((1, 20, HEADS, HDIM), np.float32),) * 2)
    other = copied(cache)
    assert pathlib.Path(other.library.path).samefile(flash.path)
    other.append([sequence], *(np.full((1, 5, HEADS, HDIM), 2, np.float32),) * 2)
    assert (cache.length(sequence), other.length(sequence)) == (20, 25)
    assert np.sum(cache.k) == 20 * HEADS * HDIM
    assert np.sum(other.k) == 30 * HEADS * HDIM
    other.free(sequence)
    assert cache.sequences == [sequence]


def test_a_shallow_copy_is_refused():
    with pytest.raises(TypeError, match=r"no shallow copy, .*copy\.deepcopy copies them too"):
        copy.copy(paged())


@pytest.mark.parametrize(
    ("dtype", "make", "like"),
    [("bf8", contiguous, "numpy"), pytest.param("fp8", paged, "torch", marks=pytest.mark.torch)],
)
def test_bytes_under_queries_of_bf16(binding, load, monkeypatch, dtype, make, like):
    found = [load("aiter"), load("norm_default")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    cache = make(dtype=dtype, like=like, **({"capacity": 64} if make is contiguous else {}))
    random, kept = np.random.default_rng(7), []

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    def given(x, word="bf16"):
        if like == "numpy":
            return x.astype(dtypes.NUMPY[word])
        import torch

        return torch.from_numpy(x).to(dtypes.TORCH[word])

    def floats(x):
        return (x if like == "numpy" else x.float().numpy()).astype(np.float32)

    scale = given(np.array([0.5], np.float32), "fp32")
    sequences = [cache.add() for _ in range(2)]
    for tokens in (20, 3):
        k, v = (given(normal(2, tokens, HEADS, HDIM)) for _ in "kv")
        assert cache.append(sequences, k, v, k_scale=scale) is None
        kept.append([floats(k), floats(v)])
    k, v = (np.concatenate(parts, 1) for parts in zip(*kept, strict=True))
    stored = dtypes.NUMPY[dtype]
    k, v = (k / 0.5).astype(stored).astype(np.float32) * 0.5, v.astype(stored).astype(np.float32)
    q = given(normal(2, 2, 2 * HEADS, HDIM))
    out, lse = tk.decode(q, cache, sequences, causal=True, k_descale=scale, return_lse=True)
    expected = reference.forward(floats(q), k, v, causal=True)
    np.testing.assert_allclose(floats(out), expected.out, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(floats(lse), expected.lse, rtol=0.02, atol=0.02)
    with pytest.raises(tk.ArgumentError, match=r"^q: was given, must be None where k is .*bfloat16 and the cache"):
        cache.append(sequences, *(given(normal(2, 1, HEADS, HDIM)) for _ in "kv"), q)
    with pytest.raises(tk.ArgumentError, match=r"^out: was given, must be absent where q is .*bfloat16 and the cache"):
        tk.decode(q, cache, sequences, out=out)
    assert [cache.length(one) for one in sequences] == [23, 23]
