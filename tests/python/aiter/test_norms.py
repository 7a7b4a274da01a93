# SPDX-License-Identifier: MIT
"""Norms and activations of tilekiln.compat.aiter against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import QUANTISED, normal, over, undone  # noqa: E402

pytestmark = pytest.mark.torch
EPS = 1e-3
STEP = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = pytest.mark.parametrize("dtype", STEP, ids=str)


@pytest.fixture
def face(binding, load, monkeypatch):
    return over(monkeypatch, load("norm_default"))


def close(ours, exact, dtype):
    torch.testing.assert_close(ours.double(), exact.double(), atol=STEP[dtype], rtol=STEP[dtype])


def rms(x, weight):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def layer(x, weight=None, bias=None):
    d = x.shape[-1:]
    return torch.nn.functional.layer_norm(x.double(), d, *(w if w is None else w.double() for w in (weight, bias)), EPS)


@DTYPES
def test_rms_norms_into_new_tensors(face, dtype):
    x, weight = normal(3, 5, 64, dtype=dtype), normal(64, seed=1, dtype=dtype)
    for function in (face.rms_norm, face.rmsnorm2d_fwd, face.rmsnorm2d_fwd_opus):
        y = function(x, weight, EPS)
        assert (y.shape, y.dtype) == (x.shape, dtype)
        close(y, rms(x, weight), dtype)
    once = x.float() / (x.float().square().mean(-1, keepdim=True) + EPS).sqrt()
    close(face.rms_norm(x, weight, EPS, 1), once.to(dtype) * weight, dtype)


@DTYPES
@pytest.mark.parametrize("gemma", [False, True])
def test_rms_norms_into_out(face, dtype, gemma):
    x, weight = normal(5, 64, dtype=dtype), normal(64, seed=1, dtype=dtype)
    exact = rms(x, weight.double() + gemma)
    for function in (face.rms_norm_opus, face.rmsnorm):
        out = torch.empty_like(x)
        assert function(out, x, weight, EPS, gemma_norm=gemma) is None
        close(out, exact, dtype)
    if not gemma:
        out = torch.empty_like(x)
        face.rms_norm_cu(out, x, weight, EPS)
        close(out, exact, dtype)


@DTYPES
@pytest.mark.parametrize("gemma", [False, True])
def test_rms_norms_of_sums(face, dtype, gemma):
    x, residual, weight = (normal(*s, seed=i, dtype=dtype) for i, s in enumerate([(5, 64), (5, 64), (64,)]))
    total = x + residual
    exact = rms(total, weight.double() + gemma)
    for function in (face.add_rmsnorm, face.rmsnorm2d_fwd_with_add, face.rmsnorm2d_fwd_with_add_opus):
        out, kept = torch.empty_like(x), torch.empty_like(x)
        function(out, x, residual, kept, weight, EPS, gemma_norm=gemma)
        close(kept, total, dtype)
        close(out, exact, dtype)
    for function in (face.fused_add_rms_norm_opus, face.fused_add_rms_norm_cu)[: 2 - gemma]:
        out, kept = x.clone(), residual.clone()
        function(out, kept, weight, EPS, **({"gemma_norm": True} if gemma else {}))
        close(kept, total, dtype)
        close(out, exact, dtype)


@QUANTISED
@pytest.mark.parametrize("add", [False, True])
def test_quantised_rms_norms(face, kind, add):
    dtype = torch.bfloat16
    x, residual, weight = (normal(*s, seed=i, dtype=dtype) for i, s in enumerate([(5, 64), (5, 64), (64,)]))
    smooth = normal(64, seed=7).abs() + 0.5
    plain = rms(x + residual if add else x, weight)

    def room(*shape):
        return torch.empty(5, 64, dtype=kind, device=DEVICE), torch.empty(*shape, device=DEVICE), torch.empty_like(x)

    between = "_with_add" if add else ""
    for suffix in ("", "_opus"):
        out, scale, kept = room(5, 1)
        given = (residual, kept) if add else ()
        getattr(face, f"rmsnorm2d_fwd{between}_dynamicquant{suffix}".replace("fwd_dyn", "fwd_with_dyn"))(
            out, x, *given, scale, weight, EPS
        )
        undone(out, scale, plain)
        out, scale, kept = room(5)
        given = (residual, kept) if add else ()
        before = {"out_before_quant": torch.empty_like(x)} if add else {}
        getattr(face, f"rmsnorm2d_fwd{between}_smoothquant{suffix}".replace("fwd_smo", "fwd_with_smo"))(
            out, x, *given, smooth, scale, weight, EPS, **before
        )
        undone(out, scale, plain * smooth.double())
        if add:
            close(before["out_before_quant"], plain, dtype)
            close(kept, x + residual, dtype)
    for group in (0, 16):
        out, scale, kept = room(5, 64 // (group or 64))
        given = (residual, kept) if add else ()
        (face.add_rmsnorm_quant if add else face.rmsnorm_quant)(out, x, *given, scale, weight, EPS, group)
        undone(out, scale, plain, group)


def test_names_of_quantised_rms_norms_are_called(face):
    """The names that the test above puts together."""
    for name in (
        "rmsnorm2d_fwd_with_smoothquant", "rmsnorm2d_fwd_with_add_smoothquant", "rmsnorm2d_fwd_with_dynamicquant",
        "rmsnorm2d_fwd_with_add_dynamicquant",
    ):  # fmt: skip
        for whole in (name, f"{name}_opus"):
            assert getattr(face.ops.rmsnorm, whole) is getattr(face, whole)
    assert {"rmsnorm2d_fwd_with_smoothquant_opus", "rmsnorm2d_fwd_with_add_smoothquant_opus"} <= set(face.__all__)
    assert {"rmsnorm2d_fwd_with_dynamicquant_opus", "rmsnorm2d_fwd_with_add_dynamicquant_opus"} <= set(face.__all__)


@DTYPES
def test_layer_norms(face, dtype):
    x, weight, bias, more = (normal(*s, seed=i, dtype=dtype) for i, s in enumerate([(3, 5, 64), (64,), (64,), (64,)]))
    close(face.layer_norm(x, epsilon=EPS), layer(x), dtype)
    close(face.layer_norm(x, weight, bias, EPS), layer(x, weight, bias), dtype)
    close(face.layernorm2d_fwd(x, weight, bias, EPS, more), layer(x + more, weight, bias), dtype)
    residual, kept, out = normal(3, 5, 64, seed=9, dtype=dtype), torch.empty_like(x), torch.empty_like(x)
    face.layernorm2d_fwd_with_add(out, x, residual, kept, weight, bias, EPS)
    close(kept, x + residual, dtype)
    close(out, layer(x + residual, weight, bias), dtype)


@QUANTISED
def test_quantised_layer_norms(face, kind):
    x, residual, weight, bias = (
        normal(*s, seed=i, dtype=torch.float16) for i, s in enumerate([(5, 64), (5, 64), (64,), (64,)])
    )
    smooth, kept = normal(64, seed=7).abs() + 0.5, torch.empty_like(x)
    out, scale = torch.empty(5, 64, dtype=kind, device=DEVICE), torch.empty(5, 1, device=DEVICE)
    face.layernorm2d_fwd_with_smoothquant(out, x, smooth, scale, weight, bias, EPS)
    undone(out, scale, layer(x, weight, bias) * smooth.double())
    face.layernorm2d_fwd_with_add_smoothquant(out, x, residual, kept, smooth, scale, weight, bias, EPS)
    undone(out, scale, layer(x + residual, weight, bias) * smooth.double())
    close(kept, x + residual, torch.float16)


@DTYPES
def test_group_norms(face, dtype):
    x, weight, bias = (normal(*s, seed=i, dtype=dtype) for i, s in enumerate([(2, 12, 5, 7), (12,), (12,)]))
    exact = torch.nn.functional.group_norm(x.double(), 4, weight.double(), bias.double(), EPS)
    close(face.groupnorm_run(x, 4, weight, bias, EPS), exact, dtype)
    module = face.GroupNorm(4, 12, EPS, device=DEVICE, dtype=dtype)
    plain = torch.nn.functional.group_norm(x.double(), 4, eps=EPS)
    with torch.no_grad():
        close(module(x), plain, dtype)
        close(module(x, use_torch=True), plain, dtype)
        close(face.GroupNorm(4, 12, EPS, affine=False)(x), plain, dtype)
    module(x).sum().backward()
    assert module.bias.grad is not None
    with pytest.raises(RuntimeError, match=r"^num_groups: was 5, must divide the channels of input"):
        face.groupnorm_run(x, 5, weight, bias, EPS)


def gated(x, limit=0.0):
    gate, up = x.double().chunk(2, -1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


@DTYPES
@pytest.mark.parametrize("limit", [0.0, 0.7])
def test_silu_and_mul(face, dtype, limit):
    x, out = normal(2, 3, 64, dtype=dtype), torch.empty(2, 3, 32, dtype=dtype, device=DEVICE)
    face.silu_and_mul(out, x, limit)
    close(out, gated(x, limit), dtype)
    wide = torch.empty(2, 3, 32, device=DEVICE)
    face.silu_and_mul(wide, x, limit)
    close(wide, gated(x, limit), torch.float32)
    bias, ids = normal(4, 64, seed=3, dtype=dtype), torch.tensor([1, 3, 0, 1, 2, 2], dtype=torch.int32, device=DEVICE)
    face.silu_and_mul_bias(out, x, ids, bias)
    close(out, gated(x.view(6, 64) + bias[ids.long()]).view(2, 3, 32), dtype)


@DTYPES
def test_gelu_and_swiglu(face, dtype):
    """By PyTorch's operators, in fp32, into out of any dtype."""
    functional = torch.nn.functional
    x, out = normal(2, 3, 64, dtype=dtype) * 3, torch.empty(2, 3, 32, dtype=dtype, device=DEVICE)
    bias, ids = normal(4, 64, seed=3), torch.tensor([1, 3, 0, 1, 2, 2], dtype=torch.int32, device=DEVICE)
    more = x.view(6, 64).float() + bias[ids.long()]
    acts = {
        "gelu_and_mul": lambda g, u: functional.gelu(g) * u,
        "gelu_tanh_and_mul": lambda g, u: functional.gelu(g, approximate="tanh") * u,
        "swiglu_and_mul": lambda g, u: g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7)) * (u.clamp(-7, 7) + 1),
    }
    for name, act in acts.items():
        getattr(face, name)(out, x)
        close(out, act(*x.double().chunk(2, -1)), dtype)
        if name != "gelu_tanh_and_mul":
            getattr(face, f"{name}_bias")(out, x, ids, bias)
            close(out, act(*more.double().chunk(2, -1)).view(2, 3, 32), dtype)
    assert face.gelu_and_mul_bias.__name__ == "gelu_and_mul_bias"
    assert face.swiglu_and_mul_bias.__name__ == "swiglu_and_mul_bias"
    whole = torch.empty_like(x)
    face.gelu_fast(whole, x)
    close(whole, functional.gelu(x.double(), approximate="tanh"), dtype)
    with pytest.raises(RuntimeError, match=r"^input: was of shape \(4, 63\), must have an even number"):
        face.gelu_and_mul(out, normal(4, 63))


