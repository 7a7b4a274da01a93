# SPDX-License-Identifier: MIT
"""tilekiln.compat.aiter: signatures, results, and what each argument does that the matrix does not show."""

from __future__ import annotations

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def libraries(load, finds):
    finds(load("aiter"))


@pytest.fixture
def face(binding):
    import tilekiln.compat.aiter

    return tilekiln.compat.aiter


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def normal(*shape, seed=0, dtype=torch.bfloat16, grad=False):
    return upstream.normal(*shape, dtype=dtype, seed=seed, grad=grad)


def qkv(seqlen_q, seqlen_k, grad=False, hdim=64, batch=2):
    return (
        normal(batch, seqlen_q, 4, hdim, seed=1, grad=grad),
        normal(batch, seqlen_k, 2, hdim, seed=2, grad=grad),
        normal(batch, seqlen_k, 2, hdim, seed=3, grad=grad),
    )


def packed(total_q, total_k, grad=False, hdim=64):
    return tuple(x[0].detach().requires_grad_(grad) for x in qkv(total_q, total_k, hdim=hdim, batch=1))


def close(ours, exact, times=1.0):
    torch.testing.assert_close(ours.float(), exact.float(), atol=0.02 * times, rtol=0.02 * times)


@pytest.mark.parametrize("window", [None, 4, (None, None), (1,), (1, 2, 3, 4), "ab"])
def test_window_sizes_that_are_none_are_named(face, window):
    with pytest.raises(RuntimeError, match=r"^window_size: was .*, must be \(left, right\) or \(left, right, sink"):
        face.flash_attn_func(*qkv(5, 7), window_size=window)


def test_result_is_out_or_a_tuple_of_what_is_wanted(face):
    q, k, v = qkv(5, 7)
    out = face.flash_attn_func(q, k, v)
    assert isinstance(out, torch.Tensor)
    out, lse = face.flash_attn_func(q, k, v, return_lse=True)
    assert (lse.shape, lse.dtype) == ((2, 4, 5), torch.float32)
    out, bits = face.flash_attn_func(q, k, v, return_attn_probs=True)
    assert (bits.numel(), bits.dtype) == (0, torch.uint8)
    out, lse, bits = face.flash_attn_func(q, k, v, 0.5, return_lse=True, return_attn_probs=True)
    assert bits.shape == (2, 4, 5, 7)
    cu = int32(0, 5), int32(0, 7)
    out, lse, bits = face.flash_attn_varlen_func(
        q[0], k[0], v[0], *cu, 5, 10, dropout_p=0.5, return_lse=True, return_attn_probs=True
    )
    assert (lse.shape, bits.shape) == ((4, 5), (4, 5, 10))
    assert not bits[..., 7:].any()


def test_windows(face):
    """Two entries or three, the third counting the first keys; sides of seqlen_k and more are unbounded."""
    q, k, v = qkv(12, 9)
    wide = [x.float() for x in (q, k, v)]
    for window in ((2, 1), [2, 1, 0], torch.tensor([2, 1])):
        exact, _ = upstream.attention(*wide, seen=upstream.visible(12, 9, window=(2, 1)))
        close(face.flash_attn_func(q, k, v, window_size=window), exact)
    exact, _ = upstream.attention(*wide, seen=upstream.visible(12, 9, window=(1, 0), sink_size=3))
    close(face.flash_attn_func(q, k, v, window_size=(1, 0, 3)), exact)
    close(face.flash_attn_func(q, k, v, causal=True, window_size=(1, 5, 3)), exact)
    exact, _ = upstream.attention(*wide)
    close(face.flash_attn_func(q, k, v, window_size=(9, 9, 0)), exact)
    for window in ((1,), (1, 2, 3, 4)):
        with pytest.raises(ValueError, match=r"window_size: was .*, must be"):
            face.flash_attn_func(q, k, v, window_size=window)


