# SPDX-License-Identifier: MIT
"""flash_attn.layers.rotary in place, and what is made of it. The angles themselves are test_flash_attn_modules.py's."""

from __future__ import annotations

import importlib

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, params=["kernels", "pytorch"])
def library(request: pytest.FixtureRequest, load, finds) -> None:
    """With the operators, and where no library has them."""
    finds(*([load("norm_default", targets="all")] if request.param == "kernels" else []))


@pytest.fixture
def rotary(binding):
    from tilekiln.compat.flash_attn.layers import rotary

    return rotary


def test_a_half_turned(rotary):
    x = torch.tensor([[1.0, 2, 3, 4]])
    assert rotary.rotate_half(x).tolist() == [[-3, -4, 1, 2]]
    assert rotary.rotate_half(x, interleaved=True).tolist() == [[-2, 1, -4, 3]]
    assert rotary.apply_rotary_emb_func is rotary.apply_rotary_emb


def tables(positions: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.rand(positions, dim // 2, generator=torch.Generator(DEVICE).manual_seed(seed)) * 6
    return angle.cos(), angle.sin()


def both_ways(make, in_place, x: torch.Tensor) -> None:
    """make(x), differentiated by autograd, and in_place(x), which writes x and has a backward of its own."""
    exact = make(x)
    dout = torch.randn(exact.shape, generator=torch.Generator(DEVICE).manual_seed(7)).to(exact.dtype)
    [right] = torch.autograd.grad(exact, x, dout)
    given = dout.clone()
    made = in_place(x)
    assert made.data_ptr() == x.data_ptr()
    torch.testing.assert_close(made, exact.detach(), rtol=0, atol=0)
    [gradient] = torch.autograd.grad(made, x, given)
    torch.testing.assert_close(gradient, right)
    assert torch.equal(given, dout)  # the gradient that came in is another's


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_in_place_under_autograd(rotary, interleaved, packed):
    cos, sin = tables(20, 16)
    shape = (9, 2, 20) if packed else (2, 6, 3, 20)
    x = upstream.normal(*shape, dtype=torch.float32, seed=1, grad=True)
    where = {"cu_seqlens": torch.tensor([0, 4, 9], dtype=torch.int32), "max_seqlen": 5} if packed else {}
    offsets = torch.tensor([3, 1])
    both_ways(
        lambda x: rotary.apply_rotary_emb(x, cos, sin, interleaved, False, offsets, **where),
        lambda x: rotary.apply_rotary_emb(x, cos, sin, interleaved, True, offsets, **where),
        x,
    )


def test_in_place_of_what_unbind_made(rotary):
    """Autograd lets nothing be written to one of several views."""
    cos, sin = tables(6, 16)
    leaf = upstream.normal(2, 6, 3, 2, 16, dtype=torch.float32, seed=1, grad=True)
    q, k, v = (leaf * 1).unbind(2)
    q, k = (rotary.apply_rotary_emb(x, cos, sin, inplace=True) for x in (q, k))
    (q.square().sum() * 2 + (k * v).sum()).backward()
    ours, leaf.grad = leaf.grad, None
    q, k, v = leaf.unbind(2)
    q, k = (rotary.apply_rotary_emb(x, cos, sin) for x in (q, k))
    (q.square().sum() * 2 + (k * v).sum()).backward()
    torch.testing.assert_close(ours, leaf.grad)


def test_writing_over_what_a_backward_needs_is_noticed(rotary):
    cos, sin = tables(6, 16)
    leaf = upstream.normal(2, 6, 2, 16, dtype=torch.float32, seed=1, grad=True)
    x = leaf.exp()  # its backward needs its result
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        rotary.apply_rotary_emb(x, cos, sin, inplace=True).sum().backward()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("form", ["three", "heads", "other tables of keys"])
def test_qkv(rotary, interleaved, form):
    cos, sin = tables(10, 12)
    keys = tables(10, 12, seed=3) if form == "other tables of keys" else (None, None)
    nheads, nheads_k = (4, 2) if form == "heads" else (2, 2)
    shape = (2, 6, nheads + 2 * nheads_k, 16) if form == "heads" else (2, 6, 3, 2, 16)
    given = {"num_heads_q": nheads} if form == "heads" else {}

    def make(qkv):
        q, k, v = qkv.split([nheads, nheads_k, nheads_k], 2) if form == "heads" else qkv.unbind(2)
        q = rotary.apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=2)
        k = rotary.apply_rotary_emb(k, *((cos, sin) if keys[0] is None else keys), interleaved, seqlen_offsets=2)
        return torch.cat([q, k, v], 2) if form == "heads" else torch.stack([q, k, v], 2)

    x = upstream.normal(*shape, dtype=torch.float32, seed=1, grad=True)
    both_ways(
        make,
        lambda qkv: rotary.apply_rotary_emb_qkv_(qkv, cos, sin, *keys, interleaved, seqlen_offsets=2, **given),
        x,
    )


def test_kv(rotary):
    cos, sin = tables(10, 16)
    x = upstream.normal(2, 6, 2, 3, 16, dtype=torch.float32, seed=1, grad=True)

    def make(kv):
        return torch.stack([rotary.apply_rotary_emb(kv[:, :, 0], cos, sin, seqlen_offsets=4), kv[:, :, 1]], 2)

    both_ways(make, lambda kv: rotary.apply_rotary_emb_kv_(kv, cos, sin, seqlen_offsets=4), x)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_yardstick_and_the_conjugate(rotary, interleaved):
    cos, sin = tables(6, 12)
    x = upstream.normal(2, 6, 3, 16, dtype=torch.float32, seed=1)
    made = rotary.apply_rotary(x, cos, sin, interleaved=interleaved)
    torch.testing.assert_close(rotary.apply_rotary_emb_torch(x, cos, sin, interleaved), made)
    per_row = cos.expand(2, 6, 6), sin.expand(2, 6, 6)
    torch.testing.assert_close(rotary.apply_rotary_emb_torch(x, *per_row, interleaved), made)
    torch.testing.assert_close(rotary.apply_rotary(made, cos, sin, interleaved=interleaved, conjugate=True), x)


@pytest.mark.parametrize("scale_base", [None, 64.0])
def test_rotary_embedding(rotary, scale_base):
    """The dot product of q at i and k at j, seen from the angles' formula in float64."""
    module = rotary.RotaryEmbedding(8, base=100.0, scale_base=scale_base)
    assert not list(module.state_dict())
    qkv = upstream.normal(2, 5, 3, 2, 12, dtype=torch.float32, seed=1)
    q, k, v = (x.double() for x in qkv.clone().unbind(2))
    offset, positions = 2, 7
    angle = torch.outer(torch.arange(positions).double(), 100.0 ** (-torch.arange(0, 8, 2).double() / 8))
    scale = torch.ones(positions, 4, dtype=torch.float64)
    if scale_base is not None:
        base = (torch.arange(0, 8, 2).double() + 0.4 * 8) / (1.4 * 8)
        scale = base ** ((torch.arange(positions).double() - positions // 2) / scale_base)[:, None]

    def turned(x, grown):
        wide = torch.complex(x[..., :4], x[..., 4:8]) * (torch.polar(grown, angle)[offset:])[:, None]
        return torch.cat([wide.real, wide.imag, x[..., 8:]], -1)

    right = torch.stack([turned(q, scale), turned(k, 1 / scale), v], 2).float()
    made = module(qkv.clone(), seqlen_offset=offset)
    torch.testing.assert_close(made, right)
    alone, kv = module(qkv[:, :, 0].clone(), qkv[:, :, 1:].clone(), seqlen_offset=offset)
    torch.testing.assert_close(torch.cat([alone[:, :, None], kv], 2), right)
    if scale_base is None:  # XPos is relative to the number of positions
        tensor = torch.tensor([2, 2])
        assert torch.equal(module(qkv.clone(), seqlen_offset=tensor, max_seqlen=20), made)
        assert torch.equal(module(qkv.clone(), seqlen_offset=tensor), made)
        packed = qkv.clone().flatten(2, 3)
        assert torch.equal(module(packed, seqlen_offset=2, num_heads_q=2), made.flatten(2, 3))


def test_tables_of_a_model_in_bf16_have_exact_angles(rotary):
    module = rotary.RotaryEmbedding(16).bfloat16()
    module._update_cos_sin_cache(4000, dtype=torch.bfloat16)
    angle = torch.outer(torch.arange(4000).double(), 10000.0 ** (-torch.arange(0, 16, 2).double() / 16))
    assert (module._cos_cached.double() - angle.cos()).abs().max() < 2**-8
    assert module._cos_cached.dtype == torch.bfloat16
    with torch.inference_mode():
        module.eval()(torch.zeros(1, 8000, 3, 1, 16, dtype=torch.bfloat16))
    trained = torch.zeros(1, 4, 3, 1, 16, dtype=torch.bfloat16, requires_grad=True)
    module.train()(trained).sum().backward()  # tables of inference mode cannot be saved for a backward


def test_compiled(rotary):
    cos, sin = tables(6, 16)
    x = upstream.normal(2, 6, 3, 2, 16, dtype=torch.float32, seed=1)
    step = torch.compile(lambda x: rotary.apply_rotary_emb_qkv_(x, cos, sin), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(x.clone()), rotary.apply_rotary_emb_qkv_(x.clone(), cos, sin))


def test_the_kernel_is_what_computes(rotary, request, monkeypatch):
    """Tables of another dtype, and an x that autograd records, too; functorch gets PyTorch's formula."""
    module, count = importlib.import_module("tilekiln.compat.flash_attn.ops.triton.rotary"), []
    run = module._call
    monkeypatch.setattr(module, "_call", lambda *call: count.append(call[0]) or run(*call))
    kernels = "kernels" in request.node.name
    cos, sin = tables(9, 16)
    x = upstream.normal(2, 6, 3, 16, dtype=torch.bfloat16, seed=1, grad=True)
    made = rotary.apply_rotary_emb(x, cos.half(), sin, seqlen_offsets=torch.tensor([0, 3]))
    torch.autograd.grad(made, x, torch.ones_like(made), create_graph=True)
    assert len(count) == (2 if kernels else 0)
    mapped = torch.vmap(lambda x: rotary.apply_rotary_emb(x, cos, sin))(x.detach().unsqueeze(1))
    assert len(count) == (2 if kernels else 0)
    torch.testing.assert_close(mapped[:, 0], rotary.apply_rotary_emb(x.detach(), cos, sin))


def test_bad_input(rotary):
    cos, sin = tables(8, 16)
    qkv = torch.zeros(1, 6, 3, 2, 16)
    with pytest.raises(RuntimeError, match=r"qkv: was of shape \(1, 6, 16\), must be \(batch, seqlen, 3,"):
        rotary.apply_rotary_emb_qkv_(qkv[:, :, 0, 0], cos, sin)
    with pytest.raises(RuntimeError, match="num_heads_q: was None, must be given with a qkv of 4 dimensions"):
        rotary.apply_rotary_emb_qkv_(qkv.flatten(2, 3), cos, sin)
    with pytest.raises(RuntimeError, match="num_heads_q: was 3, must be the 6 heads of qkv less those of k and v"):
        rotary.apply_rotary_emb_qkv_(qkv.flatten(2, 3), cos, sin, num_heads_q=3)
    with pytest.raises(RuntimeError, match="sin_k: was None, must be given with cos_k"):
        rotary.apply_rotary_emb_qkv_(qkv, cos, sin, cos)
    with pytest.raises(RuntimeError, match=r"kv: was of shape \(1, 6, 3, 2, 16\), must be \(batch, seqlen, 2,"):
        rotary.apply_rotary_emb_kv_(qkv, cos, sin)
    with pytest.raises(RuntimeError, match="max_seqlen: was None, must be given with a tensor seqlen_offset"):
        rotary.RotaryEmbedding(16)(qkv, seqlen_offset=torch.tensor([1]))
