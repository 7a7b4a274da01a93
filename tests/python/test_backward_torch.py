# SPDX-License-Identifier: MIT
"""torch: gradients as tensors, and autograd through tk.attention against torch's own attention."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import dtypes

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DTYPES = {word: dtypes.TORCH[word] for word in ("fp32", "fp16", "bf16")}
CLOSE = {"fp32": 2e-5, "fp16": 4e-3, "bf16": 4e-2}


@pytest.fixture(autouse=True)
def libraries(load, finds):
    """The available libraries: flash, and ck_default for biases."""
    finds(load("flash"), load("ck_default"))


def tensors(dtype: str, *shapes: tuple[int, ...]) -> list:
    generator = torch.Generator(DEVICE).manual_seed(5)
    return [torch.randn(shape, generator=generator).to(DTYPES[dtype]).requires_grad_() for shape in shapes]


def assert_close(ours, theirs, dtype):
    for got, expected in zip(ours, theirs, strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        size = expected.abs().max().item()
        assert (got - expected).abs().max().item() <= CLOSE[dtype] * max(size, 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_against_torch(dtype, causal, layout):
    shape = (2, 90, 4, 32) if layout == "bshd" else (2, 4, 90, 32)
    q, k, v = tensors(dtype, shape, shape, shape)
    [dout] = tensors(dtype, shape)
    out = tk.attention(q, k, v, causal=causal, layout=layout)
    assert out.requires_grad
    ours = torch.autograd.grad(out, (q, k, v), dout.detach())
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    heads = exact if layout == "bhsd" else [x.transpose(1, 2) for x in exact]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal)
    if layout == "bshd":
        expected = expected.transpose(1, 2)
    theirs = torch.autograd.grad(expected, exact, dout.detach().double())
    assert_close(ours, [x.to(DTYPES[dtype]) for x in theirs], dtype)
    assert_close([out], [expected.to(DTYPES[dtype])], dtype)


@pytest.mark.parametrize("shape", [(2, 4, 50, 70), (1, 1, 50, 70), (2, 1, 50, 70)], ids=str)
def test_bias_gradient_has_the_shape_of_the_bias(shape):
    q, k, v, bias = tensors("bf16", (2, 50, 4, 32), (2, 70, 2, 32), (2, 70, 2, 32), shape)
    out = tk.attention(q, k, v, bias=bias)
    ours = torch.autograd.grad(out.sum(), (q, bias))
    heads = [x.detach().float().transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in (q, k, v)]
    exact_bias = bias.detach().float().requires_grad_()
    exact_q = heads[0].requires_grad_()
    expected = torch.nn.functional.scaled_dot_product_attention(exact_q, *heads[1:], attn_mask=exact_bias)
    dq, dbias = torch.autograd.grad(expected.sum(), (exact_q, exact_bias))
    assert ours[1].shape == bias.shape
    assert_close(ours, [dq.transpose(1, 2).bfloat16(), dbias.bfloat16()], "bf16")


def test_sink_varlen_and_gradients_of_some():
    """Only what requires grad gets one; group mode with a sink logit per head."""
    q, k, v = tensors("bf16", (10, 4, 32), (12, 2, 32), (12, 2, 32))
    q = q.detach()
    sink = torch.randn(4, requires_grad=True)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 6, 10], [0, 4, 8, 12]))
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": True}
    out, lse = tk.attention(q, k, v, sink=sink, return_lse=True, **options)
    assert not lse.requires_grad
    out.float().square().sum().backward()
    arrays = {name: x.detach().float().numpy() for name, x in (("q", q), ("k", k), ("v", v), ("sink", sink))}
    options = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    expected = tk.reference.fmha_bwd(2 * out.detach().float().numpy(), **arrays, **options, d_sink=True)
    assert q.grad is None
    exact = [torch.from_numpy(x).to(y.dtype) for x, y in zip(expected[1:], (k, v, sink), strict=True)]
    assert_close([k.grad, v.grad, sink.grad], exact, "bf16")


def test_dropout_is_replayed():
    q, k, v = tensors("fp32", *[(1, 40, 2, 32)] * 3)
    options = {"dropout_p": 0.4, "rng": (7, 9)}
    tk.attention(q, k, v, **options).sum().backward()
    arrays = [x.detach().numpy() for x in (q, k, v)]
    expected = tk.reference.fmha_bwd(np.ones((1, 40, 2, 32)), *arrays, **options)
    for got, exact in zip((q.grad, k.grad, v.grad), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), exact, rtol=1e-4, atol=1e-5)


def test_directional_differences_in_fp32():
    """A check as gradcheck's, which would need an fp64 kernel."""
    q, k, v = tensors("fp32", *[(1, 33, 2, 16)] * 3)
    weight = torch.randn(1, 33, 2, 16)

    def loss(*arrays):
        return (tk.attention(*arrays, causal=True) * weight).double().sum()

    gradients = torch.autograd.grad(loss(q, k, v), (q, k, v))
    for i, gradient in enumerate(gradients):
        direction = torch.randn(1, 33, 2, 16) / 10
        step = 3e-2
        sides = []
        for sign in (1, -1):
            moved = [q.detach(), k.detach(), v.detach()]
            moved[i] = moved[i] + sign * step * direction
            sides.append(loss(*moved).item())
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(
            (gradient * direction).sum().item(), rel=1e-3, abs=1e-3
        )