def test_dropout_follows_torchs_generator(face):
    q, k, v = qkv(40, 50)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(face.flash_attn_func(q, k, v, 0.3))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_views_and_gradients_that_are_not_dense(face):
    base = normal(2, 64, 4, 9, seed=4)  # head dim before heads and tokens
    q = base.permute(0, 3, 2, 1)
    assert q.stride(-1) != 1
    dense = q.contiguous().requires_grad_()
    q = q.detach().requires_grad_()
    _, k, v = qkv(1, 9)
    [ours] = torch.autograd.grad(face.flash_attn_func(q, k, v).sum(), q)
    [theirs] = torch.autograd.grad(face.flash_attn_func(dense, k, v), dense, torch.ones(2, 9, 4, 64).bfloat16())
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("batch", "seqlen_q", "seqlen_k"), [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_empty(face, batch, seqlen_q, seqlen_k):
    q, k, v = qkv(seqlen_q, seqlen_k, grad=True, batch=batch)
    out, lse = face.flash_attn_func(q, k, v, return_lse=True)
    assert not out.any()
    assert torch.isneginf(lse).all()
    for gradient, of in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v), strict=True):
        assert gradient.shape == of.shape
        assert not gradient.any()


def test_deterministic_is_the_default_and_reaches_the_kernel(face, monkeypatch):
    from tilekiln.torch import calls

    asked = []
    monkeypatch.setattr(calls, "forward", lambda *_, **named: asked.append(named["deterministic"]) or (None,) * 4)
    q, k, v = qkv(5, 7)
    q.requires_grad_()  # without gradients a call so plain goes past it
    face.flash_attn_func(q, k, v)
    face.flash_attn_func(q, k, v, deterministic=False)
    assert asked == [True, None]  # None is what torch.use_deterministic_algorithms says


def test_out_and_short_sequences(face):
    """out lies as q does; padding, and sequences of min_seqlen_q queries or fewer, are left as they were."""
    q, k, v = packed(20, 30)
    cu_q, cu_k = int32(0, 4, 13), int32(0, 10, 25)
    padded_q, padded_k = int32(0, 6, 20), int32(0, 12, 30)
    out = torch.full_like(q, 7)
    where = {"cu_seqlens_q_padded": padded_q, "cu_seqlens_k_padded": padded_k}
    made, lse = face.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 9, 15, min_seqlen_q=4, out=out, return_lse=True, **where
    )
    assert made is out
    assert (out[:6] == 7).all()
    assert (out[15:] == 7).all()
    exact, exact_lse = upstream.attention(*(x[None].float() for x in (q[6:15], k[12:27], v[12:27])))
    close(out[6:15], exact[0])
    torch.testing.assert_close(lse[:, 6:15], exact_lse[0], atol=1e-3, rtol=1e-3)
    new, _ = face.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 15, min_seqlen_q=4, return_lse=True, **where)
    assert torch.equal(new[6:15], out[6:15])
    assert not new[:6].any()
    assert not new[15:].any()
    with pytest.raises(ValueError, match="min_seqlen_q: was 4, must be 0 when an input requires grad"):
        face.flash_attn_varlen_func(q.requires_grad_(), k, v, cu_q, cu_k, 9, 15, min_seqlen_q=4)
    with pytest.raises(ValueError, match="out: "):
        face.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 15, out=out)


@pytest.mark.parametrize("options", [{}, {"logits_soft_cap": 3.0}, {"bias": True}, {"sink_ptr": True}], ids=str)
def test_block_table(face, options):
    """The pages of a table give what the same keys give side by side."""
    q, _, _ = packed(14, 1, hdim=128)
    pages_k, pages_v = (normal(7, 16, 2, 128, seed=seed) for seed in (8, 9))
    table, cu_q, cu_k = int32(3, 1, 2, 0, 5, 4).view(2, 3), int32(0, 5, 14), int32(0, 20, 61)
    lengths = [20, 41]
    k, v = (
        torch.cat([pool[table[b].long()].flatten(0, 1)[:n] for b, n in enumerate(lengths)])
        for pool in (pages_k, pages_v)
    )
    if "bias" in options:
        options = {"bias": normal(14, 41, seed=4)}
    if "sink_ptr" in options:
        options = {"sink_ptr": torch.randn(4), "window_size": (6, 0, 2)}
    common = {"causal": True, "return_lse": True, **options}
    exact, exact_lse = face.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 41, **common)
    out, lse = face.flash_attn_varlen_func(q, pages_k, pages_v, cu_q, cu_k, 9, 41, block_table=table, **common)
    close(out, exact)
    torch.testing.assert_close(lse, exact_lse, atol=1e-3, rtol=1e-3)
    low = face.mha_varlen_fwd(
        q, pages_k, pages_v, cu_q, cu_k, 9, 41, 0, 0.0, None, options.get("logits_soft_cap", 0.0), False, True,
        *options.get("window_size", (-1, -1, 0)), True, False, None, table, options.get("bias"),
        sink_ptr=options.get("sink_ptr"),
    )  # fmt: skip
    assert torch.equal(low[0], out)
    assert torch.equal(low[1], lse)


