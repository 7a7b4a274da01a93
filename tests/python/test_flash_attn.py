# SPDX-License-Identifier: MIT
"""compat.flash_attn: what its callers rely on, one by one. The wide comparison is test_flash_attn_matrix.py."""

from __future__ import annotations

import itertools
import math

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def libraries(flash, finds):
    finds(flash)


@pytest.fixture
def interface(binding):
    from tilekiln.compat.flash_attn import flash_attn_interface

    return flash_attn_interface


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def qkv(seqlen_q: int, seqlen_k: int, nheads=2, nheads_k=2, hdim=32, dtype=torch.float16, batch=2, grad=False) -> list:
    sizes = (seqlen_q, nheads), (seqlen_k, nheads_k), (seqlen_k, nheads_k)
    return [upstream.normal(batch, *size, hdim, dtype=dtype, seed=i, grad=grad) for i, size in enumerate(sizes)]


def close(ours: torch.Tensor, exact: torch.Tensor, times: float = 4) -> None:
    """Within a few steps of the type at the size of the values."""
    assert ours.shape == exact.shape
    if not exact.numel():
        return
    step = torch.finfo(ours.dtype).eps * max(exact.abs().max().item(), 1)
    assert (ours.float() - exact.float()).abs().max().item() <= times * step


def test_names_of_the_wrapped_functions(interface):
    """diffusers imports these, some versions without a guard."""
    for name in ("forward", "varlen_forward", "backward", "varlen_backward"):
        wrapped = getattr(interface, f"_wrapped_flash_attn_{name}")
        assert wrapped is getattr(interface, f"_flash_attn_{name}")


@pytest.mark.parametrize("p", [0.0, 0.2])
def test_flash_attn_func_as_an_autograd_function(face, interface, p):
    made = []
    for call in (
        lambda *x: interface.FlashAttnFunc.apply(*x, p, 0.3, True, (3, 0), 0.0, None, True, True, True),
        lambda *x: face.flash_attn_func(*x, p, 0.3, True, (3, 0), 0.0, None, True, True),
    ):
        q, k, v = qkv(5, 7, grad=True)
        torch.manual_seed(3)
        out, lse, s_dmask = call(q, k, v)
        assert not lse.requires_grad
        out.float().square().sum().backward()
        made.append((out, lse, s_dmask, q.grad, k.grad, v.grad))
    for ours, right in zip(*made, strict=True):
        assert torch.equal(ours, right)
    alone = interface.FlashAttnFunc.apply(*qkv(5, 7), 0.0, 0.3, True, (3, 0), 0.0, None, True, False, False)
    assert isinstance(alone, torch.Tensor)


def test_one_block_holds_every_key(interface):
    """Upstream's tests undo by it how its kernels scale S_dmask, block by block: nothing is to be undone here."""
    assert interface._get_block_size_n(torch.device("cpu"), 64, True, False) >= 2**31 - 1


def test_maybe_contiguous(interface):
    x = torch.zeros(3, 4)
    assert interface.maybe_contiguous(None) is None
    assert interface.maybe_contiguous(x) is x
    assert interface.maybe_contiguous(x.T).is_contiguous()


@pytest.mark.parametrize("window", [None, 4, (None, None), (1,), (1, 2, 3), "ab"])
def test_window_sizes_that_are_none_are_named(face, window):
    with pytest.raises(RuntimeError, match=r"^window_size: was .*, must be \(left, right\), two integers"):
        face.flash_attn_func(*qkv(5, 7), window_size=window)


def test_causal_is_bottom_right_aligned(face):
    q, k, v = qkv(3, 5)
    out, lse, _ = face.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    seen = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    exact, exact_lse = upstream.attention(q.float(), k.float(), v.float(), seen=seen)
    close(out, exact)
    close(lse, exact_lse, 100)


def test_window_sizes_are_tuples_lists_or_tensors(face):
    q, k, v = qkv(7, 9)
    exact, _ = upstream.attention(q.float(), k.float(), v.float(), seen=upstream.visible(7, 9, window=(2, 1)))
    for window in ((2, 1), [2, 1], torch.tensor([2, 1]), (torch.tensor(2), torch.tensor(1))):
        close(face.flash_attn_func(q, k, v, window_size=window), exact)


