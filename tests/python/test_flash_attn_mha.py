# SPDX-License-Identifier: MIT
"""flash_attn.modules.mha against the same modules computed by PyTorch, in fp32, with gradients."""

from __future__ import annotations

import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def mha(binding, load, finds):
    from tilekiln.compat.flash_attn.modules import mha

    finds(load("flash"), load("norm_default", targets="all"))
    return mha


def test_alibi_slopes(mha):
    assert mha.get_alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert mha.get_alibi_slopes(6) == [0.25, 0.0625, 2.0**-6, 2.0**-8, 0.5, 0.125]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_modules_alone(mha, causal):
    """FlashSelfAttention and FlashCrossAttention, packed and not, as SelfAttention and CrossAttention compute it."""
    qkv = torch.randn(2, 7, 3, 4, 16, generator=torch.Generator().manual_seed(1))
    ours, plain = mha.FlashSelfAttention(causal=causal, softmax_scale=0.3), mha.SelfAttention(causal, 0.3)
    right = plain(qkv)
    torch.testing.assert_close(ours(qkv), right)
    starts = torch.tensor([0, 7, 14], dtype=torch.int32)
    torch.testing.assert_close(ours(qkv.flatten(0, 1), cu_seqlens=starts, max_seqlen=7), right.flatten(0, 1))
    torch.testing.assert_close(ours(qkv, causal=not causal), plain(qkv, causal=not causal))
    q, kv = qkv[:, :3, 0], qkv[:, :, 1:]
    cross, other = mha.FlashCrossAttention(causal=causal), mha.CrossAttention(causal)
    right = other(q, kv)
    torch.testing.assert_close(cross(q, kv), right)
    lengths = {"cu_seqlens": starts // 7 * 3, "max_seqlen": 3, "cu_seqlens_k": starts, "max_seqlen_k": 7}
    torch.testing.assert_close(cross(q.flatten(0, 1), kv.flatten(0, 1), **lengths), right.flatten(0, 1))


def both(mha, **options: Any) -> tuple[Any, Any]:
    """With our kernels and by PyTorch, of the same weights."""
    torch.manual_seed(0)
    ours = mha.MHA(64, 4, use_flash_attn=True, **options)
    plain = mha.MHA(64, 4, **options)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def trained(module: Any, x: Any, *more: Any, **named: Any) -> list[Any]:
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    out = module(leaf, *more, **named)
    out = out[0] if isinstance(out, tuple) else out
    out.square().sum().backward()
    return [out, leaf.grad, *(p.grad.clone() for p in module.parameters())]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True, "num_heads_kv": 2, "softmax_scale": 0.2, "qkv_proj_bias": False},
    {"rotary_emb_dim": 16, "causal": True},
    {"rotary_emb_dim": 8, "rotary_emb_interleaved": True, "num_heads_kv": 1, "return_residual": True},
    {"dwconv": True, "checkpointing": True},
    {"dwconv": True, "num_heads_kv": 2, "rotary_emb_dim": 16, "rotary_emb_scale_base": 512.0, "out_proj_bias": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_self_attention(mha, options):
    ours, plain = both(mha, **options)
    x = upstream.normal(2, 9, 64, dtype=torch.float32, seed=1)
    for mine, its in zip(trained(ours, x), trained(plain, x), strict=True):
        torch.testing.assert_close(mine, its, **CLOSE)
    if options.get("return_residual"):
        assert ours(x)[1] is x


@pytest.mark.parametrize("options", [{}, {"causal": True, "num_heads_kv": 2}], ids=str)
def test_cross_attention(mha, options):
    ours, plain = both(mha, cross_attn=True, **options)
    x, x_kv = (upstream.normal(2, n, 64, dtype=torch.float32, seed=n) for n in (5, 9))
    for given in ({"x_kv": x_kv}, {"x_kv": x_kv, "mixer_subset": slice(1, 3)}, {}):
        for mine, its in zip(trained(ours, x, **given), trained(plain, x, **given), strict=True):
            torch.testing.assert_close(mine, its, **CLOSE)


@pytest.mark.parametrize("num_heads_kv", [4, 2])
def test_packed_sequences_are_those_of_a_mask(mha, num_heads_kv):
    from tilekiln.compat.flash_attn.bert_padding import pad_input, unpad_input

    ours, plain = both(mha, causal=True, num_heads_kv=num_heads_kv)
    mask = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])
    x = upstream.normal(2, 7, 64, dtype=torch.float32, seed=1)
    tokens, indices, cu_seqlens, longest, _ = unpad_input(x, mask)
    made = pad_input(ours(tokens, cu_seqlens=cu_seqlens, max_seqlen=longest), indices, 2, 7)
    # Padding on the right: queries of the mask's module count from the first key.
    right = [plain(x[b : b + 1, :n])[0] for b, n in enumerate((5, 7))]
    torch.testing.assert_close(made[0, :5], right[0], **CLOSE)
    torch.testing.assert_close(made[1], right[1], **CLOSE)
    if num_heads_kv == 4:
        torch.testing.assert_close(plain(x, key_padding_mask=mask)[0, :5], right[0], **CLOSE)


