# SPDX-License-Identifier: MIT
"""Caches, paged and latent attention of tilekiln.compat.aiter against float64."""

from __future__ import annotations

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import normal, over  # noqa: E402

pytestmark = pytest.mark.torch
BLOCKS, SIZE, HEADS, QUERIES, D = 12, 16, 2, 6, 64
FP8 = torch.float8_e4m3fn
LENGTHS = (1, 40, 17)


@pytest.fixture
def face(binding, load, monkeypatch):
    return over(monkeypatch, load("aiter"), load("norm_default"))


@pytest.fixture
def moved(binding, load, monkeypatch):
    return over(monkeypatch, load("norm_default"))


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def lines(cache):
    """A cache of keys (5-D) or of values (4-D, or 5-D of the asm layout) as (blocks size, heads, headdim)."""
    if cache.dim() == 4:
        return cache.permute(0, 3, 1, 2).reshape(-1, HEADS, D)
    keys = cache.shape[2] * cache.shape[4] == D
    return cache.permute(0, 3, 1, 2, 4).reshape(-1, HEADS, D) if keys else values(cache)


def values(cache):
    return cache.permute(0, 2, 4, 1, 3).reshape(-1, HEADS, D)


def caches(dtype, asm, wide=None):
    x = wide or 16 // torch.empty(0, dtype=dtype).element_size()
    key = torch.zeros(BLOCKS, HEADS, D // x, SIZE, x, dtype=dtype, device=DEVICE)
    shape = (BLOCKS, HEADS, SIZE // x, D, x) if asm else (BLOCKS, HEADS, D, SIZE)
    return key, torch.zeros(shape, dtype=dtype, device=DEVICE)


SLOTS = [5, 190, -1, 16, 33, 32, 0]


@pytest.mark.parametrize("asm", [False, True])
@pytest.mark.parametrize("kind", ["auto", "fp8", "bytes", "bytes of e5m2"])
def test_tokens_into_blocks(moved, asm, kind):
    key, value = normal(7, HEADS, D, dtype=torch.bfloat16), normal(7, HEADS, D, seed=1, dtype=torch.bfloat16)
    slots, scales = torch.tensor(SLOTS, device=DEVICE), (torch.tensor([0.5], device=DEVICE),) * 2
    stored = {"auto": torch.bfloat16, "fp8": FP8}.get(kind, torch.uint8)
    said, fp8 = ("fp8_e5m2", torch.float8_e5m2) if "e5m2" in kind else ("fp8", FP8)
    key_cache, value_cache = caches(stored, asm)
    if kind == "auto":
        moved.reshape_and_cache(key[:, None], value[:, None], key_cache, value_cache, slots, kind, asm_layout=asm)
    else:
        moved.reshape_and_cache(key, value, key_cache, value_cache, slots, said, *scales, asm)
    read = [cache.view(fp8) if stored == torch.uint8 else cache for cache in (key_cache, value_cache)]
    whole = lines(read[0]), (values if asm else lines)(read[1])
    for cache, tokens in zip(whole, (key, value), strict=True):
        want = torch.zeros(BLOCKS * SIZE, HEADS, D, dtype=cache.dtype, device=DEVICE)
        for row, slot in enumerate(SLOTS):
            if slot >= 0:
                want[slot] = tokens[row] if kind == "auto" else (tokens[row].float() / 0.5).to(fp8)
        assert torch.equal(cache.float(), want.float())


@pytest.mark.parametrize("kind", ["auto", "fp8", "fp8_e5m2"])
def test_tokens_into_blocks_of_lines(moved, kind):
    key, value = (normal(7, HEADS, 2 * D, seed=i, dtype=torch.float16)[..., i::2] for i in range(2))
    dtype = {"auto": torch.float16, "fp8_e5m2": torch.float8_e5m2}.get(kind, FP8)
    one = torch.tensor(2.0, device=DEVICE)
    key_cache, value_cache = (torch.zeros(BLOCKS, SIZE, HEADS, D, dtype=dtype, device=DEVICE) for _ in range(2))
    moved.reshape_and_cache_flash(key, value, key_cache, value_cache, ints(SLOTS), kind, one, one)
    for cache, tokens in ((key_cache, key), (value_cache, value)):
        flat = cache.view(-1, HEADS, D)
        for row, slot in enumerate(SLOTS):
            want = tokens[row] if kind == "auto" else (tokens[row].float() / 2).to(dtype)
            assert slot < 0 or torch.equal(flat[slot].float(), want.float())
        assert int((flat.float().abs().sum((1, 2)) > 0).sum()) == 6
    moved.swap_blocks(key_cache, value_cache, torch.tensor([[11, 4], [0, 7]]))
    assert torch.equal(value_cache[4].float(), key_cache[11].float())
    assert torch.equal(value_cache[7].float(), key_cache[0].float())
    before = key_cache[2].float()
    moved.copy_blocks([key_cache], [value_cache], torch.tensor([[2, 9]], device=DEVICE))
    assert torch.equal(key_cache[9].float(), before)
    assert torch.equal(value_cache[9].float(), value_cache[2].float())


@pytest.mark.parametrize("asm", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, FP8], ids=str)
def test_tokens_quantised_into_blocks(moved, asm, dtype):
    key, value = normal(7, HEADS, D, dtype=torch.bfloat16), normal(7, HEADS, D, seed=1, dtype=torch.bfloat16)
    key_cache, value_cache = caches(dtype, asm)
    shape = (BLOCKS, HEADS, SIZE) if asm else (HEADS, BLOCKS * SIZE)
    scales = torch.zeros(shape, device=DEVICE), torch.zeros(shape, device=DEVICE)
    moved.reshape_and_cache_with_pertoken_quant(key, value, key_cache, value_cache, *scales, ints(SLOTS), asm)
    for cache, scale, tokens in (
        (lines(key_cache), scales[0], key), ((values if asm else lines)(value_cache), scales[1], value),
    ):  # fmt: skip
        of_slot = scale.transpose(1, 2).reshape(-1, HEADS) if asm else scale.t()
        for row, slot in enumerate(SLOTS):
            if slot >= 0:
                made = cache[slot].double() * of_slot[slot].double()[:, None]
                torch.testing.assert_close(
                    made, tokens[row].double(), rtol=0.07, atol=float(of_slot[slot].max()) * 0.52
                )
        assert int((of_slot > 0).all(1).sum()) == 6


@pytest.mark.parametrize("nope_first", [True, False])
@pytest.mark.parametrize("kind", ["auto", "fp8"])
def test_latent_rows_into_blocks(moved, kind, nope_first):
    dtype, stored, latent, rotary = torch.bfloat16, torch.bfloat16 if kind == "auto" else FP8, 32, 16
    kv, pe = normal(7, latent, dtype=dtype), normal(7, 1, rotary, seed=1, dtype=dtype)
    cache, one = (
        torch.zeros(BLOCKS, SIZE, latent + rotary, dtype=stored, device=DEVICE),
        torch.tensor([2.0], device=DEVICE),
    )
    moved.concat_and_cache_mla(kv, pe[:, 0], cache, ints(SLOTS), kind, one)
    both = torch.cat([kv, pe[:, 0]], 1)
    want = both if kind == "auto" else (both.float() / 2).to(FP8)
    for row, slot in enumerate(SLOTS):
        assert slot < 0 or torch.equal(cache.view(-1, latent + rotary)[slot].float(), want[row].float())
    q_nope, q_pe = normal(7, QUERIES, latent, seed=2, dtype=dtype), normal(7, QUERIES, rotary, seed=3, dtype=dtype)
    angles, at = normal(30, rotary // 2, seed=4), torch.tensor([3, 0, 29, 7, 7, 1, 2], device=DEVICE)
    q_out = torch.zeros(7, QUERIES, latent + rotary, dtype=stored, device=DEVICE)
    moved.fused_qk_rope_concat_and_cache_mla(
        q_nope,
        q_pe,
        kv,
        pe,
        cache.zero_(),
        q_out,
        ints(SLOTS),
        one,
        one,
        at,
        angles.cos(),
        angles.sin(),
        True,
        nope_first,
    )
    cos, sin = angles.cos()[at][:, None].double(), angles.sin()[at][:, None].double()

    def turned(x):
        a, b = x.double().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    factor = 1 if kind == "auto" else 2
    parts = q_nope.double(), turned(q_pe)
    exact = torch.cat(parts if nope_first else parts[::-1], -1) / factor
    torch.testing.assert_close(q_out.double(), exact, rtol=0.07, atol=0.02)
    parts = kv.double(), turned(pe)[:, 0]
    exact = torch.cat(parts if nope_first else parts[::-1], -1) / factor
    for row, slot in enumerate(SLOTS):
        if slot >= 0:
            torch.testing.assert_close(cache.view(-1, latent + rotary)[slot].double(), exact[row], rtol=0.07, atol=0.02)


def attention(q, k, v, lengths, table, scale=None, window=None, softcap=0.0, alibi=None):
    """(sequences, heads, headdim) in float64 of lines (blocks size, heads, headdim)."""
    out = []
    for row, length in enumerate(lengths):
        slots = [int(table[row][j // SIZE]) * SIZE + j % SIZE for j in range(length)]
        group = q.shape[1] // k.shape[1]
        keys, vals = (x[slots].double().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("hd,khd->hk", q[row].double(), keys) * (D**-0.5 if scale is None else scale)
        if softcap:
            scores = softcap * (scores / softcap).tanh()
        if alibi is not None:
            scores = scores - alibi.double()[:, None] * (length - 1 - torch.arange(length, device=DEVICE))
        if window:
            scores[:, : max(length - window, 0)] = -torch.inf
        out.append(torch.einsum("hk,khd->hd", scores.softmax(-1), vals))
    return torch.stack(out)


TABLE = [[7, 99, -3], [3, 0, 9], [4, 11, 1000]]
"""Entries past the last block of a sequence are any numbers."""


def close(made, want):
    torch.testing.assert_close(made.double(), want, rtol=0.02, atol=0.01)


def filled(dtype, asm, x=None):
    key, value = caches(dtype, asm, x)
    return key.copy_(normal(*key.shape, seed=5)), value.copy_(normal(*value.shape, seed=6))


@pytest.mark.parametrize("asm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_paged_attention(face, asm, dtype):
    q, lengths, table = normal(3, QUERIES, D, dtype=dtype), ints(LENGTHS), ints(TABLE)
    key, value = filled(dtype, asm)
    k, v = lines(key), (values if asm else lines)(value)
    nothing = torch.empty(0, device=DEVICE)
    want = attention(q, k, v, LENGTHS, TABLE)
    close(face.pa_fwd_asm(q, key, value, table, lengths, 3), want)
    out = torch.empty_like(q)
    assert face.pa_fwd_asm(q, key, value, table, lengths, 3, out_=out).data_ptr() == out.data_ptr()
    close(out, want)
    scaled = attention(q, k, v, LENGTHS, TABLE, 0.2)
    made = face.paged_attention_common(q, key, value, nothing, nothing, nothing, table, lengths, 3, 0.2)
    close(made, scaled)
    slopes = torch.tensor([0.5**i for i in range(QUERIES)], device=DEVICE)
    for alibi in (None, slopes):
        face.paged_attention_rocm(
            out.zero_(), nothing, nothing, nothing, q, key, value, HEADS, 0.2, table, lengths, SIZE, 64, alibi, "auto",
            None, None,
        )  # fmt: skip
        close(out, attention(q, k, v, LENGTHS, TABLE, 0.2, alibi=alibi))
    made = face.pa_fwd_naive(
        q, key, value, table, lengths, nothing, nothing, 64, HEADS, 0.2, 1.0, 1.0, SIZE, 0, out.zero_()
    )
    close(made, scaled)


def test_several_queries_a_sequence(face):
    dtype = torch.bfloat16
    key, value = filled(dtype, True)
    counts, lengths = [1, 4, 2], LENGTHS
    q = normal(sum(counts), QUERIES, D, dtype=dtype)
    made = face.pa_fwd_asm(q, key, value, ints(TABLE), ints(lengths), 3, 4, qo_indptr=ints([0, 1, 5, 7]))
    at = 0
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        for j in range(count):
            table = [TABLE[row]]
            close(
                made[at : at + 1], attention(q[at : at + 1], lines(key), values(value), [length - count + 1 + j], table)
            )
            at += 1


@pytest.mark.parametrize("dtype", [torch.int8, FP8], ids=str)
def test_quantised_caches(face, dtype):
    """By a scale of the tensor, and by one of each token and head."""
    q, lengths, table = normal(3, QUERIES, D, dtype=torch.bfloat16), ints(LENGTHS), ints(TABLE)
    key, value = (one.to(dtype) if dtype == FP8 else (one * 20).to(dtype) for one in filled(torch.float32, True, 16))
    scale = (
        normal(BLOCKS, HEADS, SIZE, seed=7).abs() / (2 if dtype == FP8 else 40),
        normal(BLOCKS, HEADS, SIZE).abs() / 9,
    )
    by_slot = [s.transpose(1, 2).reshape(-1, HEADS, 1) for s in scale]
    k, v = lines(key).float() * by_slot[0], values(value).float() * by_slot[1]
    want = attention(q, k, v, LENGTHS, TABLE)
    made = face.pa_fwd_asm(q, key, value, table, lengths, 3, 1, *scale)
    torch.testing.assert_close(made.double(), want, rtol=0.05, atol=0.03)
    nothing = torch.empty(0, device=DEVICE)
    made = face.paged_attention_common(
        q,
        key,
        value,
        nothing,
        nothing,
        nothing,
        table,
        lengths,
        3,
        D**-0.5,
        K_QScale_asm=scale[0],
        V_QScale_asm=scale[1],
    )
    torch.testing.assert_close(made.double(), want, rtol=0.05, atol=0.03)
    other = [s.transpose(0, 1).reshape(HEADS, -1).contiguous() for s in scale]
    flat = value.permute(0, 1, 3, 2, 4).reshape(BLOCKS, HEADS, D, SIZE)
    made = face.pa_fwd_naive(
        q, key, flat, table, lengths, *other, 64, HEADS, D**-0.5, 1.0, 1.0, SIZE, 2,
    )  # fmt: skip
    torch.testing.assert_close(made.double(), want, rtol=0.05, atol=0.03)
    one = torch.tensor([0.05], device=DEVICE)
    out = torch.empty_like(q)
    face.paged_attention_rocm(
        out, nothing, nothing, nothing, q, key, value, HEADS, 0.2, table, lengths, SIZE, 64, None, "fp8", one, one
    )
    want = attention(q, lines(key).float() * 0.05, values(value).float() * 0.05, LENGTHS, TABLE, 0.2)
    torch.testing.assert_close(out.double(), want, rtol=0.05, atol=0.03)
    bytes_of = [(cache.float() * 0.05).to(torch.float8_e5m2) for cache in (key, value)]
    want = attention(q, lines(bytes_of[0]).float() * 2, values(bytes_of[1]).float() * 2, LENGTHS, TABLE, 0.2)
    key, value = (cache.view(torch.uint8) for cache in bytes_of)
    two = torch.tensor([2.0], device=DEVICE)
    face.paged_attention_rocm(
        out, nothing, nothing, nothing, q, key, value, HEADS, 0.2, table, lengths, SIZE, 64, None, "fp8_e5m2", two, two
    )
    torch.testing.assert_close(out.double(), want, rtol=0.05, atol=0.03)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", ["auto", "fp8", "fp8_e5m2"])
def test_caches_of_lines(face, layout, kind):
    dtype, nothing = torch.float16, torch.empty(0, device=DEVICE)
    q, lengths, table = normal(3, QUERIES, D, dtype=dtype), ints(LENGTHS), ints(TABLE)
    one = torch.tensor([0.5], device=DEVICE)
    shape = (BLOCKS, SIZE, HEADS, D) if layout == "NHD" else (BLOCKS, HEADS, SIZE, D)
    stored = {"auto": dtype, "fp8_e5m2": torch.float8_e5m2}.get(kind, FP8)
    key, value = (normal(*shape, seed=s).to(stored) for s in (5, 6))
    k, v = (
        (c if layout == "NHD" else c.transpose(1, 2)).reshape(-1, HEADS, D).float() * (1 if kind == "auto" else 0.5)
        for c in (key, value)
    )
    if kind == "fp8_e5m2":
        key, value = key.view(torch.uint8), value.view(torch.uint8)
    for window, cap in ((0, 0.0), (9, 0.0), (0, 3.0)):
        out = torch.empty_like(q)
        face.paged_attention_v1(
            out, nothing, q, key, value, 0.2, table, None, lengths, 64, None, kind, layout, cap, one, one,
            sliding_window=window,
        )  # fmt: skip
        close(out, attention(q, k, v, LENGTHS, TABLE, 0.2, window, cap))
    pages, indptr, last = ints([7, 3, 0, 9, 4, 11]), ints([0, 1, 4, 6]), ints([1, 8, 1])
    out = torch.empty_like(q)
    face.paged_attention_ragged(
        out, nothing, q, key, value, 0.2, indptr, pages, last, SIZE, 8, None, kind, layout, 0.0, one, one
    )
    close(out, attention(q, k, v, LENGTHS, TABLE, 0.2))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 2, 2), (1, 3, 2)])
def test_latent_attention(face, causal, size, counts):
    hdim, latent, heads, dtype, lengths = 96, 64, 5, torch.float32, (4, 40, 17)
    pool = normal(64, size, 1, hdim, seed=1, dtype=dtype)
    random = torch.Generator().manual_seed(0)
    pages = [-(-length // size) for length in lengths]
    indices = torch.randperm(64, generator=random)[: sum(pages)].int().to(DEVICE)
    indptr = ints([0, *torch.tensor(pages).cumsum(0).tolist()])
    last = ints([(length - 1) % size + 1 for length in lengths])
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    q = normal(starts[-1], heads, hdim, dtype=dtype)
    want, want_lse = [], []
    for row, length in enumerate(lengths):
        lines_ = pool[indices[indptr[row] : indptr[row + 1]].long()].reshape(-1, hdim)[:length].double()
        for j in range(counts[row]):
            seen = length - counts[row] + 1 + j if causal else length
            scores = q[starts[row] + j].double() @ lines_[:seen].t() * 0.3
            want.append(scores.softmax(-1) @ lines_[:seen, :latent])
            want_lse.append(scores.logsumexp(-1))
    out = torch.empty(starts[-1], heads, latent, device=DEVICE)
    given = q, pool, out, ints(starts), indptr, indices, last, max(counts)
    made, lse = face.mla.mla_decode_fwd(*given, size, 1, 0.3, return_lse=True, causal=causal)
    assert made is out
    torch.testing.assert_close(out.double(), torch.stack(want), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse.double(), torch.stack(want_lse), rtol=1e-4, atol=1e-4)
    assert face.mla.mla_decode_fwd(*given, sm_scale=0.3)[1] is None
    if causal:
        made, lse = face.mla.mla_prefill_fwd(q, pool, out.zero_(), *given[3:], 0.3)
        torch.testing.assert_close(made.double(), torch.stack(want), rtol=1e-4, atol=1e-4)
        assert lse.shape == (starts[-1], 1, heads, 1)


def test_other_names_of_attention(face):
    """fmha_v3 and native split-KV compute what mha_fwd and mha_bwd do."""
    q, k, v = (normal(2, 20, h, D, seed=h, dtype=torch.bfloat16) for h in (4, 2, 2))
    cut = (*(x.reshape(40, -1, D) for x in (q, k, v)), ints([0, 25, 40]), ints([0, 25, 40]))
    dense = face.mha_fwd(q, k, v, 0.0, None, True, 5, 0, 0, True, False)
    for a, b in zip(face.fmha_v3_fwd(q, k, v, 0.0, None, True, 5, 0, True, False, 1), dense, strict=True):
        assert torch.equal(a, b)
    packed = face.mha_varlen_fwd(*cut, 25, 25, 0, 0.0, None, 0.0, False, True, -1, 0, 0, True, False)
    made = face.fmha_v3_varlen_fwd(*cut, 25, 25, 0, 0.0, None, 0.0, False, True, -1, 0, True, False, 1)
    assert torch.equal(made[0], packed[0])
    dout = normal(2, 20, 4, D, seed=9, dtype=torch.bfloat16)
    given = dout, q, k, v, dense[0], dense[1], 0.0, None, True, 5, 0, True
    for a, b in zip(face.fmha_v3_bwd(*given, True, 1), face.mha_bwd(*given), strict=True):
        assert torch.equal(a, b)
    given = dout.view(40, 4, D), *cut[:3], packed[0], packed[1], *cut[3:], 25, 25, 0.0, None, False, True, -1, 0, True
    for a, b in zip(face.fmha_v3_varlen_bwd(*given, True, 1), face.mha_varlen_bwd(*given), strict=True):
        assert torch.equal(a, b)
    out = torch.empty_like(q)
    whole = face.mha_fwd(q, k, v, 0.0, None, True, -1, 0, 0, True, False)
    for splits in (0, 3):
        made, lse = face.mha_fwd_native_splitkv(q, k, v, out, D**-0.5, True, True, splits)
        torch.testing.assert_close(made.float(), whole[0].float(), rtol=0.02, atol=0.02)
        torch.testing.assert_close(lse, whole[1], rtol=1e-3, atol=1e-3)
    assert face.mha_fwd_native_splitkv(q, k, v, out, D**-0.5, True, False, 3)[1].numel() == 0
    assert face.maybe_contiguous(q) is q
    assert face.maybe_contiguous(q.mT).is_contiguous()
    assert face.maybe_contiguous(None) is None


def test_wrong_arguments_are_named(face):
    q, table, lengths = normal(3, QUERIES, D, dtype=torch.bfloat16), ints(TABLE), ints(LENGTHS)
    key, value = filled(torch.bfloat16, False)
    none, latent, slots = torch.empty(0, device=DEVICE), normal(4, 16, 1, 96), ints(SLOTS)
    tokens = normal(7, HEADS, D, dtype=torch.bfloat16)
    decode = (
        normal(3, 4, 96),
        latent,
        normal(3, 4, 64),
        ints([0, 1, 2, 3]),
        ints([0, 1, 2, 3]),
        ints([0, 1, 2]),
        ints([1, 1, 1]),
    )
    v1 = (
        q.clone(),
        none,
        q,
        normal(4, 16, 2, 64, dtype=torch.bfloat16),
        normal(4, 16, 2, 64, dtype=torch.bfloat16),
        0.2,
    )
    for call, said in (
        (lambda: face.reshape_and_cache(tokens, tokens, key[0], value, slots, "auto"), "key_cache: was of shape"),
        (lambda: face.reshape_and_cache(tokens.half(), tokens, key, value, slots, "auto"), "key_cache: was torch.bf"),
        (lambda: face.reshape_and_cache(tokens, tokens, key, value, slots, "fp8"), "kv_cache_dtype: was 'fp8' of"),
        (lambda: face.reshape_and_cache(tokens, tokens, key, value, slots, "int8"), "kv_cache_dtype: was 'int8' of"),
        (lambda: face.swap_blocks(key, key, slots), "block_mapping: was of shape (7,), must be (pairs, 2)"),
        (lambda: face.pa_fwd_asm(q[0], key, value, table, lengths, 3), "Q: was of shape (6, 64) over caches"),
        (lambda: face.pa_fwd_asm(q, key, value, table, lengths, 3, 2, qo_indptr=table), "qo_indptr: was given, must"),
        (lambda: face.pa_fwd_naive(q, key, value, table, lengths, none, none, 9, 2, 1.0, 1.0, 1.0, 16, 1),
         "quant_algo: was 1, must be 0 (none) or 2"),
        (lambda: face.paged_attention_v1(*v1, table, None, lengths, 9, None, "auto", "DHN", 0.0, none, none),
         "kv_cache_layout: was 'DHN', must be 'NHD' or 'HND'"),
        (lambda: face.paged_attention_v1(*v1, table, None, lengths, 9, None, "auto", "NHD", 0.0, none, none, mtp=2),
         "mtp: was 2, must be 1"),
        (lambda: face.mla.mla_decode_fwd(decode[0], latent[0], *decode[2:], 1), "kv_buffer: was of shape (16, 1, 96)"),
        (lambda: face.mla.mla_decode_fwd(*decode, 1, logit_cap=3.0), "logit_cap: was 3.0, must be absent"),
        (lambda: face.mla.mla_decode_fwd(*decode, 1, kv_scale=none), "kv_scale: was a tensor, must be absent"),
        (lambda: face.mla.mla_decode_fwd(*decode, 1, cp_world_size=2), "cp_world_size: was 2, must be absent"),
        (lambda: face.mha_fwd_native_splitkv(q[None], q[None], q[None], q[None], 1.0, False, False, -1), "num_splits"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).startswith(said), (str(error.value), said)


def test_a_cache_records_no_gradient(face):
    """Serving code has parameters and no torch.no_grad(): a cache that recorded would keep every step."""
    key = torch.randn(2, 2, 8, requires_grad=True)
    caches = torch.zeros(3, 2, 2, 4, 4), torch.zeros(3, 2, 8, 4)
    face.reshape_and_cache(key, key, *caches, torch.tensor([1, 6]), "auto")
    assert caches[0].any()
    assert not any(cache.requires_grad for cache in caches)