def test_block_table_is_for_the_forward_alone(face):
    q, _, _ = packed(14, 1, hdim=128)
    pool, table, cu = normal(7, 16, 2, 128), int32(3, 1), int32(0, 14)
    with pytest.raises(RuntimeError, match=r"dropout_p: was 0.1, must be 0 with block_table"):
        face.flash_attn_varlen_func(q, pool, pool, cu, cu, 14, 14, dropout_p=0.1, block_table=table[None])
    with pytest.raises(RuntimeError, match=r"min_seqlen_q: was 3, must be 0 with block_table"):
        face.flash_attn_varlen_func(q, pool, pool, cu, cu, 14, 14, 3, block_table=table[None])
    with pytest.raises(RuntimeError, match=r"cu_seqlens_k_padded: was given, must be absent with block_table"):
        face.flash_attn_varlen_func(q, pool, pool, cu, cu, 14, 14, block_table=table[None], cu_seqlens_k_padded=cu)
    out = face.flash_attn_varlen_func(q.requires_grad_(), pool, pool, cu, cu, 14, 14, block_table=table[None])
    with pytest.raises(RuntimeError, match=r"block_table: was given, must be absent when gradients are wanted"):
        out.sum().backward()


def test_num_splits(face):
    q, k, v = qkv(2, 300, grad=True)
    exact, exact_lse = face.flash_attn_func(q, k, v, causal=True, return_lse=True)
    out, lse, bits = face.flash_attn_func(q, k, v, causal=True, return_lse=True, return_attn_probs=True, num_splits=5)
    close(out, exact)
    torch.testing.assert_close(lse, exact_lse, atol=1e-3, rtol=1e-3)
    assert bits.numel() == 0
    with pytest.raises(RuntimeError, match="num_splits: was 5, must be 0 or 1 when gradients are wanted"):
        out.sum().backward()
    with pytest.raises(RuntimeError, match="num_splits: was 5, must be 0 or 1 with dropout_p"):
        face.flash_attn_func(q, k, v, 0.1, num_splits=5)


def test_the_other_soft_cap_is_refused(face, monkeypatch):
    q, k, v = packed(5, 5)
    cu = int32(0, 5)
    expected = face.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, logits_soft_cap=2.0)
    monkeypatch.setenv("CK_TILE_ATTENTION_LOGITS_SOFT_CAP_DEFAULT", "1")
    with pytest.raises(ValueError, match=r"logits_soft_cap: was 2.0, must be 0 while CK_TILE_.*=1: that asks for s / "):
        face.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, logits_soft_cap=2.0)
    face.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5)
    monkeypatch.setenv("CK_TILE_ATTENTION_LOGITS_SOFT_CAP_DEFAULT", "0")
    assert torch.equal(face.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, logits_soft_cap=2.0), expected)