def test_alibi_windows_and_dropout(mha):
    module = mha.MHA(64, 4, causal=True, use_flash_attn=True, use_alibi=True, window_size=(3, 0))
    x = upstream.normal(1, 9, 64, dtype=torch.float32, seed=1)
    q, k, v = (one.transpose(1, 2) for one in module.Wqkv(x).unflatten(-1, (3, 4, 16)).unbind(2))
    distance = torch.arange(9)[:, None] - torch.arange(9)
    bias = -torch.tensor(mha.get_alibi_slopes(4))[:, None, None] * distance.abs()
    bias = bias.masked_fill((distance < 0) | (distance > 3), -float("inf"))
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)
    torch.testing.assert_close(module(x), module.out_proj(right), **CLOSE)
    assert "inner_attn.alibi_slopes" not in module.state_dict()
    dropped = mha.MHA(64, 4, dropout=0.5, use_flash_attn=True)
    assert torch.equal(dropped.eval()(x), dropped(x))
    torch.manual_seed(0)
    assert not torch.equal(dropped.train()(x), dropped.eval()(x))


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("options", [{}, {"num_heads_kv": 2, "rotary_emb_dim": 16}], ids=str)
def test_generation_is_the_whole_sequence(mha, flash, options):
    module = mha.MHA(64, 4, causal=True, layer_idx=3, use_flash_attn=flash, **options).eval()
    x = upstream.normal(2, 8, 64, dtype=torch.float32, seed=1)
    params = types.SimpleNamespace(
        max_seqlen=8, max_batch_size=3, seqlen_offset=0, batch_size_offset=1, lengths_per_sample=None,
        key_value_memory_dict={},
    )  # fmt: skip
    with torch.no_grad():
        right, parts = module(x), []
        for begin, end in ((0, 4), (4, 5), (5, 8)):
            params.seqlen_offset = begin
            parts.append(module(x[:, begin:end], inference_params=params))
        assert params.key_value_memory_dict[3].shape == (3, 8, 2, options.get("num_heads_kv", 4), 16)
        torch.testing.assert_close(torch.cat(parts, 1), right, **CLOSE)
        if flash:
            params.seqlen_offset, params.lengths_per_sample = 5, torch.tensor([0, 5, 7], dtype=torch.int32)
            step = module(torch.stack([x[0, 5:6], x[1, 7:8]]), inference_params=params)
            torch.testing.assert_close(step[:, 0], torch.stack([right[0, 5], right[1, 7]]), **CLOSE)
        params.seqlen_offset, params.lengths_per_sample = 8, None
        with pytest.raises(RuntimeError, match="inference_params: the cache holds 3 sequences of 8, must hold 3 of 9"):
            module(x[:, :1], inference_params=params)


def test_bad_input(mha):
    x = torch.zeros(1, 3, 64)
    for options, says in (
        ({"num_heads": 5}, "embed_dim: was 64, must be a multiple of num_heads, 5"),
        ({"num_heads_kv": 3}, "num_heads_kv: was 3, must divide num_heads, 4"),
        ({"use_alibi": True}, "use_alibi: was given without use_flash_attn"),
        ({"cross_attn": True, "rotary_emb_dim": 8}, "rotary_emb_dim: was 8, must be 0 with cross_attn"),
    ):
        with pytest.raises(RuntimeError, match=says):
            mha.MHA(**{"embed_dim": 64, "num_heads": 4, **options})
    flash = mha.MHA(64, 4, use_flash_attn=True)
    with pytest.raises(RuntimeError, match="key_padding_mask: was given, must be absent with use_flash_attn"):
        flash(x, key_padding_mask=torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="x_kv: was given, must be absent: this is no cross attention"):
        flash(x, x_kv=x)
    with pytest.raises(RuntimeError, match="max_seqlen: was None, must be given with cu_seqlens"):
        flash(x[0], cu_seqlens=torch.tensor([0, 3], dtype=torch.int32))
    with pytest.raises(RuntimeError, match="layer_idx: was None, must be said"):
        flash(x, inference_params=types.SimpleNamespace())