def test_windows_of_seqlen_k_and_more_are_unbounded(face):
    """Seven queries over three keys: row 0 would see keys up to 0 + 3 - 7 + right, which is none for right = 3."""
    q, k, v = qkv(7, 3)
    exact, _ = upstream.attention(q.float(), k.float(), v.float())
    bounded, _ = upstream.attention(q.float(), k.float(), v.float(), seen=upstream.visible(7, 3, window=(-1, 2)))
    for window in ((3, 3), (-1, 3), (-1, 100), (100, -1), (-5, -5)):
        close(face.flash_attn_func(q, k, v, window_size=window), exact)
    close(face.flash_attn_func(q, k, v, window_size=(-1, 2)), bounded)
    cu_q, cu_k = int32(0, 7, 14), int32(0, 3, 6)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    out = face.flash_attn_varlen_func(*flat, cu_q, cu_k, 7, 3, window_size=(-1, 3))
    close(out.unflatten(0, (2, 7)), exact)


def test_causal_overrules_the_right_side(face):
    q, k, v = qkv(6, 6)
    exact, _ = upstream.attention(q.float(), k.float(), v.float(), seen=upstream.visible(6, 6, True, (2, 0)))
    close(face.flash_attn_func(q, k, v, causal=True, window_size=(2, 4)), exact)


@pytest.mark.parametrize("hdim", [59, 64])
def test_the_scale_is_that_of_the_head_dim(face, hdim):
    """59 is computed by kernels for 64."""
    q, k, v = qkv(5, 8, hdim=hdim)
    exact, _ = upstream.attention(q.float(), k.float(), v.float(), softmax_scale=hdim**-0.5)
    close(face.flash_attn_func(q, k, v), exact)
    half, _ = upstream.attention(q.float(), k.float(), v.float(), softmax_scale=0.5)
    close(face.flash_attn_func(q, k, v, softmax_scale=0.5), half)


def test_rows_without_keys(face):
    q, k, v = qkv(6, 4, grad=True)
    out, lse, _ = face.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (out[:, :2] == 0).all()
    assert torch.isneginf(lse[..., :2]).all()
    assert torch.isfinite(lse[..., 2:]).all()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert (gradients[0][:, :2] == 0).all()
    assert all(torch.isfinite(x).all() for x in gradients)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(0, 4, 2), (4, 0, 2), (0, 0, 2), (4, 4, 0)])
def test_nothing_at_all(face, seqlen_q, seqlen_k, batch):
    q, k, v = qkv(seqlen_q, seqlen_k, nheads=4, batch=batch, grad=True)
    out, lse, _ = face.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert out.shape == q.shape
    assert (out == 0).all()
    assert lse.shape == (batch, 4, seqlen_q)
    assert torch.isneginf(lse).all()
    for gradient, x in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v), strict=True):
        assert gradient.shape == x.shape
        assert (gradient == 0).all()
    cu_q, cu_k = (torch.arange(batch + 1, dtype=torch.int32) * x for x in (seqlen_q, seqlen_k))
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    out, lse, _ = face.flash_attn_varlen_func(*flat, cu_q, cu_k, seqlen_q, seqlen_k, return_attn_probs=True)
    assert out.shape == flat[0].shape
    assert lse.shape == (4, batch * seqlen_q)
    out.sum().backward()
    assert q.grad is not None
    assert (q.grad == 0).all()


@pytest.mark.parametrize("dtype", upstream.DTYPES)
def test_dtypes(face, dtype):
    q, k, v = qkv(9, 13, dtype=upstream.DTYPES[dtype], hdim=40, grad=True)
    dout = torch.randn_like(q)
    out = face.flash_attn_func(q, k, v)
    assert out.dtype == q.dtype
    exact, same = upstream.exact_and_same(lambda *x: upstream.attention(*x)[0], (q, k, v), dout)
    upstream.judge_all(("out", "dq", "dk", "dv"), [out, *torch.autograd.grad(out, (q, k, v), dout)], exact, same)


