# SPDX-License-Identifier: MIT
"""flash_attn.bert_padding and flash_attn.layers.rotary."""

from __future__ import annotations

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(params=["kernels", "pytorch"])
def library(request: pytest.FixtureRequest, load, finds) -> None:
    """With the operators, and where no library has them."""
    finds(*([load("norm_default", targets="all")] if request.param == "kernels" else []))


@pytest.fixture
def padding(binding):
    from tilekiln.compat.flash_attn import bert_padding

    return bert_padding


@pytest.fixture
def rotate(library):
    from tilekiln.compat.flash_attn.layers.rotary import apply_rotary_emb

    return apply_rotary_emb


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_unpad_and_pad(padding, dtype):
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]).to(dtype)
    hidden = upstream.normal(3, 4, 2, 5, dtype=torch.float32, seed=0, grad=True)
    tokens, indices, cu_seqlens, longest, used = padding.unpad_input(hidden, mask)
    assert indices.tolist() == [0, 1, 3, 9, 10]
    assert indices.dtype == torch.int64
    assert cu_seqlens.tolist() == [0, 3, 3, 5]
    assert cu_seqlens.dtype == used.dtype == torch.int32
    assert (longest, type(longest)) == (3, int)
    assert used.tolist() == [3, 0, 2]
    assert torch.equal(tokens, hidden.flatten(0, 1)[indices])
    padded = padding.pad_input(tokens, indices, 3, 4)
    kept = mask.bool()[..., None, None]
    assert torch.equal(padded, hidden * kept)
    weight = torch.randn_like(padded)
    (padded * weight).sum().backward()
    assert torch.equal(hidden.grad, weight * kept)


def test_indices_of_32_bits(padding):
    """Transformers passes cu_seqlens_q[:-1], int32, for a step of generation with padding on the left."""
    tokens = upstream.normal(2, 3, dtype=torch.float32, seed=0, grad=True)
    padded = padding.pad_input(tokens, torch.tensor([0, 5], dtype=torch.int32), 2, 4)
    assert torch.equal(padded, padding.pad_input(tokens, torch.tensor([0, 5]), 2, 4))
    assert torch.equal(padded[1, 1], tokens[1])
    padded.square().sum().backward()
    assert torch.equal(tokens.grad, 2 * tokens.detach())


def test_unused_tokens_keep_their_place(padding):
    mask, unused = torch.tensor([[1, 0, 0], [1, 1, 0]]), torch.tensor([[0, 1, 0], [0, 0, 1]])
    tokens, indices, cu_seqlens, longest, used = padding.unpad_input(torch.arange(6.0).reshape(2, 3, 1), mask, unused)
    assert indices.tolist() == [0, 1, 3, 4, 5]
    assert tokens.flatten().tolist() == [0, 1, 3, 4, 5]
    assert cu_seqlens.tolist() == [0, 2, 5]
    assert longest == 3
    assert used.tolist() == [1, 2]


def test_no_sequences(padding):
    tokens, indices, cu_seqlens, longest, used = padding.unpad_input(torch.zeros(0, 4, 2), torch.zeros(0, 4))
    assert tokens.shape == (0, 2)
    assert (cu_seqlens.tolist(), longest, used.shape) == ([0], 0, (0,))
    assert padding.pad_input(tokens, indices, 0, 4).shape == (0, 4, 2)


def test_several_sequences_a_row(padding):
    lengths = torch.tensor([[2, 1, 0, 0], [0, 0, 0, 0], [1, 1, 2, 0]])
    hidden = torch.arange(12.0).reshape(3, 4, 1)
    tokens, indices, cu_seqlens, longest = padding.unpad_input_for_concatenated_sequences(hidden, lengths)
    assert indices.tolist() == [0, 1, 2, 8, 9, 10, 11]
    assert tokens.flatten().tolist() == indices.tolist()
    assert cu_seqlens.tolist() == [0, 2, 3, 4, 5, 7]
    assert cu_seqlens.dtype == torch.int32
    assert longest == 2
    nothing = padding.unpad_input_for_concatenated_sequences(hidden[:0], lengths[:0])
    assert (nothing[0].shape, nothing[2].tolist(), nothing[3]) == ((0, 1), [0], 0)


def test_index_first_axis_residual(padding):
    x = upstream.normal(4, 2, 3, dtype=torch.float32, seed=0, grad=True)
    made, all_of_x = padding.index_first_axis_residual(x, torch.tensor([2, 0]))
    assert torch.equal(made, x[[2, 0]])
    assert all_of_x.data_ptr() == x.data_ptr()
    (made.sum() + 3 * all_of_x.sum()).backward()
    assert x.grad[:, 0, 0].tolist() == [4, 3, 4, 3]


