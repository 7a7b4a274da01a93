# SPDX-License-Identifier: MIT
"""matmul, linear, PackedWeight and flatmm: against float64, packed against unpacked, on every ISA.

matmul calls gemm or batched_gemm, linear gemm or flatmm.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gemm as reference

from tests.python.guard import guarded
from tests.python.test_gemm import DTYPES, TARGETS, draw
from tests.python.test_gemm_lists import check, kernel

FLOATS = [dtype for dtype in DTYPES if dtype != "int8"]
F32 = np.float32


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_default", targets="all")


@pytest.mark.parametrize("dtype", FLOATS)
def test_pack_and_unpack_are_inverse(dtype: str) -> None:
    random = np.random.default_rng(1)
    for n, k in [(64, 8), (1, 1), (130, 7), (63, 2), (0, 5), (5, 0)]:
        weight = draw(random, n, k, dtype, False)
        packed = tk.PackedWeight(weight)
        word = 2 if dtype == "bf16" else 1
        assert packed.panels.shape == (-(-n // 64), -(-k // word), 64, word)
        assert packed.unpack().tobytes() == weight.tobytes()
        assert packed.unpack().dtype == weight.dtype
        assert f"n={n} k={k}" in repr(packed)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_flatmm(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(2)
    columns = itertools.cycle([1, 64, 70, 130, 300])
    rows = [1, 2, 5, 6, 7, 13, 19, 31, 250, 0]
    for m, k in zip([*rows, 3, 700], itertools.cycle([1, 2, 129, 256, 301, 4100, 0]), strict=False):
        n = next(columns)
        a, weight = draw(random, m, k, dtype, m % 2 == 0), draw(random, n, k, dtype, False)
        panels = guarded(tk.PackedWeight(weight).panels, "after")
        bias = np.zeros((panels.shape[0], 64), F32)
        bias.reshape(-1)[:n] = random.standard_normal(n)
        call = {"bias": bias, "activation": "silu", "alpha": 0.5}
        number = kernel(library, "flatmm", target, a, panels, **call)
        made = library.flatmm(a, panels, instance=number, **call).reshape(m, panels.shape[0] * 64)[:, :n]
        check(made, reference.gemm(a, weight.T, bias=bias.reshape(-1)[:n], activation="silu", alpha=0.5))
        c = guarded(draw(random, m, panels.shape[0] * 64, dtype, False).reshape(m, -1, 64), "after") if m else None
        if c is not None:
            number = kernel(library, "flatmm", target, a, panels, c=c, beta=-2.0, **call)
            made = library.flatmm(a, panels, c=c, beta=-2.0, instance=number, **call).reshape(m, -1)[:, :n]
            of_bias = {"bias": bias.reshape(-1)[:n], "activation": "silu", "alpha": 0.5}
            check(made, reference.gemm(a, weight.T, c.reshape(m, -1)[:, :n], beta=-2.0, **of_bias))
        plain = library.flatmm(a, panels, instance=kernel(library, "flatmm", target, a, panels))
        check(plain.reshape(m, panels.shape[0] * 64)[:, :n], reference.gemm(a, weight.T))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_have_the_bits_that_they_have_among_others(library: tk.Library, target: str, dtype: str) -> None:
    """A few rows take another way through packed weights than many."""
    random = np.random.default_rng(4)
    for k in (2100, 17701):  # the latter in two parts, where rows of bf16 are widened
        a, weight = draw(random, 20, k, dtype, False), draw(random, 70, k, dtype, False)
        panels = tk.PackedWeight(weight).panels
        number = kernel(library, "flatmm", target, a, panels)
        whole = library.flatmm(a, panels, instance=number)
        for m in (1, 2, 3, 4, 5, 7, 8, 9, 13, 16):
            few = library.flatmm(a[:m], panels, instance=number)
            assert np.array_equal(few.view(np.uint8), whole[:m].view(np.uint8)), (k, m)


@pytest.mark.usefixtures("at_hand")
def test_linear_and_matmul() -> None:
    random = np.random.default_rng(3)
    x, weight = draw(random, 24, 33, "bf16", False).reshape(2, 3, 4, 33), draw(random, 70, 33, "bf16", False)
    bias = draw(random, 1, 70, "bf16", False)[0]
    expected = reference.gemm(x.reshape(24, 33), weight.T, bias=bias, activation="gelu")
    for one in (weight, tk.PackedWeight(weight)):
        made = tk.linear(x, one, bias, activation="gelu")
        assert made.shape == (2, 3, 4, 70)
        check(made.reshape(24, 70), expected)
        assert tk.linear(x[0, 0, 0], one).shape == (70,)
        residual = draw(random, 24, 70, "bf16", False)
        call: dict[str, Any] = {"beta": 0.5, "activation": "gelu"}
        made = tk.linear(x, one, bias, c=residual.reshape(2, 3, 4, 70), **call)
        check(made.reshape(24, 70), reference.gemm(x.reshape(24, 33), weight.T, residual, bias=bias, **call))
        assert tk.linear(x[:0], one, c=residual.reshape(2, 3, 4, 70)[:0]).shape == (0, 3, 4, 70)
    a, b = draw(random, 6, 5, "fp32", False), draw(random, 5, 9, "fp32", False)
    check(tk.matmul(a, b, alpha=2.0), reference.gemm(a, b, alpha=2.0))
    many = np.broadcast_to(b, (3, 5, 9))
    check(tk.matmul(np.stack([a] * 3), many)[2], reference.gemm(a, b))


@pytest.mark.usefixtures("at_hand")
def test_compiled() -> None:
    """torch.compile(fullgraph) follows matmul and linear to PyTorch's operators; gradients, too."""
    torch = pytest.importorskip("torch")
    x, weight, bias = torch.randn(2, 5, 33), torch.randn(70, 33), torch.randn(70)

    def layer(x: Any, weight: Any) -> Any:
        made = tk.linear(x, weight, bias, activation="silu") + tk.linear(x, weight)
        return made[0] - tk.matmul(x[1], weight.T)

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, weight), layer(x, weight))
    weight.requires_grad_()
    (found,) = torch.autograd.grad(compiled(x, weight).square().sum(), weight)
    (right,) = torch.autograd.grad(layer(x, weight).square().sum(), weight)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("before", ["", "import numpy, tilekiln\nx = numpy.ones((3, 4), 'f')\ntilekiln.linear(x, x)\n"])