def test_a_soft_cap_comes_before_alibi(face):
    """As CUDA's flash_attn: cap tanh(s / cap) - slope distance. A slope of 2 goes far beyond a cap of 1."""
    q, k, v = qkv(9, 12, dtype=torch.float32, grad=True)
    slopes = torch.tensor([2.0, 0.1])
    out = face.flash_attn_func(q, k, v, softcap=1.0, alibi_slopes=slopes, causal=True)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    distance = torch.arange(12)[None] - torch.arange(9)[:, None] - 3
    scores = torch.tanh(torch.einsum("bihd,bjhd->bhij", *wide[:2]) * 32**-0.5) - slopes[:, None, None] * distance.abs()
    p = scores.masked_fill(distance > 0, -torch.inf).softmax(-1)
    exact = torch.einsum("bhij,bjhd->bihd", p, wide[2])
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    dout = torch.randn_like(out)
    made, right = torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(exact, wide, dout.double())
    for mine, its in zip(made, right, strict=True):
        torch.testing.assert_close(mine.double(), its, rtol=1e-5, atol=1e-5)


def test_deterministic_reaches_the_kernel(face, monkeypatch):
    from tilekiln.torch import calls, operators

    monkeypatch.setattr(calls, "recorded_attention", None)  # which is C++, where no call is seen
    seen = []
    for module, name in ((operators, "_call"), (calls, "_call")):
        real = getattr(module, name)

        def watched(operator, arrays, arguments, real=real):
            if operator == "fmha_bwd":
                seen.append(arguments.get("deterministic", False))
            return real(operator, arrays, arguments)

        monkeypatch.setattr(module, name, watched)
    x = upstream.normal(1, 5, 3, 2, 16, dtype=torch.float16, seed=0, grad=True)
    q, k, v = qkv(5, 5, grad=True)
    for wanted in (True, False):
        face.flash_attn_func(q, k, v, deterministic=wanted).sum().backward()
        face.flash_attn_qkvpacked_func(x, deterministic=wanted).sum().backward()
    torch.use_deterministic_algorithms(True)
    try:
        face.flash_attn_qkvpacked_func(x).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [True, True, False, False, True]


def test_dropout_follows_the_generator(face):
    q, k, v = qkv(40, 50, grad=True)

    def run(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        made = [face.flash_attn_func(q, k, v, 0.4) for _ in range(2)]
        return [*made, *torch.autograd.grad(made[1].sum(), (q, k, v))]

    first, again, other = run(1), run(1), run(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1]), "each call draws anew"


@pytest.mark.parametrize("varlen", [False, True])
def test_s_dmask_in_both_conventions(face, varlen, monkeypatch):
    from tilekiln.compat.flash_attn import attn_probs

    p, slopes = 0.3, torch.tensor([0.1, 0.2])
    q, k, v = qkv(6, 9, nheads_k=1, dtype=torch.float32)
    function, where = face.flash_attn_func, []
    if varlen:
        function, where = face.flash_attn_varlen_func, [int32(0, 4, 12), int32(0, 9, 18), 8, 9]
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    made = {}
    for convention in attn_probs.CONVENTIONS:
        monkeypatch.setattr(attn_probs, "CONVENTION", convention)
        torch.manual_seed(3)
        out, lse, made[convention] = function(
            q, k, v, *where, p, causal=True, window_size=(5, 0), alibi_slopes=slopes, return_attn_probs=True
        )
        *_, none = function(q, k, v, *where, return_attn_probs=True)
        assert none.numel() == 0
        assert none.dtype == made[convention].dtype
    randval, signed = made["randval"], made["signed"]
    assert randval.dtype == torch.uint8
    assert signed.dtype == q.dtype
    assert randval.shape == ((2, 12, 9) if varlen else (2, 2, 6, 9))
    assert signed.shape == ((2, 2, 8, 9) if varlen else (2, 2, 6, 9))
    sequences = [(q[b], k[b], v[b], out[b], lse[b], randval[b]) for b in range(2)]
    if varlen:
        sequences = [
            (q[a:b], k[c : c + 9], v[c : c + 9], out[a:b], lse[:, a:b], randval[:, a:b])
            for a, b, c in ((0, 4, 0), (4, 12, 9))
        ]
    for b, (q_, k_, v_, out_, lse_, bits) in enumerate(sequences):
        rows = len(q_)
        mine = signed[b, :, :rows]
        seen = upstream.visible(rows, 9, True, (5, 0))
        assert torch.equal((mine < 0) & seen, ~upstream.kept(bits, p) & seen), "negative where it drops"
        assert (mine[:, ~seen] == 0).all()
        torch.testing.assert_close(mine.abs().sum(-1), (~torch.isneginf(lse_)).float())
        exact = torch.einsum("hij,jhd->ihd", mine.clamp(min=0) / (1 - p), v_.expand(9, 2, 32))
        torch.testing.assert_close(out_, exact)
        _, exact_lse = upstream.attention(q_[None], k_[None], v_[None], seen=seen, bias=upstream.alibi(slopes, rows, 9))
        torch.testing.assert_close(lse_, exact_lse[0])
    monkeypatch.setattr(attn_probs, "CONVENTION", "cuda")
    with pytest.raises(RuntimeError, match="CONVENTION: was 'cuda', must be one of randval, signed"):
        function(q, k, v, *where, p, return_attn_probs=True)