def test_below_autograd_batch(face):
    """mha_fwd and mha_bwd give what autograd gives, to the bit, and softmax_d."""
    from tilekiln.compat.aiter.ops import mha

    q, k, v = qkv(33, 40, grad=True)
    bias, sink, dout = normal(33, 40, grad=True), torch.randn(4, requires_grad=True), normal(2, 33, 4, 64, seed=9)
    torch.manual_seed(3)
    expected, expected_lse, bits = face.flash_attn_func(
        q, k, v, 0.2, causal=True, bias=bias, sink_ptr=sink, return_lse=True, return_attn_probs=True
    )
    gradients = torch.autograd.grad(expected, (q, k, v, bias, sink), dout)
    torch.manual_seed(3)
    out, lse, low_bits, rng_state = face.mha_fwd(
        q, k, v, 0.2, None, True, -1, 0, 0, True, True, bias=bias, sink_ptr=sink
    )
    assert (rng_state.shape, rng_state.dtype) == ((2,), torch.int64)
    for mine, theirs in zip((out, lse, low_bits), (expected, expected_lse, bits), strict=True):
        assert torch.equal(mine, theirs)
        assert not mine.requires_grad
    torch.manual_seed(3)
    again = mha._flash_attn_forward(
        q, k, v, 0.2, None, True, -1, 0, 0, bias, None, None, None, None, True, True, sink_ptr=sink
    )
    assert all(torch.equal(a, b) for a, b in zip(again, (out, lse, low_bits, rng_state), strict=True))
    places = [torch.full_like(x, 7) for x in (q, k, v)]
    dbias, d_sink = torch.empty_like(bias), torch.full_like(sink, 3)
    *made, softmax_d = face.mha_bwd(
        dout, q, k, v, out, lse, 0.2, None, True, -1, 0, True, *places, dbias, bias, rng_state=rng_state, sink=sink,
        d_sink=d_sink,
    )  # fmt: skip
    for mine, place in zip(made, places, strict=True):
        assert mine.data_ptr() == place.data_ptr()
    for mine, theirs in zip((*places, dbias), gradients[:4], strict=True):
        assert torch.equal(mine, theirs)
    torch.testing.assert_close(d_sink - 3, gradients[4], rtol=1e-4, atol=1e-4)  # added to what was there
    again = [torch.full_like(x, 7) for x in (q, k, v, bias)]
    more = torch.zeros_like(sink)
    only = mha._flash_attn_backward(
        dout, q, k, v, out, lse, *again, 0.2, None, True, -1, 0, bias, None, True, rng_state, False, 2, sink, more
    )
    for mine, theirs in zip((only, *again), (softmax_d, *places, dbias), strict=True):
        assert torch.equal(mine, theirs)
    torch.testing.assert_close(more, d_sink - 3, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(softmax_d, (dout.float() * out.float()).sum(-1).mT)
    with pytest.raises(ValueError, match="rng_state: was None, must be with dropout_p what the forward returned"):
        face.mha_bwd(dout, q, k, v, out, lse, 0.2, None, True, -1, 0, True)
    with pytest.raises(ValueError, match="d_sink: was given, must be absent without sink"):
        face.mha_bwd(dout, q, k, v, out, lse, 0.0, None, True, -1, 0, True, d_sink=d_sink)
    rest = (dout, q, k, v, out, lse, 0.0, None, True, -1, 0, True)
    with pytest.raises(
        ValueError, match=r"sink: was of shape \(4, 2\), must be \(2, 4\), \(batch, nheads\), or \(4,\)"
    ):
        face.mha_bwd(*rest, sink=torch.zeros(4, 2), d_sink=d_sink)
    with pytest.raises(ValueError, match=r"d_sink: was of shape \(2, 4\), must be \(4,\)"):
        face.mha_bwd(*rest, sink=sink, d_sink=torch.zeros(2, 4))


@pytest.mark.parametrize("varlen", [False, True])
def test_sinks_of_each_sequence(face, varlen):
    """sink (batch, nheads), by position as upstream's callers give it; no row needs more of it than the lse."""
    dout = normal(2, 9, 4, 64, seed=9)
    sinks = torch.randn(2, 4, generator=torch.Generator(DEVICE).manual_seed(0))
    q, k, v = (x.float() for x in qkv(9, 12))
    seen = upstream.visible(9, 12, True)
    inputs = [x.requires_grad_() for x in (q, k, v, sinks)]
    wide = [x.repeat_interleave(2, 2) for x in (k, v)]
    scores = torch.einsum("bihd,bjhd->bhij", q, wide[0]) / 8
    scores = torch.cat([scores.masked_fill(~seen, -torch.inf), sinks[:, :, None, None].expand(2, 4, 9, 1)], -1)
    lse = scores.logsumexp(-1)
    exact = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1)[..., :-1], wide[1])
    right = torch.autograd.grad(exact, inputs, dout.float())
    out, lse, sinks = exact.detach().bfloat16(), lse.detach(), sinks.detach()
    narrow = [x.detach().bfloat16() for x in (q, k, v)]
    d_sink = torch.ones(4)
    places = [torch.empty_like(x) for x in narrow]
    if varlen:
        cu = int32(0, 9, 18), int32(0, 12, 24)
        flat = (x.flatten(0, 1) for x in (dout, *narrow, out))
        face.mha_varlen_bwd(
            *flat, lse.transpose(0, 1).flatten(1), *cu, 9, 12, 0.0, None, False, True, -1, 0, True,
            *(x.flatten(0, 1) for x in places), None, None, None, None, None, sinks, d_sink,
        )  # fmt: skip
    else:
        face.mha_bwd(
            dout, *narrow, out, lse, 0.0, None, True, -1, 0, True, *places, None, None, None, None, None, sinks, d_sink
        )
    for mine, theirs in zip((*places, d_sink - 1), (*right[:3], right[3].sum(0)), strict=True):
        close(mine, theirs, 2)


