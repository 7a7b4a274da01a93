# SPDX-License-Identifier: MIT
"""compat.flash_attn.cute against attention in PyTorch: forms, windows, sinks, lengths in use, pages, gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture
def face(binding, load, monkeypatch):
    from tilekiln.compat.flash_attn.cute import interface

    found = [load("flash"), load("fp32")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    return interface


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def qkv(seqlen_q: int, seqlen_k: int, batch: int = 2, grad: bool = False) -> list[torch.Tensor]:
    shapes = (seqlen_q, 4), (seqlen_k, 2), (seqlen_k, 2)
    return [upstream.normal(batch, *one, 32, dtype=torch.float32, seed=i, grad=grad) for i, one in enumerate(shapes)]


WINDOWS = [((None, None), (-1, -1)), ((4, None), (4, -1)), ((None, 2), (-1, 2)), ((3, 1), (3, 1)), ((-1, -1), (-1, -1))]


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "meant"), WINDOWS)
def test_windows_and_sinks_with_gradients(face, window, meant, causal, sink):
    for seqlen_q, seqlen_k in ((9, 14), (14, 9)):
        tensors = qkv(seqlen_q, seqlen_k, grad=True)
        logits = torch.randn(4, generator=torch.Generator().manual_seed(5)).requires_grad_() if sink else None
        right, right_lse = upstream.attention(
            *tensors, seen=upstream.visible(seqlen_q, seqlen_k, causal, meant), sink=logits, softmax_scale=0.3
        )
        options: dict[str, Any] = {"causal": causal, "window_size": window, "learnable_sink": logits}
        out, lse = face.flash_attn_func(*tensors, softmax_scale=0.3, **options, return_lse=True)
        torch.testing.assert_close(out, right, **CLOSE)
        torch.testing.assert_close(lse, right_lse, **CLOSE)
        wanted = [*tensors, *([logits] if sink else [])]
        dout = torch.randn_like(out)
        for ours, theirs in zip(*(torch.autograd.grad(one, wanted, dout) for one in (out, right)), strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)


def test_results_are_two(face):
    q, k, v = qkv(5, 7)
    out, lse = face.flash_attn_func(q, k, v, softcap=2.0)
    assert lse is None
    torch.testing.assert_close(out, upstream.attention(q, k, v, softcap=2.0)[0], **CLOSE)
    apply = face.FlashAttnFunc.apply(q, k, v, None, None, 0.3, True, (None, None), None, 0.0, 1, None, True)
    assert torch.equal(apply[0], face.flash_attn_func(q, k, v, softmax_scale=0.3, causal=True)[0])


FORMS = list(itertools.product((False, True), (False, True), (False, True)))


@pytest.mark.parametrize(("packed_q", "packed_k", "used"), FORMS)
def test_lengths_of_their_own(face, packed_q, packed_k, used):
    """Queries and keys packed or not, whole or used in part."""
    lengths_q, lengths_k = ([5, 3, 8], [9, 4, 11])
    draw = [upstream.normal(3, 11, heads, 32, dtype=torch.float32, seed=i) for i, heads in enumerate((4, 2, 2))]
    if not packed_q:
        lengths_q = [8] * 3
    if not packed_k:
        lengths_k = [11] * 3
    use_q, use_k = ([4, 3, 2], [9, 1, 10]) if used else (lengths_q, lengths_k)
    parts = [
        [draw[0][b, : lengths_q[b]] for b in range(3)],
        *([one[b, : lengths_k[b]] for b in range(3)] for one in draw[1:]),
    ]
    joins = [torch.cat if packed_q else torch.stack, *[torch.cat if packed_k else torch.stack] * 2]
    tensors = [join(part).requires_grad_() for join, part in zip(joins, parts, strict=True)]
    options: dict[str, Any] = {"causal": True, "softmax_scale": 0.2}
    if packed_q:
        options |= {"cu_seqlens_q": int32(0, *itertools.accumulate(lengths_q)), "max_seqlen_q": 8}
    if packed_k:
        options |= {"cu_seqlens_k": int32(0, *itertools.accumulate(lengths_k))}
    if used:
        options |= {"seqused_q": int32(*use_q), "seqused_k": int32(*use_k)}
    out, lse = face.flash_attn_varlen_func(*tensors, **options, return_lse=True)
    assert out.shape == tensors[0].shape
    at = [sum(lengths_q[:b]) for b in range(3)]
    row = lambda x, b: x[at[b] : at[b] + use_q[b]] if packed_q else x[b, : use_q[b]]  # noqa: E731
    key = [sum(lengths_k[:b]) for b in range(3)]
    col = lambda x, b: x[key[b] : key[b] + use_k[b]] if packed_k else x[b, : use_k[b]]  # noqa: E731
    made, rights = [], []
    for b in range(3):
        mine = row(tensors[0], b)[None], col(tensors[1], b)[None], col(tensors[2], b)[None]
        right, right_lse = upstream.attention(*mine, seen=upstream.visible(use_q[b], use_k[b], True), softmax_scale=0.2)
        torch.testing.assert_close(row(out, b), right[0], **CLOSE)
        of_b = lse[:, at[b] : at[b] + use_q[b]] if packed_q else lse[b, :, : use_q[b]]
        torch.testing.assert_close(of_b, right_lse[0], **CLOSE)
        made.append(row(out, b).square().sum())
        rights.append(right.square().sum())
    for ours, theirs in zip(*(torch.autograd.grad(sum(one), tensors) for one in (made, rights)), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    order = (options.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "max_seqlen_q"))
    applied = face.FlashAttnVarlenFunc.apply(*tensors, None, *order, None, None, None, None, 0.2, True)
    assert torch.equal(applied[0], out)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("packed", [False, True])
def test_pages(face, packed, softcap):
    q, k, v = qkv(3, 48, batch=2)
    table = int32(5, 0, 2, 1, 4, 3).reshape(2, 3)
    pages = [x.unflatten(1, (3, 16)).flatten(0, 1)[table.flatten().argsort()] for x in (k, v)]
    lengths = int32(20, 48)
    options: dict[str, Any] = {"page_table": table, "seqused_k": lengths, "causal": True, "softcap": softcap}
    given = q.flatten(0, 1) if packed else q
    if packed:
        options |= {"cu_seqlens_q": int32(0, 3, 6), "max_seqlen_q": 3}
    out, lse = face.flash_attn_varlen_func(given, *pages, **options, return_lse=True)
    out, lse = (out.unflatten(0, (2, 3)), lse.unflatten(1, (2, 3)).transpose(0, 1)) if packed else (out, lse)
    for b, length in enumerate(lengths.tolist()):
        right, right_lse = upstream.attention(
            q[b : b + 1],
            k[b : b + 1, :length],
            v[b : b + 1, :length],
            seen=upstream.visible(3, length, True),
            softcap=softcap,
        )
        torch.testing.assert_close(out[b], right[0], **CLOSE)
        torch.testing.assert_close(lse[b], right_lse[0], **CLOSE)
    whole = face.flash_attn_varlen_func(q, *pages, page_table=table)[0]
    torch.testing.assert_close(whole, upstream.attention(q, k, v)[0], **CLOSE)
    out, _ = face.flash_attn_varlen_func(given.clone().requires_grad_(), *pages, **options)
    with pytest.raises(RuntimeError, match=r"pages have no backward"):
        out.sum().backward()


@pytest.mark.parametrize(
    "name",
    ["qv", "gather_kv_indices", "score_mod", "mask_mod", "aux_tensors", "aux_scalars", "block_sparse_tensors"],
)
def test_arguments_without_a_kernel(face, name):
    q, k, v = qkv(5, 7)
    functions = [face.flash_attn_varlen_func]
    if name in ("qv", "gather_kv_indices", "aux_scalars"):
        functions.append(face.flash_attn_func)
    for function in functions:
        with pytest.raises(RuntimeError, match=rf"^{name}: was given, must be None: .{{20,}}"):
            function(q, k, v, **{name: [1]})


@pytest.mark.parametrize("window", [(-2, 3), (3, -1), (-1, 0), 4, ("a", 1)])
def test_windows_that_mean_something_else_upstream(face, window):
    q, k, v = qkv(5, 7)
    with pytest.raises(RuntimeError, match=r"^window_size: was .*, must be "):
        face.flash_attn_func(q, k, v, window_size=window)
    if window == (3, -1):  # causal says the right side
        out, _ = face.flash_attn_func(q, k, v, window_size=window, causal=True)
        right, _ = upstream.attention(q, k, v, seen=upstream.visible(5, 7, True, (3, 0)))
        torch.testing.assert_close(out, right, **CLOSE)


def test_what_is_refused(face):
    q, k, v = qkv(5, 16)
    table = int32(0, 1)[:, None]
    for name, more in (
        ("seqlen_k_per_split", {"seqlen_k_per_split": 64}),
        ("cu_seqlens_k", {"page_table": table, "cu_seqlens_k": int32(0, 1, 2)}),
        ("seqused_q", {"page_table": table, "seqused_q": int32(1, 2)}),
    ):
        with pytest.raises(RuntimeError, match=f"^{name}: was given, must be None"):
            face.flash_attn_varlen_func(q, k, v, **more)
    with pytest.raises(RuntimeError, match=r"^learnable_sink: "):
        face.flash_attn_func(q, k, v, learnable_sink=torch.zeros(3))


def test_parts_are_combined(face):
    q, k, v = qkv(6, 40)
    right, right_lse = face.flash_attn_func(q, k, v, return_lse=True)
    parts = [face.flash_attn_func(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 7), (7, 40))]
    outs, lses = torch.stack([x for x, _ in parts]), torch.stack([x.transpose(1, 2) for _, x in parts])
    out, lse = face.flash_attn_combine(outs, lses)
    torch.testing.assert_close(out, right, **CLOSE)
    torch.testing.assert_close(lse, right_lse.transpose(1, 2), **CLOSE)
    packed, none = face.flash_attn_combine(outs.flatten(1, 2), lses.flatten(1, 2), return_lse=False)
    assert none is None
    assert torch.equal(packed.unflatten(0, (2, 6)), out)
    with pytest.raises(RuntimeError, match=r"^out_partial: had 3 dimensions"):
        face.flash_attn_combine(outs[0, 0], lses[0, 0])


def test_scheduler_metadata(face):
    made = face.get_scheduler_metadata(1, 4096, 8, 2, 64, 3, cu_seqlens_q=int32(0, 1, 2))
    assert made.num_splits_dynamic_ptr.tolist() == [3, 3]
    q, k, v = qkv(5, 16)
    given = face.flash_attn_varlen_func(q, k, v, seqused_k=int32(3, 16), scheduler_metadata=made)[0]
    assert torch.equal(given, face.flash_attn_varlen_func(q, k, v, seqused_k=int32(3, 16))[0])
    for more in ({}, {"seqused_k": int32(3, 16), "cu_seqlens_k": int32(0, 1)}):
        with pytest.raises(RuntimeError, match=r"^cu_seqlens_q: "):
            face.get_scheduler_metadata(1, 4096, 8, 2, 64, 3, **more)


@pytest.mark.day
def test_functions_and_tiles(face, tmp_path, monkeypatch):
    from tilekiln.compat.flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    monkeypatch.setenv("TILEKILN_JIT", str(tmp_path))
    q, k, v = qkv(200, 260, grad=True)
    slope = torch.randn(4, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def score_mod(score, b, h, q, k, seqlen_info, aux_tensors):
        return score + aux_tensors[0][h] * (k - q - seqlen_info.seqlen_k + seqlen_info.seqlen_q)

    def mask_mod(b, h, q, k, seqlen_info, aux_tensors):
        return k <= q + 70

    counts, whole = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[1, 0]]], dtype=torch.int32)
    numbers = torch.tensor([[[[1, 0, 2], [2, 1, 0]]]], dtype=torch.int32)
    tiles = BlockSparseTensorsTorch(counts, numbers, whole, torch.zeros_like(numbers))
    i, j = torch.arange(200)[:, None], torch.arange(260)[None]
    seen = torch.where(i < 128, (j < 128) | (j < 256) & (j <= i + 70), (j >= 128) & (j <= i + 70))
    distance = j - i - 60

    options = {"score_mod": score_mod, "mask_mod": mask_mod, "aux_tensors": [slope], "block_sparse_tensors": tiles}
    out, lse = face.flash_attn_func(q, k, v, causal=True, return_lse=True, **options)
    many_k, many_v = (one.repeat_interleave(2, 2).transpose(1, 2) for one in (k, v))
    logits = q.transpose(1, 2) @ many_k.mT * 32**-0.5 + slope[:, None, None] * distance
    logits = logits.where(seen, -torch.inf)
    right = (logits.softmax(-1) @ many_v).transpose(1, 2)
    torch.testing.assert_close(out, right, **CLOSE)
    torch.testing.assert_close(lse, logits.logsumexp(-1), **CLOSE)
    wanted, dout = [q, k, v, slope], torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    for ours, theirs in zip(*(torch.autograd.grad(one, wanted, dout) for one in (out, right)), strict=True):
        # The slope's is a sum over 400 rows, both in fp32, of distances up to 260 times terms of either sign.
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2 if ours.dim() == 1 else 2e-5)
    with pytest.raises(RuntimeError, match=r"^softcap: was given, must be None: write it into score_mod"):
        face.flash_attn_func(q, k, v, softcap=2.0, **options)