def test_packed_gradients_are_one_tensor_written_in_place(face, monkeypatch):
    from tilekiln.compat.flash_attn import _packed

    places = []
    real = _packed.calls.backward

    def watched(*tensors, **rest):
        places.append([rest.get(name) for name in ("dq", "dk", "dv")])
        return real(*tensors, **rest)

    monkeypatch.setattr(_packed.calls, "backward", watched)
    wide = upstream.normal(2, 7, 3, 2, 50, dtype=torch.float16, seed=0)[..., :32].requires_grad_()
    out = face.flash_attn_qkvpacked_func(wide, causal=True)
    [gradient] = torch.autograd.grad(out, wide, torch.ones_like(out))
    for i, place in enumerate(places.pop()):
        assert place.untyped_storage().data_ptr() == gradient.untyped_storage().data_ptr()
        assert torch.equal(place, gradient[:, :, i])
    q, kv = wide[:, :, 0].detach(), wide[:, :, 1:].detach().requires_grad_()
    out = face.flash_attn_kvpacked_func(q, kv, causal=True)
    [only_kv] = torch.autograd.grad(out.sum(), kv)
    close(only_kv, gradient[:, :, 1:])
    [first] = torch.autograd.grad(face.flash_attn_qkvpacked_func(wide, causal=True).sum(), wide, create_graph=True)
    assert torch.equal(first, gradient)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.sum(), wide)


def test_rows_behind_the_last_sequence_get_no_gradient(face):
    x = upstream.normal(12, 3, 2, 32, dtype=torch.float32, seed=0, grad=True)
    out = face.flash_attn_varlen_qkvpacked_func(x, int32(0, 3, 7), 4)
    assert (out[7:] == 0).all()
    out.sum().backward()
    assert (x.grad[7:] == 0).all()
    assert (x.grad[:7, 2] != 0).all()