def test_splits_below_autograd(face):
    from tilekiln.compat.aiter.ops import mha

    q, k, v = qkv(1, 300)
    rest = (0.0, None, True, -1, -1, 0, None, None, None, None, None, True, False)
    expected, expected_lse = face.flash_attn_func(q, k, v, causal=True, num_splits=3, return_lse=True)
    into = torch.empty_like(q)
    out, lse, bits, rng_state = mha._flash_attn_forward(q, k, v, *rest, 1, None, None, None, into, 3)
    assert out.data_ptr() == into.data_ptr()
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert (bits.numel(), rng_state.tolist()) == (0, [0, 0])
    with pytest.raises(RuntimeError, match="num_splits: was 3, must be 0 or 1 with dropout_p"):
        mha._flash_attn_forward(q, k, v, 0.1, *rest[1:], num_splits=3)


def test_below_autograd_varlen(face):
    from tilekiln.compat.aiter.ops import mha

    q, k, v = packed(20, 30, grad=True)
    sink, dout = torch.randn(4, requires_grad=True), normal(20, 4, 64, seed=9)
    cu, lengths = (int32(0, 4, 13), int32(0, 10, 25)), (9, 15)
    padded = {"cu_seqlens_q_padded": int32(0, 6, 20), "cu_seqlens_k_padded": int32(0, 12, 30)}
    torch.manual_seed(3)
    expected, expected_lse, bits = face.flash_attn_varlen_func(
        q, k, v, *cu, *lengths, 0, 0.2, None, 0.0, True, (5, 0, 1), deterministic=True, sink_ptr=sink, return_lse=True,
        return_attn_probs=True, **padded,
    )  # fmt: skip
    gradients = torch.autograd.grad(expected, (q, k, v, sink), dout)
    torch.manual_seed(3)
    common = (q, k, v, *cu, *lengths, 0, 0.2, None)
    out, lse, low_bits, rng_state = made = face.mha_varlen_fwd(
        *common, 0.0, False, True, 5, 0, 1, True, True, sink_ptr=sink, **padded
    )
    for mine, theirs in zip((out, lse, low_bits), (expected, expected_lse, bits), strict=True):
        assert torch.equal(mine, theirs)
    torch.manual_seed(3)
    everywhere = (q, k, v, *cu, *padded.values(), *lengths)  # by position, as upstream has them
    again = mha._flash_attn_varlen_forward(
        *everywhere, 0, 0.2, None, causal=True, window_size_left=5, window_size_right=0, sink_size=1, return_lse=True,
        return_softmax=True, sink_ptr=sink,
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(again, made, strict=True))
    for zero_tensors in (False, True):
        places, d_sink = [torch.full_like(x, 7) for x in (q, k, v)], torch.zeros(4)
        *_, softmax_d = face.mha_varlen_bwd(
            dout, q, k, v, out, lse, *cu, *lengths, 0.2, None, zero_tensors, True, 5, 0, True, *places,
            rng_state=rng_state, sink_size=1, sink=sink, d_sink=d_sink, **padded,
        )  # fmt: skip
        behind = [4, 5, *range(15, 20)], [10, 11, 27, 28, 29], [10, 11, 27, 28, 29]
        for mine, theirs, pad in zip(places, gradients, behind, strict=False):
            assert (mine[pad] == (0 if zero_tensors else 7)).all()
            mine[pad] = theirs[pad]
            assert torch.equal(mine, theirs)
        torch.testing.assert_close(d_sink, gradients[3], rtol=1e-4, atol=1e-4)
        assert softmax_d.shape == lse.shape
    out, lse, _, rng_state = face.mha_varlen_fwd(*common, 0.0, False, True, 5, 0, 0, True, True, **padded)
    made = []
    for call in (mha._flash_attn_varlen_backward, face.mha_varlen_bwd):
        places = [torch.zeros_like(x) for x in (q, k, v)]
        if call is face.mha_varlen_bwd:
            call(
                dout, q, k, v, out, lse, *cu, *lengths, 0.2, None, False, True, 5, 0, True, *places, None, rng_state,
                None, *padded.values(),
            )  # fmt: skip
        else:
            d = call(
                dout, q, k, v, out, lse, *places, *cu, *lengths, 0.2, None, True, 5, 0, None, True, rng_state, True, 1,
                False, *padded.values(),
            )  # fmt: skip
            assert d.shape == lse.shape
        made.append(places)
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))
    assert made[0][0].any()