def test_compiled_at_the_first_call(library: tk.Library, before: str) -> None:
    """The first use of a name is in a compiled function, or was before PyTorch came: no import is left to be traced."""
    pytest.importorskip("torch")
    code = (
        f"{before}import torch, tilekiln as tk\n"
        "x, w = torch.randn(3, 33), torch.randn(5, 33)\n"
        "layer = torch.compile(lambda x, w: tk.linear(x, w), backend='aot_eager', fullgraph=True)\n"
        "torch.testing.assert_close(layer(x, w), x @ w.T)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TILEKILN_PATH": str(library.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.usefixtures("at_hand")
def test_torch() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(33, 70).bfloat16()
    x = torch.randn(2, 5, 33).bfloat16()
    expected = torch.nn.functional.silu(x.double() @ layer.weight.detach().double().T + layer.bias.detach().double())
    packed = tk.PackedWeight(layer.weight)
    assert torch.equal(packed.unpack(), layer.weight)
    for weight in (layer.weight.detach(), packed):
        made = tk.linear(x, weight, layer.bias.detach(), activation="silu")
        assert made.dtype == torch.bfloat16
        assert torch.allclose(made.double(), expected, rtol=2**-7, atol=2**-9)
        with torch.no_grad():
            assert torch.equal(tk.linear(x, weight, layer.bias, activation="silu"), made)
    with pytest.raises(
        tk.ArgumentError, match="bias: requires grad, and linear of a quantised weight has no derivative"
    ):
        tk.linear(x, tk.QuantisedWeight(torch.randn(70, 64), bits=8, group=64), layer.bias)


def gradients(out: Any, *inputs: Any) -> tuple[Any, ...]:
    import torch

    found: tuple[Any, ...] = torch.autograd.grad(out.double().sin().sum(), [one for one in inputs if one.requires_grad])
    return found


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"])
@pytest.mark.usefixtures("at_hand")
def test_gradients_of_linear(activation: str) -> None:
    torch = pytest.importorskip("torch")
    from tilekiln.torch import products

    functions = {**products.ACTIVATIONS, "none": lambda y: y, "clamp": lambda y: y.clamp(0, 6)}
    torch.manual_seed(1)
    x, weight = torch.randn(2, 5, 33, requires_grad=True), torch.randn(70, 33, requires_grad=True)
    bias, c = torch.randn(70, requires_grad=True), torch.randn(2, 5, 70, requires_grad=True)
    right = functions[activation](0.5 * x @ weight.T + bias + 2 * c)
    ours = tk.linear(x, weight, bias, c=c, alpha=0.5, beta=2.0, activation=activation)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)
    inputs = (x, weight, bias, c)
    for mine, theirs in zip(gradients(ours, *inputs), gradients(right, *inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    packed = tk.linear(x, tk.PackedWeight(weight.detach()), activation=activation)
    (mine,) = gradients(packed, x)
    (theirs,) = gradients(functions[activation](x @ weight.detach().T), x)
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("at_hand")
def test_gradients_of_matmul() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(2)
    for shape in ((), (3,)):
        a, b = torch.randn(*shape, 7, 9, requires_grad=True), torch.randn(*shape, 9, 6, requires_grad=True)
        for one, other in ((a, b), (b.mT, a.mT)):  # rows, and columns
            for mine, theirs in zip(gradients(tk.matmul(one, other), a, b), gradients(one @ other, a, b), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    layer, x = torch.nn.Linear(33, 70, bias=False).bfloat16(), torch.randn(8, 33).bfloat16()
    tk.linear(x, layer.weight).sum().backward()  # a gradient of one number, expanded
    assert layer.weight.grad.is_contiguous()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(70, 33), rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        assert not tk.matmul(x, layer.weight.T).requires_grad
    with pytest.raises(tk.ArgumentError, match="stream: was given, must be absent when a gradient is recorded"):
        tk.linear(x, layer.weight, stream=tk.Stream())


@pytest.mark.usefixtures("at_hand")
def test_bad_input(library: tk.Library) -> None:
    x, weight = np.zeros((4, 6), F32), np.zeros((70, 6), F32)
    packed = tk.PackedWeight(weight)
    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: tk.linear(x[:, :5], packed), "x: k was 5, must be 6, the k of weight"),
        (lambda: tk.linear(x, packed, c=x), r"c: shape was \(4, 6\), must be \(4, 70\), that of the result"),
        (lambda: tk.linear(x, tk.PackedWeight(weight[None])), "weight: had groups, must be packed from"),
        (lambda: tk.linear(x, packed, np.zeros(5, F32)), r"bias: shape was \(5,\), must be \(70,\), the n of weight"),
        (lambda: tk.linear(x, weight[0]), r"weight: had 1 dimensions, must have 2: \(n, k\)"),
        (
            lambda: tk.PackedWeight(weight[0]),
            r"weight: had 1 dimensions, must have 2, \(n, k\), or 3, \(groups, n, k\)",
        ),
        (lambda: tk.PackedWeight(weight.astype(np.int8)), "weight: dtype was int8, must be fp32, fp16 or bf16"),
        (lambda: tk.linear(x.astype(np.float16), packed), "weight: dtype was float32, must be float16, the dtype of x"),
        (lambda: tk.linear(x.tolist(), weight), "x: was a list, must be an array of NumPy or torch"),
        (lambda: tk.linear(x, weight.tolist()), "weight: was a list, must be an array of NumPy or torch"),
        (lambda: tk.linear(x, weight, "b"), "bias: was a str, must be an array of NumPy or torch"),
        (lambda: tk.PackedWeight("w"), "weight: was a str, must be an array of NumPy or torch"),
        (lambda: tk.linear(x[:, :5], weight), "weight: k was 6, must be 5, the k of x"),
        (lambda: library.flatmm(x[:, :5], packed.panels), "b: words was 6, must be 5, the k of a by word elements"),
        (lambda: library.flatmm(x, packed.panels[:, :, :32]), "b: lane count was 32, must be 64, always"),
        (lambda: library.flatmm(x, np.zeros((2, 6, 64, 2), F32)), "b: word elements was 2, must be 1, those of fp16"),
        (lambda: library.flatmm(x, np.zeros((4, 6, 64, 1), F32)[::2]), "b: stride of dimension 0 was 768, must be 384"),
    ]
    for call, text in bad:
        with pytest.raises(tk.ArgumentError, match=text):
            call()
