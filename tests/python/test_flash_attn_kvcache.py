# SPDX-License-Identifier: MIT
"""flash_attn_with_kvcache over its axes, every two values of which meet, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import tilekiln as tk

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch

AXES = {
    "dtype": ["fp16", "bf16", "fp32"],
    "hdim": [40, 59, 64, 96, 128, 192, 256],
    "mask": ["none", "causal", "local"],
    "heads": list(upstream.HEADS),
    "seqlens": [(1, 128), (1, 339), (3, 1024), (64, 800), (16, 130)],  # queries, and keys the cache has room for
    "page": [None, 128, 256, 24],
    "new": [False, True],
    "rotary": ["none", "interleaved", "halves"],
    "batch_idx": [False, True],
    "leftpad": [False, True],
    "lengths": ["tensor", "int", "none"],
    "alibi": [False, True],
    "softcap": [0.0, 5.0],
    "num_splits": [0, 1, 3],
    "lse": [False, True],
}


def allowed(case: dict[str, Any]) -> bool:
    """Rotation is of new keys, which land behind lengths; a table says the rows itself."""
    if case["rotary"] != "none" and not case["new"]:
        return False
    if case["new"] and case["lengths"] == "none":
        return False
    return not (case["page"] and case["batch_idx"])


CASES = upstream.pairwise(AXES, allowed)


def name(case: dict[str, Any]) -> str:
    return "-".join(f"{value[0]}x{value[1]}" if isinstance(value, tuple) else str(value) for value in case.values())


@pytest.fixture(autouse=True)
def libraries(flash, finds):
    finds(flash)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool):
    """x (seqlen, nheads, headdim) in fp32, rounded to its type."""
    half = cos.shape[1]
    c, s = cos[positions].float()[:, None], sin[positions].float()[:, None]
    wide = x[..., : 2 * half].float()
    first, second = (wide[..., 0::2], wide[..., 1::2]) if interleaved else wide.chunk(2, -1)
    pair = (first * c - second * s, first * s + second * c)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([turned.to(x.dtype), x[..., 2 * half :]], -1)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_matrix(face, case):
    seed = CASES.index(case)
    dtype, hdim, page = upstream.DTYPES[case["dtype"]], case["hdim"], case["page"]
    nheads, nheads_k = upstream.HEADS[case["heads"]]
    (seqlen_q, room), batch = case["seqlens"], 2
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def integers(low: int, high: int, size: int = batch) -> torch.Tensor:
        return torch.randint(low, high, (size,), generator=generator, dtype=torch.int32)

    q = normal(batch, seqlen_q, nheads, hdim)
    # The cache as rows of pages, and the table that says which are whose.
    rows = 4 if case["batch_idx"] else batch
    blocks = 1 if page is None else -(-room // page)
    pages = rows if page is None else batch * blocks + 2
    k_cache, v_cache = (normal(pages, page or room, nheads_k, hdim) for _ in range(2))
    where: dict[str, Any] = {}
    table = torch.arange(batch)[:, None]
    if page is not None:
        room = blocks * page
        table = torch.randperm(pages, generator=generator)[: batch * blocks].reshape(batch, blocks)
        where["block_table"] = table.int()
    elif case["batch_idx"]:
        table = torch.randperm(rows, generator=generator)[:batch, None]
        where["cache_batch_idx"] = table[:, 0].int()
    # Lengths, what is appended, and what of it is skipped.
    added = min(seqlen_q, 20) if case["new"] else 0
    lengths = integers(0, room - added + 1)
    if case["lengths"] != "tensor":
        lengths[:] = room if case["lengths"] == "none" else lengths[0].item()
    if case["lengths"] != "none":
        where["cache_seqlens"] = lengths if case["lengths"] == "tensor" else int(lengths[0])
    totals, skipped = lengths + added, torch.zeros(batch, dtype=torch.int32)
    if case["leftpad"]:
        skipped = where["cache_leftpad"] = (integers(0, 20) * (totals > 20)).int()
    if case["new"]:
        where["k"], where["v"] = normal(batch, added, nheads_k, hdim), normal(batch, added, nheads_k, hdim)
    if case["rotary"] != "none":
        angle = torch.rand(room + seqlen_q, (hdim // 2 if seed % 2 else hdim) // 16 * 8, generator=generator) * 6
        where["rotary_cos"], where["rotary_sin"] = angle.cos().to(dtype), angle.sin().to(dtype)
        where["rotary_interleaved"] = case["rotary"] == "interleaved"
    causal, window = case["mask"] == "causal", (-1, -1)
    if case["mask"] == "local":
        window = tuple(integers(1, room, 2).tolist())
    slopes = torch.rand(batch, nheads, generator=generator) * 0.3 if case["alibi"] else None

    def keys_of(cache: torch.Tensor, b: int) -> torch.Tensor:
        return cache[table[b]].flatten(0, 1)

    # The cache as it must be after the call, and attention over it.
    after = k_cache.clone(), v_cache.clone()
    expected = []
    for b in range(batch):
        begin, end = int(lengths[b]), int(totals[b])
        mine = q[b]
        new = (where["k"][b], where["v"][b]) if case["new"] else (None, None)
        if case["rotary"] != "none":
            angles = where["rotary_cos"], where["rotary_sin"]
            steps = torch.arange(seqlen_q) if case["mask"] != "none" else torch.zeros(seqlen_q, dtype=torch.int64)
            mine = rotated(mine, *angles, begin + steps, where["rotary_interleaved"])
            new = rotated(new[0], *angles, begin + torch.arange(added), where["rotary_interleaved"]), new[1]
        for cache, these in zip(after, new, strict=True):
            flat = keys_of(cache, b)
            if these is not None:
                flat[begin:end] = these
            cache[table[b]] = flat.unflatten(0, (len(table[b]), -1))
        k, v = (keys_of(cache, b)[int(skipped[b]) : end] for cache in after)
        size = seqlen_q, len(k)
        options = {
            "seen": upstream.visible(*size, causal, window), "softcap": case["softcap"],
            "bias": None if slopes is None else upstream.alibi(slopes[b], *size),
        }  # fmt: skip
        inputs = [x[None] for x in (mine, k, v)]
        exact, exact_lse = upstream.attention(*(x.float() for x in inputs), **options)
        expected.append((exact[0], upstream.attention(*inputs, **options)[0][0], exact_lse[0]))

    before = q.clone()
    made = face.flash_attn_with_kvcache(
        q, k_cache, v_cache, causal=causal, window_size=window, softcap=case["softcap"], alibi_slopes=slopes,
        num_splits=case["num_splits"], return_softmax_lse=case["lse"], **where,
    )  # fmt: skip
    out, lse = made if case["lse"] else (made, None)
    assert torch.equal(q, before), "q was written"
    for cache, right in ((k_cache, after[0]), (v_cache, after[1])):
        torch.testing.assert_close(cache, right, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
    exact, same, exact_lse = (torch.stack(x) for x in zip(*expected, strict=True))
    # Rotation rounds q and k, with or without fused products: a step to either side, which the scores feel.
    constant = 1e-5 if case["rotary"] == "none" else max(torch.finfo(dtype).eps, upstream.FP32)
    upstream.judge("out", out, exact, same, upstream.FORWARD, constant)
    if lse is not None:
        tolerance = 1e-4 if case["rotary"] == "none" else 20 * torch.finfo(dtype).eps
        torch.testing.assert_close(lse, exact_lse, rtol=tolerance, atol=max(tolerance, 1e-4))


def caches(nheads: int = 2, pages: int = 4, page: int = 32) -> tuple[torch.Tensor, ...]:
    q = upstream.normal(2, 1, nheads, 32, dtype=torch.float16, seed=0)
    return q, *(upstream.normal(pages, page, nheads, 32, dtype=torch.float16, seed=i) for i in (1, 2))


def int32(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.host_only("a table on a device is not read by the host")
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("lse", [False, True])
def test_a_table_too_short_is_a_runtime_error_that_names_it(face, softcap, lse):
    q, k_cache, v_cache = caches()
    options = {"block_table": int32([0, 1], [2, 3]), "softcap": softcap, "return_softmax_lse": lse}
    new = {"k": q.clone(), "v": q.clone()}
    face.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=63, **new, **options)
    before = k_cache.clone()
    for given in ({"cache_seqlens": int32(1, 64), **new}, {"cache_seqlens": int32(1, 65)}):
        with pytest.raises(RuntimeError, match="block_table: had 2 blocks of 32 keys a sequence, must have 3"):
            face.flash_attn_with_kvcache(q, k_cache, v_cache, **given, **options)
    with pytest.raises(RuntimeError, match=r"block_table: entry \(1, 0\) was 4, must be from 0 to 3"):
        face.flash_attn_with_kvcache(
            q, k_cache, v_cache, cache_seqlens=5, **{**options, "block_table": int32([0, 1], [4, 3])}
        )
    assert torch.equal(k_cache, before), "something was written all the same"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("k", "cache_seqlens"), "v: was None, must be given with k"),
        (("v", "cache_seqlens"), "k: was None, must be given with v"),
        (("k", "v"), "cache_seqlens: was None, must be given with k and v"),
        (("rotary_cos", "rotary_sin", "cache_seqlens"), "rotary_cos: was given, must be absent without k and v"),
        (("rotary_cos", "k", "v", "cache_seqlens"), "rotary_sin: was None, must be given with rotary_cos"),
        (("rotary_sin", "k", "v", "cache_seqlens"), "rotary_cos: was None, must be given with rotary_sin"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_goes_together(face, given, says):
    q, k_cache, v_cache = caches(pages=2)
    values = {"k": q, "v": q, "cache_seqlens": 3, "rotary_cos": torch.ones(40, 16), "rotary_sin": torch.ones(40, 16)}
    with pytest.raises(RuntimeError, match=says):
        face.flash_attn_with_kvcache(q, k_cache, v_cache, **{name: values[name] for name in given})


def test_errors_name_the_arguments_of_this_function(face):
    q, k_cache, v_cache = caches(pages=2)
    new = {"k": q.clone(), "v": q.clone()}
    with pytest.raises(ValueError, match=r"^cache_seqlens: sequence 1 was 32 long") as raised:
        face.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=int32(1, 32), **new)
    assert isinstance(raised.value, RuntimeError)
    with pytest.raises(tk.ArgumentError, match=r"^cache_seqlens: dtype was int64, must be int32"):
        face.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match=r"^num_splits: was 129"):
        face.flash_attn_with_kvcache(q, k_cache, v_cache, num_splits=129)
    with pytest.raises(RuntimeError, match=r"^k_cache: dtype was fp32, must be fp16"):
        face.flash_attn_with_kvcache(q, k_cache.float(), v_cache.float())


def test_views_of_caches_and_tables(face):
    """Layers side by side in one cache, tables and lengths that are slices of wider ones."""
    both = upstream.normal(2, 4, 32, 2, 2, 32, dtype=torch.float16, seed=1)
    k_cache, v_cache = both[:, :, :, 0].unbind(0)
    q, new = caches()[0], torch.ones(2, 2, 2, 64, dtype=torch.float16)[:, :1, :, 32:]
    wide = int32([9, 0, 1], [9, 3, 2])
    options = {"block_table": wide[:, 1:], "cache_seqlens": int32(40, 9, 33, 9)[::2], "causal": True}
    before = both.clone()
    out = face.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, **options)
    assert torch.equal(both[:, :, :, 1], before[:, :, :, 1]), "the other layer was written"
    options = {name: x.contiguous() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    dense = [x[:, :, 0].contiguous() for x in before]
    right = face.flash_attn_with_kvcache(q, *dense, new, new, **options)
    assert torch.equal(out, right)
    assert torch.equal(k_cache, dense[0])
    assert torch.equal(v_cache, dense[1])


def test_inputs_that_require_grad(face):
    """Serving code has parameters and no torch.no_grad(): the results have no gradient."""
    q, k_cache, v_cache = caches(pages=2)
    k = q.clone().requires_grad_()
    out, lse = face.flash_attn_with_kvcache(
        q.clone().requires_grad_(), k_cache, v_cache, k, k, cache_seqlens=3, return_softmax_lse=True
    )
    assert not out.requires_grad
    assert not lse.requires_grad
    assert torch.equal(k_cache[:, 3:4], k)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("made_within", [False, True])
def test_inference_mode(face, softcap, made_within):
    """Caches made before it or in it are written in place."""
    q, *cache = caches(pages=2)
    with torch.inference_mode():
        cache = [x.clone() for x in cache] if made_within else cache
        out = face.flash_attn_with_kvcache(q, *cache, q, q, cache_seqlens=3, softcap=softcap)
    assert torch.equal(cache[0][:, 3:4], q)
    right = face.flash_attn_with_kvcache(q, *(x.clone() for x in cache), cache_seqlens=4, softcap=softcap)
    assert torch.equal(out, right)


def test_autograd_knows_that_caches_are_written(face):
    q, k_cache, v_cache = caches(pages=2)
    weight = torch.ones_like(k_cache, requires_grad=True)
    loss = (weight * k_cache).sum()
    face.flash_attn_with_kvcache(q, k_cache, v_cache, q, q, cache_seqlens=3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_sequences_and_no_queries(face):
    q, k_cache, v_cache = caches(pages=2)
    assert face.flash_attn_with_kvcache(q[:0], k_cache[:0], v_cache[:0], cache_seqlens=3).shape == (0, 1, 2, 32)
    assert face.flash_attn_with_kvcache(q[:, :0], k_cache, v_cache).shape == (2, 0, 2, 32)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "return_softmax_lse": True}], ids=["plain", "softcap-lse"])
def test_compiled(face, options):
    """Under torch.compile(fullgraph=True), with the caches written in place."""

    def step(q, k_cache, v_cache, new, table):
        return face.flash_attn_with_kvcache(
            q, k_cache, v_cache, new, new, cache_seqlens=int32(40, 9), block_table=table, causal=True,
            cache_leftpad=int32(3, 2), **options,
        )  # fmt: skip

    table = int32([0, 1], [2, 3])
    [q, *first], second = caches(), caches()[1:]
    expected = step(q, *first, q * 2, table)
    made = torch.compile(step, fullgraph=True, backend="aot_eager")(q, *second, q * 2, table)
    torch.testing.assert_close(made, expected, rtol=0, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