def test_generators_and_absent_results(face):
    q, k, v = qkv(9, 9)
    rest = (0.3, None, False, -1, -1, 0, False, False)
    one, two = (face.mha_fwd(q, k, v, *rest, gen=torch.Generator(DEVICE).manual_seed(5)) for _ in range(2))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[3], two[3])
    assert one[3].any()
    assert one[1].numel() == one[2].numel() == 0
    out = torch.zeros_like(q)
    assert face.mha_fwd(q, k, v, 0.0, *rest[1:], out=out)[0] is out
    cu = int32(0, 9)
    out = torch.full_like(q[0], 7)
    face.mha_varlen_fwd(
        q[0], k[0], v[0], int32(0, 5), cu, 9, 9, 0, 0.0, None, 0.0, True, False, -1, -1, 0, False, False, out
    )
    assert out[:5].any()
    assert not out[5:].any()


def test_fp8_without_descales_and_shapes_of_descales(face):
    q, k, v = (x.to(torch.float8_e4m3fn) for x in qkv(9, 20, hdim=128))
    one = torch.ones(1)
    out = face.flash_attn_fp8_pertensor_func(q, k, v, one, one, one, causal=True)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, face.flash_attn_fp8_pertensor_func(q, k, v, None, None, None, causal=True))
    low, *_ = face.mha_fwd(
        q, k, v, 0.0, None, True, -1, 0, 0, False, False, q_descale=one, k_descale=one, v_descale=one
    )
    assert torch.equal(out, low)


def test_batch_prefill_says_that_it_has_no_backward(face):
    q = normal(6, 4, 128, grad=True)
    pool = normal(4, 16, 2, 128)
    out = face.mha_batch_prefill_func(
        q, pool, pool, int32(0, 6), int32(0, 1), int32(2), 6, 16, kv_last_page_lens=int32(9)
    )
    with pytest.raises(RuntimeError, match="mha_batch_prefill_func has no backward"):
        out.sum().backward()