def test_expanded_gradients_and_strided_inputs():
    """sum() hands over a gradient that is one number; inputs may be slices of one projection."""
    [qkv] = tensors("fp32", (2, 30, 3, 4, 32))
    out = tk.attention(*qkv.unbind(2))
    out.sum().backward()
    arrays = [x.detach().numpy() for x in qkv.unbind(2)]
    expected = tk.reference.fmha_bwd(np.ones((2, 30, 4, 32)), *arrays)
    np.testing.assert_allclose(qkv.grad.numpy(), np.stack(expected, 2), rtol=1e-4, atol=1e-5)


def test_deterministic_follows_torch_and_the_argument(monkeypatch):
    from tilekiln.torch import operators

    seen = []
    real = operators._call

    def watched(operator, arrays, arguments):
        if operator == "fmha_bwd":
            seen.append(arguments.get("deterministic", False))
        return real(operator, arrays, arguments)

    monkeypatch.setattr(operators, "_call", watched)
    monkeypatch.setattr("tilekiln.torch.native.library", None)  # test_torch_native_gradients.py has the other way
    q, k, v = tensors("fp32", *[(1, 8, 2, 16)] * 3)
    tk.attention(q, k, v).sum().backward()
    tk.attention(q, k, v, deterministic=True).sum().backward()
    torch.use_deterministic_algorithms(True)
    try:
        tk.attention(q, k, v).sum().backward()
        tk.attention(q, k, v, deterministic=False).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [False, True, True, False]


def test_without_grad_it_is_the_plain_call():
    q, k, v = tensors("fp32", *[(1, 8, 2, 16)] * 3)
    with torch.no_grad():
        out = tk.attention(q, k, v, out=torch.empty(1, 8, 2, 16))
    assert not out.requires_grad
    assert not tk.attention(q.detach(), k.detach(), v.detach()).requires_grad


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("out", torch.empty(1, 8, 2, 16)),
        ("lse", torch.empty(1, 2, 8)),
        ("stream", None),  # made in the test: collecting needs no binding
        ("min_seqlen_q", 3),
        ("q_descale", torch.ones(1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_autograd_cannot_take(name, value):
    q, k, v = tensors("fp32", *[(1, 8, 2, 16)] * 3)
    value = tk.Stream() if name == "stream" else value
    with pytest.raises(tk.ArgumentError, match=f"^{name}: .*must be .*torch.no_grad"):
        tk.attention(q, k, v, **{name: value})


def test_no_second_derivative():
    from tilekiln.torch import native

    q, k, v = tensors("fp32", *[(1, 8, 2, 16)] * 3)
    for loss in (tk.attention(q, k, v).sum(), tk.attention(q, k, v).square().sum()):
        [dq] = torch.autograd.grad(loss, q, create_graph=True)
        assert torch.isfinite(dq).all()
        # PyTorch's words where its own operator was recorded (tilekiln.torch.recorded).
        words = "no second derivative" if native.library is None else r"derivative for .* is not implemented"
        with pytest.raises(RuntimeError, match=words):
            dq.sum().backward()


def test_a_layer_learns():
    """Gradients that are right make the loss of a small layer fall, in every dtype."""
    for dtype in DTYPES.values():
        torch.manual_seed(0)
        weights = [torch.nn.Parameter((torch.randn(32, 32) / 6).to(dtype)) for _ in range(3)]
        x, target = torch.randn(2, 24, 32).to(dtype), torch.randn(2, 24, 32).to(dtype) / 4
        optimizer = torch.optim.SGD(weights, lr=1.0)
        losses = []
        for _ in range(30):
            q, k, v = ((x @ w).unflatten(-1, (2, 16)) for w in weights)
            loss = (tk.attention(q, k, v, causal=True).flatten(-2) - target).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_fmha_bwd_takes_and_gives_tensors(dtype, load):
    q, k, v, dout = (x.detach() for x in tensors(dtype, *[(2, 20, 4, 32)] * 4))
    library = load("flash")
    out, lse = library.fmha_fwd(q, k, v, return_lse=True)
    made = library.fmha_bwd(dout, q, k, v, out, lse)
    assert all(isinstance(x, torch.Tensor) and x.dtype == DTYPES[dtype] for x in made)
    mine = [torch.empty_like(x) for x in made]
    again = library.fmha_bwd(dout, q, k, v, out, lse, dq=mine[0], dk=mine[1], dv=mine[2])
    assert all(a is b for a, b in zip(again, mine, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(again, made, strict=True))


@pytest.mark.host_only("NumPy's arrays are moved by what knows PyTorch")
def test_numpy_alone_never_imports_torch(load):
    code = (
        "import sys, numpy as np, tilekiln as tk\n"
        "x = np.ones((1, 4, 1, 16), np.float32)\n"
        "out, lse = tk.attention(x, x, x, return_lse=True)\n"
        "tk.attention_backward(out, x, x, x, out, lse)\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {"TILEKILN_PATH": load("flash").path, "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