@QUANTISED
def test_quantised_silu_and_mul(face, kind):
    x = normal(6, 128, dtype=torch.bfloat16)
    out, scale = torch.empty(6, 64, dtype=kind, device=DEVICE), torch.empty(6, 2, device=DEVICE)
    face.silu_and_mul_quant(out, x, scale, 32, 0.9)
    undone(out, scale, gated(x, 0.9), 32)
    by = torch.tensor([0.02], device=DEVICE)
    face.scaled_silu_and_mul(out, x, by)
    exact = gated(x) / 0.02
    most = 127 if kind == torch.int8 else 448
    torch.testing.assert_close(out.double(), exact.clamp(-most, most), rtol=0.07, atol=0.51)


def wrong(face) -> list[tuple[Any, str]]:
    x, w = normal(4, 64), normal(64)
    quantised, scale = torch.empty(4, 64, dtype=torch.int8, device=DEVICE), torch.empty(4, device=DEVICE)
    return [
        (lambda: face.rms_norm(x, normal(63), EPS), "weight: "),
        (lambda: face.rms_norm(x.long(), w, EPS), "input: "),
        (lambda: face.rms_norm_cu(torch.empty(4, 63, device=DEVICE), x, w, EPS), "out: "),
        (lambda: face.rmsnorm2d_fwd_with_add(x.clone(), x, normal(3, 64), x.clone(), w, EPS), "residual_in: "),
        (lambda: face.rmsnorm_quant(quantised, x, scale, w, EPS, 0, True), "shuffle_scale: was True, must be absent"),
        (lambda: face.rmsnorm_quant(quantised, x, scale[:3], w, EPS), "scale: "),
        (lambda: face.rmsnorm_quant(quantised, x, scale, w, EPS, 48), "input: was of shape (4, 64), must have a mult"),
        (lambda: face.rms_norm(None, w, EPS), "input: was None, must be a torch.Tensor"),
        (lambda: face.silu_and_mul(x, normal(4, 63)), "input: was of shape (4, 63), must have an even number"),
        (lambda: face.rmsnorm(x.clone(), normal(2, 2, 64).transpose(0, 1), w, EPS), "input: was of strides"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_wrong_arguments_are_named(face, number):
    call, said = wrong(face)[number]
    with pytest.raises((RuntimeError, ValueError)) as error:
        call()
    assert str(error.value).startswith(said)


def test_absent_names_say_what_to_use(face):
    for name, said in (("fmoe", "of packed weights; "), ("rotate_activation", "no kernel here")):
        with pytest.raises(AttributeError, match=rf"^aiter\.ops\.\w+\.{name} is not here: {said}"):
            getattr(face, name)
    assert math.isclose(face.QuantType.per_1x128.value, 4)
    assert face.ActivationType.Swiglu == 2
