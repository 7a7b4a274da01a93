"""matmul, linear, PackedWeight and flatmm: against float64, packed against unpacked, on every ISA."""

from __future__ import annotations

import itertools
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
def test_torch() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(33, 70).bfloat16()
    x = torch.randn(2, 5, 33).bfloat16()
    expected = torch.nn.functional.silu(x.double() @ layer.weight.detach().double().T + layer.bias.detach().double())
    packed = tk.PackedWeight(layer.weight)
    assert torch.equal(packed.unpack(), layer.weight)
    for weight in (layer.weight.detach(), packed):
        with pytest.raises(tk.ArgumentError, match="bias: requires grad, and linear has no derivative: call it under"):
            tk.linear(x, weight, layer.bias)
        made = tk.linear(x, weight, layer.bias.detach(), activation="silu")
        assert made.dtype == torch.bfloat16
        assert torch.allclose(made.double(), expected, rtol=2**-7, atol=2**-9)
        with torch.no_grad():
            assert torch.equal(tk.linear(x, weight, layer.bias, activation="silu"), made)
    with pytest.raises(tk.ArgumentError, match="b: requires grad, and matmul has no derivative"):
        tk.matmul(x[0], layer.weight.T)


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
