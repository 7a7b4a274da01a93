# SPDX-License-Identifier: MIT
"""flash_attn.utils: testing's attention against ours, timings, and decorators."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]


def ours(module: str) -> Any:
    return importlib.import_module(f"tilekiln.compat.flash_attn.{module}")


@pytest.mark.parametrize("window", [(None, None), (3, 2), (None, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_ref_of_padded_sequences(
    flash: Any, causal: bool, window: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as the varlen function's, of arguments that generate_qkv packs, with gradients; chunks and sinks."""
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    testing, call = ours("utils.testing"), ours("flash_attn_interface").flash_attn_varlen_func
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 9, 4, 16), torch.randn(3, 12, 2, 16), torch.randn(3, 12, 2, 16)
    of_q, of_k = (testing.generate_random_padding_mask(n, 3, "cpu", "third") for n in (9, 12))
    made = testing.generate_qkv(q, k, v, of_q, of_k)
    rows, keys, values, _, starts, starts_k, _, _, longest, longest_k, q, k, v, _, pads, _, pads_k = made
    sides = [-1 if one is None else one for one in window]
    out = pads(call(rows, keys, values, starts, starts_k, longest, longest_k, causal=causal, window_size=sides))
    right, probabilities = testing.attention_ref(q, k, v, of_q, of_k, causal=causal, window_size=window)
    torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(probabilities.sum(-1).mT[of_q].clamp(0, 1).round(), probabilities.sum(-1).mT[of_q])
    gradient = torch.randn_like(out)
    packed = torch.autograd.grad(out, (keys, values), gradient)
    padded = torch.autograd.grad(right, (k, v), gradient)
    for one, other in zip(packed, padded, strict=True):
        torch.testing.assert_close(pads_k(one), other, rtol=1e-3, atol=1e-4)
    again = testing.attention_ref(q, k, v, of_q, of_k, causal=causal, window_size=window, reorder_ops=True)[0]
    torch.testing.assert_close(again, right, rtol=1e-4, atol=1e-5)


def test_masks_and_options_of_attention_ref() -> None:
    testing = ours("utils.testing")
    torch.manual_seed(0)
    chunk = ~testing.construct_chunk_mask(4, 6, 3)
    assert chunk.int().tolist() == [[1, 1, 1, 0, 0, 0]] + [[0, 0, 0, 1, 1, 1]] * 3
    local = ~testing.construct_local_mask(3, 5, (1, 0), sink_token_length=1)
    assert local.int().tolist() == [[1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]
    q, k, v = (torch.randn(1, 4, 2, 8) for _ in range(3))
    plain, probabilities = testing.attention_ref(q, k, v)
    right = torch.nn.functional.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)))
    torch.testing.assert_close(plain, right.transpose(1, 2))
    sink = testing.attention_ref(q, k, v, learnable_sink=torch.full((2,), 60.0))[1]
    assert sink.max() < 1e-10
    kept = torch.rand(1, 2, 4, 4) > 0.5
    dropped = testing.attention_ref(q, k, v, dropout_p=0.5, dropout_mask=kept)[0]
    torch.testing.assert_close(dropped, torch.einsum("bhqk,bkhd->bqhd", probabilities * kept * 2, v))
    scale = torch.full((1, 2), 3.0)
    torch.testing.assert_close(
        testing.attention_ref(q, k, v, v_descale=scale, softcap=1e6)[0], 3 * plain, atol=1e-3, rtol=1e-3
    )
    more = testing.attention_ref(q, k, v, qv=torch.zeros(1, 4, 2, 8), attn_bias=torch.zeros(4), attention_chunk=2)
    assert more[1][..., 0, 2:].abs().max() == 0
    full = testing.generate_random_padding_mask(5, 7, "cpu", "full", zero_lengths=True)
    assert full.sum(-1).tolist() == [0, 5, 5, 5, 5, 0, 0]
    assert len(testing.generate_qkv(q, k, v, kvpacked=True)) == 11
    assert testing.generate_qkv(q, k, v, qkvpacked=True)[0].shape == (4, 3, 2, 8)
    with pytest.raises(ValueError, match="mode: was 'half', must be one of full, random, third"):
        testing.generate_random_padding_mask(5, 7, "cpu", "half")
    with pytest.raises(ValueError, match="kvpacked: was True, must be False with qkvpacked"):
        testing.generate_qkv(q, k, v, kvpacked=True, qkvpacked=True)


def test_timings(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    made = ours("utils.benchmark")
    x = torch.randn(8, 8, requires_grad=True)

    def call(x: Any) -> Any:
        return (x @ x).tanh()

    for several, parts in ((made.benchmark_fwd_bwd, 2), (made.benchmark_all, 3)):
        assert len(several(call, x, repeats=1, desc="mine")) == parts
    for one, title in (
        (made.benchmark_forward, "Forward"),
        (made.benchmark_backward, "Backward"),
        (made.benchmark_combined, "Forward + Backward"),
    ):
        capsys.readouterr()
        timer, measured = one(call, x, repeats=2, desc="mine")
        assert measured.mean > 0
        assert timer is not measured
        assert f"mine - {title} pass" in capsys.readouterr().out
    made.pytorch_profiler(call, x, backward=True, trace_filename=str(tmp_path / "trace.json"))
    assert "aten::tanh" in capsys.readouterr().out
    assert (tmp_path / "trace.json").stat().st_size
    with pytest.raises(ValueError, match=r"grad: shape was \(3,\), must be \(8, 8\), that of the result"):
        made.benchmark_backward(call, x, grad=torch.ones(3))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="fn: is measured by the allocator of CUDA"):
            made.benchmark_memory(call, x)


def test_decorators_of_autocast() -> None:
    made = ours("utils.torch")
    assert made.custom_amp_decorator(lambda **named: named, True)(a=1) == {"a": 1, "device_type": "cuda"}
    assert made.custom_amp_decorator(lambda **named: named, False)(a=1) == {"a": 1}

    class Twice(torch.autograd.Function):
        @staticmethod
        @made.custom_fwd
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        @made.custom_bwd
        def backward(ctx: Any, dy: Any) -> Any:
            return 2 * dy

    x = torch.ones(3, requires_grad=True)
    Twice.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
