# SPDX-License-Identifier: MIT
"""compat.flash_attn_3 against attention in PyTorch: forms, masks, chunks, lengths in use, caches, fp8, gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
SIZES = ((37, 50), (50, 37), (1, 9))
"""Queries and keys."""


@pytest.fixture
def face(binding, load, monkeypatch):
    from tilekiln.compat.flash_attn_3 import flash_attn_interface

    found = [load("flash"), load("norm_default", targets="all")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    return flash_attn_interface


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def qkv(seqlen_q: int, seqlen_k: int, batch: int = 2, grad: bool = False, hdim: int = 32, dtype=torch.float32) -> list:
    shapes = (seqlen_q, 4), (seqlen_k, 2), (seqlen_k, 2)
    return [upstream.normal(batch, *one, hdim, dtype=dtype, seed=i, grad=grad) for i, one in enumerate(shapes)]


def seen(seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], chunk: int) -> torch.Tensor:
    mask = upstream.visible(seqlen_q, seqlen_k, causal, window)
    if chunk:
        row = (torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q).div(chunk, rounding_mode="floor")
        mask &= row == torch.arange(seqlen_k)[None].div(chunk, rounding_mode="floor")
    return mask


MASKS = list(itertools.product((False, True), ((-1, -1), (5, 2)), (0, 1, 16)))


@pytest.mark.parametrize(("causal", "window", "chunk"), MASKS)
def test_masks_with_gradients(face, causal, window, chunk):
    for seqlen_q, seqlen_k in SIZES:
        tensors = qkv(seqlen_q, seqlen_k, grad=True)
        mask = seen(seqlen_q, seqlen_k, causal, window, chunk)
        right, right_lse = upstream.attention(*tensors, seen=mask)
        options: dict[str, Any] = {"causal": causal, "window_size": window, "attention_chunk": chunk}
        out, lse = face.flash_attn_func(*tensors, **options, return_attn_probs=True)
        torch.testing.assert_close(out, right, **CLOSE)
        torch.testing.assert_close(lse, right_lse, **CLOSE)
        assert not lse.requires_grad
        dout = torch.randn_like(out)
        gradients = [torch.autograd.grad(one, tensors, dout) for one in (out, right)]
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)


def test_a_window_is_never_rounded_up(face):
    """FlashAttention 2 takes a side of seqlen_k and more as unbounded; here row 0 of seven over three keys sees
    none.
    """
    q, k, v = qkv(7, 3)
    right, _ = upstream.attention(q, k, v, seen=upstream.visible(7, 3, window=(-1, 3)))
    torch.testing.assert_close(face.flash_attn_func(q, k, v, window_size=(-1, 3)), right, **CLOSE)
    assert not right[:, 0].any()


@pytest.mark.parametrize("chunk", [0, 8])
@pytest.mark.parametrize("used", [False, True])
def test_packed_sequences(face, used, chunk):
    lengths_q, lengths_k = (5, 0, 30), (9, 4, 21)
    q, k, v = (torch.cat(x) for x in zip(*[[t[0] for t in qkv(a, b, 1)] for a, b in zip(lengths_q, lengths_k)]))  # noqa: B905
    tensors = [x.requires_grad_() for x in (q, k, v)]
    use_q, use_k = ((4, 0, 30), (9, 2, 13)) if used else (lengths_q, lengths_k)
    cu_q, cu_k = (int32(0, *itertools.accumulate(one)) for one in (lengths_q, lengths_k))
    in_use = {"seqused_q": int32(*use_q), "seqused_k": int32(*use_k)} if used else {}
    out, lse = face.flash_attn_varlen_func(
        *tensors, cu_q, cu_k, 30, 21, causal=True, attention_chunk=chunk, softcap=3.0, **in_use, return_attn_probs=True
    )
    right = torch.zeros_like(out)
    for b in range(3):
        at, key = int(cu_q[b]), int(cu_k[b])
        parts = [tensors[0][None, at : at + use_q[b]], *(x[None, key : key + use_k[b]] for x in tensors[1:])]
        mask = seen(use_q[b], use_k[b], True, (-1, -1), chunk)
        made, made_lse = upstream.attention(*parts, seen=mask, softcap=3.0)
        right = torch.cat((right[:at], made[0], right[at + use_q[b] :]))
        torch.testing.assert_close(lse[:, at : at + use_q[b]], made_lse[0], **CLOSE)
    torch.testing.assert_close(out, right, **CLOSE)
    dout = torch.randn_like(out)
    for ours, theirs in zip(*(torch.autograd.grad(one, tensors, dout) for one in (out, right)), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_packed_tensors(face):
    q, k, v = (x.detach() for x in qkv(6, 6))
    grouped = torch.cat((q, k, v), 2).requires_grad_()
    right = face.flash_attn_func(q, k, v, 0.2, True)
    made, lse = face.flash_attn_qkvpacked_func(grouped, 0.2, True, num_heads_q=4, return_attn_probs=True)
    torch.testing.assert_close(made, right)
    assert lse.shape == (2, 4, 6)
    alike = torch.stack((q, q + 1, q - 1), 2).requires_grad_()
    for chunk in (0, 4):
        out = face.flash_attn_qkvpacked_func(alike, causal=True, attention_chunk=chunk)
        exact, _ = upstream.attention(*alike.unbind(2), seen=seen(6, 6, True, (-1, -1), chunk))
        torch.testing.assert_close(out, exact, **CLOSE)
        dout = torch.randn_like(out)
        torch.testing.assert_close(
            *(torch.autograd.grad(one, alike, dout)[0] for one in (out, exact)), **CLOSE
        )  # fmt: skip
    for wrong, name in (((grouped, None), "num_heads_q"), ((grouped, 5), "num_heads_q"), ((q[0], None), "qkv")):
        with pytest.raises(RuntimeError, match=f"^{name}: "):
            face.flash_attn_qkvpacked_func(wrong[0], num_heads_q=wrong[1])


def test_autograd_classes(face):
    q, k, v = qkv(5, 5)
    for made, right in (
        (face.FlashAttnFunc.apply(q, k, v, 0.3, True), face.flash_attn_func(q, k, v, 0.3, True)),
        (
            face.FlashAttnQKVPackedFunc.apply(
                torch.cat((q, k, v), 2), 0.3, True, *(None,) * 3, (-1, -1), 0, 0.0, False, 4
            ),
            face.flash_attn_func(q, k, v, 0.3, True),
        ),
        (
            face.FlashAttnVarlenFunc.apply(q[0], k[0], v[0], int32(0, 5), int32(0, 5), None, int32(3), 5, 5, 0.3, True),
            face.flash_attn_varlen_func(
                q[0], k[0], v[0], int32(0, 5), int32(0, 5), 5, 5, seqused_k=int32(3), softmax_scale=0.3, causal=True
            ),
        ),
    ):
        assert torch.equal(made, right)


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """x (seqlen, nheads, hdim), of positions (seqlen)."""
    from tilekiln.compat.flash_attn.layers.rotary import apply_rotary_emb_torch

    return apply_rotary_emb_torch(x[None], cos[positions][None], sin[positions][None], interleaved)[0]


CACHES = {
    "paged": [False, True],
    "packed_q": [False, True],
    "new": ["none", "batched", "packed"],
    "rotary": [False, True],
    "causal": [False, True],
    "softcap": [0.0, 2.0],
    "leftpad": [False, True],
    "rows": [False, True],
    "rotary_seqlens": [False, True],
}


def possible(case: dict[str, Any]) -> bool:
    if case["rotary_seqlens"] and not case["rotary"]:
        return False
    return not (case["rotary"] and case["new"] == "none")


@pytest.mark.parametrize("case", upstream.pairwise(CACHES, possible), ids=str)
def test_caches(face, case):
    """Every two values of two axes meet."""
    room, page, hdim = 48, 16, 32
    lengths, fresh = [10, 0, 33], [2, 3, 1] if case["new"] == "packed" else [2, 2, 2]
    queries = [3, 1, 4] if case["packed_q"] else [3, 3, 3]
    random = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(shape, generator=random)  # noqa: E731
    keys, values = draw(5, room, 2, hdim), draw(5, room, 2, hdim)
    rows = [4, 0, 2] if case["rows"] else [0, 1, 2]
    options: dict[str, Any] = {"causal": case["causal"], "softcap": case["softcap"], "num_splits": 2}
    if case["paged"]:
        table = torch.randperm(15, generator=random).reshape(5, 3).to(torch.int32)
        pages = [x.unflatten(1, (3, page)).flatten(0, 1)[table.flatten().argsort()] for x in (keys, values)]
        options["page_table"] = table if case["rows"] else table[:3]
    else:
        pages = [keys.clone(), values.clone()]
    if case["rows"]:
        options["cache_batch_idx"] = int32(*rows)
    leftpad = [1, 0, 7] if case["leftpad"] else [0, 0, 0]
    if case["leftpad"]:
        options["cache_leftpad"] = int32(*leftpad)
    q = [draw(n, 4, hdim) for n in queries]
    new = [[draw(n, 2, hdim) for n in fresh] for _ in range(2)] if case["new"] != "none" else None
    cos, sin = draw(64, 8).cos(), draw(64, 8).sin()
    base = [5, 20, 0] if case["rotary_seqlens"] else lengths
    if case["rotary"]:
        options |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": False}
        if case["rotary_seqlens"]:
            options["rotary_seqlens"] = int32(*base)
    if case["packed_q"]:
        options |= {"cu_seqlens_q": int32(0, *itertools.accumulate(queries)), "max_seqlen_q": 4}
    if new:
        join = torch.cat if case["new"] == "packed" else torch.stack
        options |= {"k": join(new[0]), "v": join(new[1])}
        if case["new"] == "packed":
            options["cu_seqlens_k_new"] = int32(0, *itertools.accumulate(fresh))
    given = torch.cat(q) if case["packed_q"] else torch.stack(q)
    out, lse, *rest = face.flash_attn_with_kvcache(
        given, *pages, cache_seqlens=int32(*lengths), **options, return_softmax_lse=True
    )
    assert [x.numel() for x in rest] == [0, 0]
    for b in range(3):
        key, value, asked = keys[rows[b]].clone(), values[rows[b]].clone(), q[b]
        end = lengths[b]
        if new:
            fresh_k, end = new[0][b], lengths[b] + fresh[b]
            if case["rotary"]:
                fresh_k = rotate(fresh_k, cos, sin, base[b] + torch.arange(fresh[b]), False)
                steps = torch.arange(queries[b]) if case["causal"] else torch.zeros(queries[b], dtype=torch.long)
                asked = rotate(asked, cos, sin, base[b] + steps, False)
            key[lengths[b] : end], value[lengths[b] : end] = fresh_k, new[1][b]
        part = slice(leftpad[b], end)
        mask = upstream.visible(queries[b], end - leftpad[b], case["causal"])
        right, right_lse = upstream.attention(
            asked[None], key[None, part], value[None, part], seen=mask, softcap=case["softcap"]
        )
        at = sum(queries[:b])
        made = out[at : at + queries[b]] if case["packed_q"] else out[b]
        made_lse = lse[:, at : at + queries[b]] if case["packed_q"] else lse[b]
        torch.testing.assert_close(made, right[0], **CLOSE)
        torch.testing.assert_close(made_lse, right_lse[0], **CLOSE)
        if case["paged"]:
            where = table[rows[b]].long()
            held = [x[where].flatten(0, 1) for x in pages]
        else:
            held = [x[rows[b]] for x in pages]
        torch.testing.assert_close(held[0][:end], key[:end], **CLOSE)
        torch.testing.assert_close(held[1][:end], value[:end])


def test_chunks_over_a_cache(face):
    """One query a sequence begins at its chunk; more are refused in words."""
    q, k, v = qkv(1, 40)
    lengths = int32(17, 40)
    out = face.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True, attention_chunk=16)
    for b, (first, last) in enumerate(((16, 17), (32, 40))):
        right, _ = upstream.attention(q[b : b + 1], k[b : b + 1, first:last], v[b : b + 1, first:last])
        torch.testing.assert_close(out[b : b + 1], right, **CLOSE)
    with pytest.raises(RuntimeError, match=r"^attention_chunk: was 16 with 2 queries a sequence"):
        face.flash_attn_with_kvcache(qkv(2, 40)[0], k, v, cache_seqlens=lengths, attention_chunk=16)


def test_parts_are_combined(face):
    q, k, v = qkv(6, 40)
    right, right_lse = face.flash_attn_func(q, k, v, return_attn_probs=True)
    parts = [
        face.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True) for a, b in ((0, 7), (7, 30), (30, 40))
    ]
    outs = torch.stack([*(x for x, _ in parts), torch.full_like(right, torch.nan)])
    lses = torch.stack([*(x.transpose(1, 2) for _, x in parts), torch.full((2, 6, 4), -torch.inf)])
    out, lse = face.flash_attn_combine(outs, lses)
    torch.testing.assert_close(out, right, **CLOSE)
    torch.testing.assert_close(lse, right_lse.transpose(1, 2), **CLOSE)
    place = torch.empty_like(right, dtype=torch.bfloat16)
    assert face.flash_attn_combine(outs, lses, place, torch.bfloat16)[0] is place
    nothing, none = face.flash_attn_combine(outs[3:], lses[3:])
    assert not nothing.any()
    assert none.isneginf().all()
    for wrong, name in (
        ((outs[0], lses[0]), "out_partial"),
        ((outs, lses[:2]), "lse_partial"),
        ((outs, lses, place), "out"),
    ):
        with pytest.raises(RuntimeError, match=f"^{name}: "):
            face.flash_attn_combine(*wrong)


def test_scheduler_metadata(face):
    lengths = int32(4000, 17)
    made = face.get_scheduler_metadata(2, 1, 4096, 8, 2, 64, lengths, num_splits=5)
    assert made.dtype is torch.int32
    assert made.tolist() == [5]
    chosen = face.get_scheduler_metadata(2, 1, 4096, 8, 2, 64, lengths)
    assert 1 <= chosen.item() <= 128
    q, k, v = qkv(1, 40)
    given = face.flash_attn_with_kvcache(q, k, v, cache_seqlens=17, scheduler_metadata=chosen)
    torch.testing.assert_close(given, face.flash_attn_with_kvcache(q, k, v, cache_seqlens=17))
    with pytest.raises(RuntimeError, match=r"^scheduler_metadata: was torch.float32, must be int32"):
        face.flash_attn_with_kvcache(q, k, v, cache_seqlens=17, scheduler_metadata=chosen.float())


@pytest.fixture
def eight_bits(load, face, monkeypatch):
    found = [load("fp8"), load("flash")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    return face


def eight(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn)


@pytest.mark.parametrize("kind", ["none", "one", "heads"])
def test_fp8(eight_bits, kind):
    """Descales absent, one number spread over sequences and heads, and one of each sequence and head."""
    q, k, v = (eight(x) for x in qkv(150, 200, hdim=128))
    scales: list[Any] = [None] * 3
    if kind == "one":
        scales = [torch.tensor([one]).expand(2, 2) for one in (0.5, 2.0, 3.0)]
    elif kind == "heads":
        scales = [torch.rand(2, 2, generator=torch.Generator().manual_seed(i)) + 0.5 for i in range(3)]
    wide = [
        x.float() * (1.0 if one is None else one.repeat_interleave(x.shape[2] // 2, 1)[:, None, :, None])
        for x, one in zip((q, k, v), scales, strict=True)
    ]
    right, _ = upstream.attention(*wide, seen=upstream.visible(150, 200, True))
    out = eight_bits.flash_attn_func(q, k, v, None, True, None, *scales)
    assert out.dtype is torch.bfloat16
    assert (out.float() - right).abs().max() < 0.08 * right.abs().max()
    starts = int32(0, 150, 300), int32(0, 200, 400)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    packed = eight_bits.flash_attn_varlen_func(*flat, *starts, 150, 200, None, None, None, True, None, *scales)
    torch.testing.assert_close(packed.unflatten(0, (2, 150)), out)


def test_fp8_caches(eight_bits):
    q, k, v = (eight(x) for x in qkv(2, 64, hdim=128))
    scales = [torch.tensor([[one]]).expand(2, 2) for one in (0.5, 2.0, 3.0)]
    new = [eight(x) for x in qkv(1, 3, hdim=128)[1:]]
    cache = k.clone(), v.clone()
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
    out = eight_bits.flash_attn_with_kvcache(q, *cache, *new, cache_seqlens=int32(20, 50), causal=True, **named)
    assert out.dtype is torch.bfloat16
    for b, length in enumerate((20, 50)):
        assert torch.equal(cache[0][b, length : length + 3].float(), new[0][b].float())
        wide = [x[b : b + 1, : length + 3].float() * one for x, one in zip(cache, (2.0, 3.0), strict=True)]
        right, _ = upstream.attention(q[b : b + 1].float() * 0.5, *wide, seen=upstream.visible(2, length + 3, True))
        assert (out[b].float() - right[0]).abs().max() < 0.08 * right.abs().max()
    with pytest.raises(RuntimeError, match=r"^k_descale: had numbers of its own"):
        eight_bits.flash_attn_with_kvcache(q, *cache, cache_seqlens=20, k_descale=torch.ones(2, 2))


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_splits", 129), ("num_splits", -1), ("pack_gqa", 3), ("sm_margin", -1), ("attention_chunk", -2),
     ("softcap", -1.0), ("window_size", 3), ("window_size", None), ("qv", "q"), ("q_descale", "q"), ("v_descale", "q")],
)  # fmt: skip
def test_what_is_refused(face, name, value):
    q, k, v = qkv(5, 7)
    with pytest.raises(RuntimeError, match=f"^{name}: (was|had)"):
        face.flash_attn_func(q, k, v, **{name: q if value == "q" else value})


@pytest.mark.parametrize(
    ("name", "more"),
    [("cu_seqlens_k_new", {"cu_seqlens_k_new": int32(0, 1, 2)}), ("rotary_seqlens", {"rotary_seqlens": int32(0, 1)}),
     ("k_cache", {"cu_seqlens_q": int32(0, 1, 2), "cache_seqlens": int32(7, 8)}),
     ("page_table", {"cu_seqlens_q": int32(0, 1, 2), "cache_seqlens": int32(7, 8), "page_table": int32(0, 1)[:, None]}),
     ("cache_seqlens", {"cu_seqlens_q": int32(0, 1, 2), "cache_seqlens": int32(7)}),
     ("cache_leftpad", {"attention_chunk": 4, "cache_leftpad": int32(0, 0)}), ("qv", {"qv": int32(0)}),
     ("k_descale", {"k_descale": int32(0)})],
)  # fmt: skip
def test_what_is_refused_over_a_cache(face, name, more):
    q, k, v = qkv(1, 7)
    with pytest.raises(RuntimeError, match=f"^{name}: (was|had|has)"):
        face.flash_attn_with_kvcache(q.flatten(0, 1) if "cu_seqlens_q" in more else q, k, v, **more)


def test_a_full_cache_is_left_as_it_is(face):
    """Nothing is written before everything is checked."""
    q, k, v = qkv(1, 7)
    new = torch.ones(3, 2, 32)
    before = k.clone()
    with pytest.raises(
        RuntimeError, match=r"^k_cache: has room for 7 keys a sequence, must have 8: sequence 1 is that long"
    ):
        face.flash_attn_with_kvcache(
            q, k, v, new, new, cache_seqlens=int32(0, 6), cu_seqlens_k_new=int32(0, 1, 3)
        )  # fmt: skip
    assert torch.equal(k, before)


def test_helpers(face):
    assert [face.round_up_headdim(one) for one in (1, 64, 65, 200, 300)] == [64, 64, 96, 256, 256]
    assert face.round_multiple(129, 128) == 256
    x = torch.zeros(3, 4)
    assert face.maybe_contiguous(x.T).is_contiguous()