@pytest.mark.host_only("lengths on a device are not read where max_seqlen is given")
def test_wrong_arguments_are_named_as_aiter_names_them(face):
    q, k, v = qkv(5, 7)
    flat = packed(5, 7)
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="sink_ptr: "):
            face.flash_attn_func(q, k, v, sink_ptr=torch.zeros(3))
    with pytest.raises(ValueError, match=r"bias: was of shape \(1, 5, 7\), must be \(queries, keys\)"):
        face.flash_attn_func(q, k, v, bias=normal(1, 5, 7))
    with pytest.raises(ValueError, match="bias: "):
        face.flash_attn_func(q, k, v, bias=normal(5, 6))
    with pytest.raises(ValueError, match="cu_seqlens_kv: "):
        face.flash_attn_func(q, k, v, cu_seqlens_q=int32(0, 5, 10), cu_seqlens_kv=int32(0, 7, 6))
    with pytest.raises(ValueError, match="logits_soft_cap: "):
        face.flash_attn_varlen_func(*flat, int32(0, 5), int32(0, 7), 5, 7, logits_soft_cap=-1.0)
    with pytest.raises(ValueError, match="cu_seqlens_q_padded: "):
        face.flash_attn_varlen_func(
            *flat, int32(0, 5), int32(0, 7), 5, 7, cu_seqlens_q_padded=int32(0, -4), cu_seqlens_k_padded=int32(0, 7)
        )
    for error in (LookupError, RuntimeError):
        with pytest.raises(error, match="dtype=fp32"):
            face.flash_attn_func(*(x.float() for x in (q, k, v)))


def test_what_is_not_here(face):
    with pytest.raises(AttributeError, match=r"^module 'tilekiln.compat.aiter' has no attribute 'nothing'"):
        _ = face.nothing
    for module in (face, face.ops.mha):  # the package has the names of its modules
        with pytest.raises(
            AttributeError,
            match=r"^aiter.ops.mha._mha_batch_prefill is not here: .*mha_batch_prefill_func takes the same",
        ):
            _ = module._mha_batch_prefill


def test_compiled(face):
    """Under torch.compile(fullgraph=True), gradients too."""
    q, k, v = qkv(9, 12, grad=True)
    bias, sink = normal(9, 12, grad=True), torch.randn(4, requires_grad=True)
    inputs = (q, k, v, bias, sink)

    def both(q, k, v, bias, sink):
        dense = face.flash_attn_func(q, k, v, bias=bias, sink_ptr=sink, window_size=(5, 0, 1))
        cu = torch.arange(3, dtype=torch.int32)
        rows = face.flash_attn_varlen_func(
            dense.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu * 9, cu * 12, 9, 12, logits_soft_cap=3.0
        )
        return rows.float().square().sum()

    expected = both(*inputs)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")(*inputs)
    torch.testing.assert_close(compiled, expected)
    for mine, theirs in zip(*(torch.autograd.grad(y, inputs) for y in (compiled, expected)), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-2, rtol=1e-2)


def test_classes_and_pages_below_autograd(face):
    """FlashAttnFunc and FlashAttnVarlenFunc give the functions' results, without a backward where it is not wanted."""
    q, k, v = qkv(5, 7, grad=True)
    starts_q, starts_k = int32(0, 5, 10), int32(0, 7, 14)
    out, lse = face.FlashAttnFunc.apply(q, k, v, 0.0, None, True, (-1, -1, 0), None, None, True, True, False, True)
    assert out.equal(face.flash_attn_func(q, k, v, causal=True))
    assert out.requires_grad
    assert lse.shape == (2, 4, 5)
    rows = [one.flatten(0, 1) for one in (q, k, v)]
    more = None, None, True, False, False, None, None, False
    made = face.FlashAttnVarlenFunc.apply(*rows, starts_q, starts_k, 5, 7, 0, 0.0, None, 0.0, True, (-1, -1, 0), *more)
    assert made.equal(out.flatten(0, 1))
    assert not made.requires_grad
    pages = [one.detach().flatten(0, 1) for one in (q, k, v)]
    found = face.mha_batch_prefill(
        *pages, starts_q, starts_k, torch.arange(14, dtype=torch.int32), 5, 7, 0.0, 64**-0.5, 0.0, False, True, -1, -1,
        0, True, False, kv_last_page_lens=int32(1, 1),
    )  # fmt: skip
    close(found[0], out.flatten(0, 1))
    assert found[1].shape == (4, 10)
    assert found[2].numel() == 0
    with pytest.raises(ValueError, match="bias: was a tensor, must be absent here"):
        face.mha_batch_prefill(
            *pages, starts_q, starts_k, starts_q, 5, 7, 0.0, 1.0, 0.0, False, True, -1, -1, 0, True, False, bias=q
        )