def test_strided_views_are_used_where_they_lie(face, monkeypatch):
    """(batch, heads, rows, dim) in memory, an expanded head, slices of wider rows; a strided last dim is not."""
    q, k, v = qkv(6, 8, dtype=torch.float32)
    exact = [x.detach().requires_grad_() for x in (q, k[:, :, :1].expand(2, 8, 2, 32), v)]
    dout = upstream.normal(2, 2, 6, 32, dtype=torch.float32, seed=7).transpose(1, 2)
    expected = upstream.attention(*exact)[0]
    views = [
        q.transpose(1, 2).contiguous().transpose(1, 2),
        k[:, :, :1].expand(2, 8, 2, 32),
        torch.cat([v, v], -1)[..., 32:],
    ]
    asked, dense = [], torch.contiguous_format
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda x, *rest: asked.append(x) or x.clone(memory_format=dense))
    views = [x.detach().requires_grad_() for x in views]
    out = face.flash_attn_func(*views)
    ours = torch.autograd.grad(out, views, dout)
    assert not asked, "something was copied"
    for mine, right in zip([out, *ours], [expected, *torch.autograd.grad(expected, exact, dout)], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
    strided = v.mT.clone(memory_format=dense).mT
    assert strided.stride(-1) != 1
    torch.testing.assert_close(face.flash_attn_func(views[0], views[1], strided), expected, rtol=1e-4, atol=1e-5)
    assert len(asked) == 1
    assert asked[0] is strided


@pytest.mark.parametrize("softcap", [0.0, 4.0])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_varlen_over_pages(face, softcap, dtype):
    pages, page = 9, 16
    k, v = (upstream.normal(pages, page, 1, 40, dtype=upstream.DTYPES[dtype], seed=i) for i in range(2))
    q = upstream.normal(12, 2, 40, dtype=upstream.DTYPES[dtype], seed=3)
    lengths_q, lengths_k, table = (5, 0, 7), (33, 16, 20), torch.tensor([[7, 2, 4], [1, -1, -1], [8, 0, -1]])
    where = [int32(0, *itertools.accumulate(x)) for x in (lengths_q, lengths_k)]
    out, lse, s_dmask = face.flash_attn_varlen_func(
        q, k, v, *where, 7, 33, causal=True, window_size=(20, -1), softcap=softcap, block_table=table.int(),
        return_attn_probs=True,
    )  # fmt: skip
    assert s_dmask.numel() == 0
    for b, rows in enumerate(q.split(lengths_q)):
        used = table[b, : -(-lengths_k[b] // page)]
        mine = [x[used].flatten(0, 1)[None, : lengths_k[b]].float() for x in (k, v)]
        seen = upstream.visible(lengths_q[b], lengths_k[b], True, (20, 0))
        exact, exact_lse = upstream.attention(rows[None].float(), *mine, seen=seen, softcap=softcap)
        close(out.split(lengths_q)[b], exact[0], 30 if dtype == "fp32" else 2)
        torch.testing.assert_close(lse.split(lengths_q, 1)[b], exact_lse[0], rtol=1e-3, atol=1e-3)
    with pytest.raises(RuntimeError, match="block_table: had 3 blocks of 16 keys a sequence, must have 4"):
        face.flash_attn_varlen_func(
            q, k, v, where[0], int32(0, 49, 60, 70), 7, 49, softcap=softcap, block_table=table.int()
        )
    with pytest.raises(RuntimeError, match=r"dropout_p: was 0\.1, must be 0 with block_table"):
        face.flash_attn_varlen_func(q, k, v, *where, 7, 33, 0.1, block_table=table.int())
    out = face.flash_attn_varlen_func(q.requires_grad_(), k, v, *where, 7, 33, block_table=table.int())
    with pytest.raises(RuntimeError, match="block_table: was given, must be absent when gradients are wanted"):
        out.sum().backward()


def test_the_private_varlen_forward_over_pages(interface):
    """seqused_k says how many keys there are, num_splits in how many parts they are read."""
    k, v = (upstream.normal(6, 16, 2, 32, dtype=torch.float32, seed=i) for i in range(2))
    q = upstream.normal(5, 2, 32, dtype=torch.float32, seed=3)
    table = torch.tensor([[5, 1], [0, 3]], dtype=torch.int32)
    where = int32(0, 2, 5), int32(0, 32, 64), 3, 32, 0.0, None, True
    rest = {"block_table": table, "seqused_k": int32(20, 32)}
    whole, lse, s_dmask, rng_state = interface._flash_attn_varlen_forward(q, k, v, *where, **rest, num_splits=1)
    parts, _, _, _ = interface._flash_attn_varlen_forward(q, k, v, *where, **rest, num_splits=3)
    torch.testing.assert_close(parts, whole)
    assert (s_dmask.numel(), rng_state.shape) == (0, (2,))
    mine = [x[table[0].long()].flatten(0, 1)[None, :20] for x in (k, v)]
    exact, exact_lse = upstream.attention(q[None, :2], *mine, seen=upstream.visible(2, 20, True))
    torch.testing.assert_close(whole[:2], exact[0])
    torch.testing.assert_close(lse[:, :2], exact_lse[0])
    with pytest.raises(RuntimeError, match="num_splits: was 129"):
        interface._flash_attn_varlen_forward(q, k, v, *where, **rest, num_splits=129)


@pytest.mark.parametrize("p", [0.0, 0.25])
def test_the_private_functions(interface, p):
    q, k, v = qkv(7, 9, nheads=4, grad=True)
    dout = upstream.normal(*q.shape, dtype=q.dtype, seed=9)
    torch.manual_seed(5)
    out, lse, randval, rng_state = interface._flash_attn_forward(q, k, v, p, 0.2, True, 4, 0, 3.0, None, p > 0)
    assert not out.requires_grad
    assert rng_state.shape == (2,)
    assert randval.shape == ((2, 4, 7, 9) if p else (0,))
    torch.manual_seed(5)
    expected = interface.flash_attn_func(q, k, v, p, 0.2, True, (4, 0), 3.0)
    assert torch.equal(out, expected)
    gradients = [torch.full_like(x, math.nan) for x in (q, k, v)]
    softmax_d = interface._flash_attn_backward(
        dout, q, k, v, out, lse, *gradients, p, 0.2, True, 4, 0, 3.0, None, True, rng_state
    )
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, (q, k, v), dout), strict=True):
        close(mine, theirs)
    torch.testing.assert_close(softmax_d, (dout.float() * out.float()).sum(-1).transpose(1, 2))
    if p:
        with pytest.raises(RuntimeError, match="rng_state: was None"):
            interface._flash_attn_backward(dout, q, k, v, out, lse, *gradients, p, 0.2, True, 4, 0, 3.0, None, True)


def test_the_private_varlen_functions(interface):
    q, k, v = (x.flatten(0, 1) for x in qkv(7, 9, nheads=4, dtype=torch.float32))
    where = int32(0, 7, 14), int32(0, 9, 18), 7, 9
    used, leftpad = int32(6, 9), int32(2, 0)
    out, lse, _, _ = interface._flash_attn_varlen_forward(
        q, k, v, *where, 0.0, None, True, leftpad_k=leftpad, seqused_k=used, zero_tensors=True
    )
    for b, keys in enumerate((slice(2, 6), slice(9, 18))):
        rows = slice(7 * b, 7 * b + 7)
        exact, exact_lse = upstream.attention(
            q[None, rows], k[None, keys], v[None, keys], seen=upstream.visible(7, keys.stop - keys.start, True)
        )
        torch.testing.assert_close(out[rows], exact[0])
        torch.testing.assert_close(lse[:, rows], exact_lse[0])
    with pytest.raises(RuntimeError, match="leftpad_k: was given, must be absent with block_table"):
        interface._flash_attn_varlen_forward(
            q, k, v, *where, 0.0, None, True, leftpad_k=leftpad, block_table=torch.zeros(2, 1, dtype=torch.int32)
        )
    q, k, v = (torch.cat([x, x[:1]]).requires_grad_() for x in (q, k, v))  # one row of padding behind
    expected = interface.flash_attn_varlen_func(q, k, v, *where, causal=True)
    dout = torch.ones_like(q)
    out, lse, _, _ = interface._flash_attn_varlen_forward(q, k, v, *where, 0.0, None, True)
    for zero in (False, True):
        gradients = [torch.full_like(x, 3.0) for x in (q, k, v)]
        softmax_d = interface._flash_attn_varlen_backward(
            dout, q, k, v, out, lse, *gradients, *where, 0.0, None, True, -1, -1, 0.0, None, False, zero_tensors=zero
        )
        for mine, theirs in zip(
            gradients, torch.autograd.grad(expected, (q, k, v), dout, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(mine[:-1], theirs[:-1])
            assert (mine[-1] == (0 if zero else 3)).all()
        assert softmax_d.shape == lse.shape


def test_errors_are_those_that_callers_catch(face):
    """ValueError, RuntimeError and ours, in flash_attn's names."""
    q, k, v = qkv(3, 3)
    for kind in (RuntimeError, ValueError, tk.ArgumentError):
        with pytest.raises(kind, match=r"^v: dtype was fp32, must be fp16, the dtype of q"):
            face.flash_attn_func(q, k, v.float())
    for kind in (RuntimeError, ValueError):
        with pytest.raises(kind, match=r"^cu_seqlens_q: dtype was int64, must be int32"):
            face.flash_attn_varlen_func(q[0], k[0], v[0], torch.tensor([0, 3]), int32(0, 3), 3, 3)
    with pytest.raises(RuntimeError, match="hdim was 520, must be from 1 to 512"):
        face.flash_attn_func(*qkv(3, 3, hdim=520))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers_drop_the_same(face, use_reentrant):
    x = upstream.normal(2, 6, 3, 2, 32, dtype=torch.float32, seed=0, grad=True)

    def layer(x):
        return face.flash_attn_qkvpacked_func(x, 0.3, causal=True) + face.flash_attn_func(*x.unbind(2), 0.3)

    gradients = []
    for run in (layer, lambda x: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=use_reentrant)):
        torch.manual_seed(4)
        run(x).square().sum().backward()
        gradients.append(x.grad)
        x.grad = None
    assert torch.equal(*gradients)


def test_inference_mode(face):
    x = upstream.normal(2, 6, 3, 2, 32, dtype=torch.float32, seed=0, grad=True)
    with torch.inference_mode():
        out = face.flash_attn_qkvpacked_func(x, causal=True)
    assert out.is_inference()
    assert torch.equal(out, face.flash_attn_qkvpacked_func(x, causal=True))


@pytest.mark.parametrize("seqlen", [1, 2, 5, 17, 128])
@pytest.mark.parametrize("hdim", [16, 64])
def test_large_values_do_not_overflow(face, seqlen, hdim):
    """As upstream: three times normal inputs in fp16, gradients finite and no more than five times PyTorch's error."""
    q, k, v = (
        (upstream.normal(2, seqlen, 5, hdim, dtype=torch.float16, seed=i) * 3).requires_grad_() for i in range(3)
    )
    dout = upstream.normal(2, seqlen, 5, hdim, dtype=torch.float16, seed=4) * 3
    out = face.flash_attn_func(q, k, v, causal=True)
    ours = [out, *torch.autograd.grad(out, (q, k, v), dout)]
    seen = upstream.visible(seqlen, seqlen, causal=True)
    exact, same = upstream.exact_and_same(lambda *x: upstream.attention(*x, seen=seen)[0], (q, k, v), dout)
    # dq and dk are differences of products of v and dout, each of the size of 9.
    size = 9 * hdim**0.5
    for name, mine, right, theirs in zip(("out", "dq", "dk", "dv"), ours, exact, same, strict=True):
        upstream.judge(name, mine, right, theirs, 5, torch.finfo(torch.float16).eps * size)


def test_autocast_casts_as_it_does_torchs_own(face):
    x = upstream.normal(2, 6, 3, 2, 32, dtype=torch.float32, seed=0, grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        packed, plain = face.flash_attn_qkvpacked_func(x), face.flash_attn_func(*x.unbind(2))
    assert packed.dtype == plain.dtype == torch.bfloat16
    assert torch.equal(packed, plain)
    ours, right = (torch.autograd.grad(y.float().square().sum(), x)[0] for y in (packed, plain))
    assert ours.dtype == torch.float32
    assert torch.equal(ours, right)


def test_transforms_of_functorch(face):
    x = upstream.normal(2, 6, 3, 2, 32, dtype=torch.float32, seed=0)
    gradient = torch.func.grad(lambda x: face.flash_attn_qkvpacked_func(x, causal=True).square().sum())(x)
    watched = x.clone().requires_grad_()
    face.flash_attn_qkvpacked_func(watched, causal=True).square().sum().backward()
    torch.testing.assert_close(gradient, watched.grad)


def test_compiled(face):
    """Under torch.compile(fullgraph=True), gradients and dropout too."""
    q, k, v = qkv(6, 6, dtype=torch.float32, grad=True)
    x = torch.stack([q, k, v], 2).detach().requires_grad_()

    def all_of_them(q, k, v, x):
        one = face.flash_attn_func(q, k, v, causal=True, softcap=2.0)
        packed = face.flash_attn_varlen_qkvpacked_func(x.flatten(0, 1), int32(0, 6, 12), 6, window_size=(2, 3))
        dropped, lse, _ = face.flash_attn_kvpacked_func(q, x[:, :, 1:], 0.3, return_attn_probs=True)
        return one.square().sum() + packed.sin().sum() + dropped.cos().sum(), lse

    torch.manual_seed(0)
    expected, expected_lse = all_of_them(q, k, v, x)
    torch.manual_seed(0)
    compiled, lse = torch.compile(all_of_them, fullgraph=True, backend="aot_eager")(q, k, v, x)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(lse, expected_lse)
    for mine, theirs in zip(*(torch.autograd.grad(y, (q, k, v, x)) for y in (compiled, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)