def test_index_put_first_axis(padding):
    values = upstream.normal(2, 3, dtype=torch.float32, seed=0, grad=True)
    made = padding.index_put_first_axis(values, torch.tensor([3, 1], dtype=torch.int32), 5)
    assert torch.equal(made[[3, 1]], values)
    assert not made[[0, 2, 4]].any()
    made.square().sum().backward()
    assert torch.equal(values.grad, 2 * values.detach())


def test_rearrange_is_that_of_einops(padding, monkeypatch):
    """Upstream depends on einops, and verl imports rearrange from here."""
    import sys
    import types

    with pytest.raises(AttributeError, match=r"bert_padding' has no attribute 'reduce'"):
        padding.__getattr__("reduce")
    theirs = types.ModuleType("einops")
    theirs.rearrange = object()
    monkeypatch.setitem(sys.modules, "einops", theirs)
    assert padding.rearrange is theirs.rearrange
    monkeypatch.setitem(sys.modules, "einops", None)
    with pytest.raises(ImportError, match=r"rearrange is that of einops, which is not there .*: pip install einops"):
        padding.__getattr__("rearrange")


def test_index_first_axis(padding):
    x = upstream.normal(4, 2, 3, dtype=torch.float32, seed=0, grad=True)
    made = padding.index_first_axis(x, torch.tensor([2, 2, 0]))
    assert torch.equal(made, x[[2, 2, 0]])
    made.sum().backward()
    assert x.grad[:, 0, 0].tolist() == [1, 0, 2, 0]


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: list[int], interleaved: bool):
    """By complex numbers: x (seqlen, nheads, headdim)."""
    half = cos.shape[1]
    wide, rest = x[..., : 2 * half].double(), x[..., 2 * half :].double()
    first, second = (wide[..., 0::2], wide[..., 1::2]) if interleaved else (wide[..., :half], wide[..., half:])
    made = torch.complex(first, second) * torch.complex(cos.double(), sin.double())[positions][:, None]
    pair = (made.real, made.imag)
    rotated = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([rotated, rest], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, torch.tensor([0, 5]), torch.tensor([4, 1], dtype=torch.int32)], ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rotary_dim", [16, 24])
def test_rotary(rotate, interleaved, offsets, dtype, rotary_dim):
    angle = torch.rand(20, rotary_dim // 2, generator=torch.Generator(DEVICE).manual_seed(0)) * 6
    cos, sin = angle.cos().to(upstream.DTYPES[dtype]), angle.sin().to(upstream.DTYPES[dtype])
    x = upstream.normal(2, 6, 3, 24, dtype=upstream.DTYPES[dtype], seed=1, grad=True)
    starts = offsets.tolist() if isinstance(offsets, torch.Tensor) else [offsets] * 2
    steps = torch.finfo(x.dtype).eps * 8
    exact = torch.stack([turned(x[b], cos, sin, list(range(s, s + 6)), interleaved) for b, s in enumerate(starts)])
    made = rotate(x, cos, sin, interleaved, seqlen_offsets=offsets)
    assert made.dtype == x.dtype
    torch.testing.assert_close(made.double(), exact, rtol=steps, atol=steps)
    dout = torch.randn_like(x)
    [gradient] = torch.autograd.grad(made, x, dout)
    [right] = torch.autograd.grad(exact, x, dout.double())
    torch.testing.assert_close(gradient, right, rtol=steps, atol=steps)
    written = x.detach().clone()
    assert rotate(written, cos, sin, interleaved, inplace=True, seqlen_offsets=offsets) is written
    assert torch.equal(written, made)


def test_rotary_of_packed_sequences(rotate):
    angle = torch.rand(20, 8) * 6
    cos, sin = angle.cos(), angle.sin()
    x = upstream.normal(9, 2, 20, dtype=torch.float32, seed=1)
    cu_seqlens = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    for offsets, starts in ((2, [2, 2, 2]), (torch.tensor([1, 9, 6]), [1, 9, 6])):
        made = rotate(x, cos, sin, seqlen_offsets=offsets, cu_seqlens=cu_seqlens, max_seqlen=5)
        for b, (begin, end) in enumerate(((0, 4), (4, 4), (4, 9))):
            exact = turned(x[begin:end], cos, sin, list(range(starts[b], starts[b] + end - begin)), False)
            torch.testing.assert_close(made[begin:end], exact.float())


def test_rotary_bad_input(rotate):
    x, table = torch.zeros(1, 6, 2, 16), torch.zeros(8, 8)
    with pytest.raises(RuntimeError, match="cos: was for a rotary_dim of 20, must be at most 16, the headdim of x"):
        rotate(x, torch.zeros(8, 10), torch.zeros(8, 10))
    with pytest.raises(RuntimeError, match=r"sin: was of shape \(8, 4\), must be that of cos: \(8, 8\)"):
        rotate(x, table, table[:, :4])
    with pytest.raises(RuntimeError, match="cos: had 8 positions, must have 9"):
        rotate(x, table, table, seqlen_offsets=3)
