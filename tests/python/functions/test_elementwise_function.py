# SPDX-License-Identifier: MIT
"""Functions of elements from Python against float64, their gradients beside PyTorch's, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import functions as reference

from tests.python.test_function_attention import store  # noqa: F401

SOURCE = (
    "where(x <= 0.5 and not (b > x or b != b), min(x, 3.5) * up + exp(tanh(b * 0.5)) / (1 + abs(x)), max(-x, b, 0.25)) "
    "- where(up > 0, 2, 0)"
)
SHAPES = [[(3, 70), (3, 70), (70,)], [(2, 1, 517), (3, 1), ()], [(0, 4), (4,), (1,)]]
TOLERANCE = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 2e-2}


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_against_float64(dtype: str) -> None:
    function = tk.elementwise_function(SOURCE)
    assert function.names == ["x", "b", "up"]
    random = np.random.default_rng(0)
    for shapes in SHAPES:
        arrays = [np.asarray(random.standard_normal(shape)).astype(NUMPY[dtype]) for shape in shapes]
        y = function(*arrays)
        names = dict(zip(function.names, (one.astype(np.float64) for one in arrays), strict=True))
        want = np.broadcast_to(reference.evaluate(function.node, names, {}), y.shape)
        assert y.dtype == arrays[0].dtype
        assert np.allclose(y.astype(np.float64), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        x, b, up = arrays
        assert function(up=up, x=x, b=b, num_threads=2).tobytes() == y.tobytes()
        with tk.Stream() as stream:
            later = function(x[::-1][::-1], b, up, stream=stream)
        assert later.tobytes() == y.tobytes()
        if x.shape == y.shape:
            assert function(x, b, up, out=x) is x
            assert x.tobytes() == y.tobytes()


@pytest.mark.torch
def test_gradients_and_compile_beside_pytorch() -> None:
    import torch

    function = tk.elementwise_function("x / (1 + exp(-x)) * up - max(b, abs(x))")

    def want(x: Any, up: Any, b: Any) -> Any:
        return torch.nn.functional.silu(x) * up - torch.maximum(b, x.abs())

    torch.manual_seed(0)
    arrays = [torch.randn(*shape, requires_grad=True) for shape in ((5, 33), (5, 1), (33,))]
    y = function(*arrays)
    assert torch.allclose(y, want(*arrays), atol=1e-5)
    gradient = torch.randn(5, 33)
    found, right = (torch.autograd.grad(one, arrays, gradient, create_graph=True) for one in (y, want(*arrays)))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, right, strict=True))
    second, wanted = (torch.autograd.grad(one[0].square().sum(), arrays[:2]) for one in (found, right))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(second, wanted, strict=True))
    compiled = torch.compile(lambda *given: function(*given) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*arrays), y * 2)
    with pytest.raises(tk.ArgumentError, match="out: was given, must be absent where an input requires grad"):
        function(*arrays, out=torch.empty(5, 33))


REFUSED = {
    "x > 1": "elementwise_function: 'x > 1' is a comparison, must be a number",
    "2 + 1": "elementwise_function: '2 + 1' names no array",
    "x[0] + 1": "elementwise_function: column 1 of 'x[0] + 1' indexes 'x': arrays are broadcast",
    "x + sin(x)": "elementwise_function: column 5 of 'x + sin(x)' calls 'sin(x)', which is not there",
    "x + math.sin(x)": "elementwise_function: column 5 of 'x + math.sin(x)' calls 'math.sin(x)'",
    "x +": "elementwise_function: column ",
    "x // 2": "elementwise_function: column 1 of 'x // 2' // is of integers, had a number of fp32",
    "out + 1": "elementwise_function: 'out' is no name of a tensor",
    " + ".join(f"x{i}" for i in range(9)): "elementwise_function: names 9 arrays, must name at most 8",
    "+".join(["x"] * 300): "elementwise_function: column 1 of",
}


@pytest.mark.parametrize("source", REFUSED, ids=lambda source: source[:20])
def test_what_is_no_function(source: str) -> None:
    with pytest.raises(tk.ArgumentError) as error:
        tk.elementwise_function(source)
    assert str(error.value).startswith(REFUSED[source])


@pytest.mark.day
def test_bad_calls() -> None:
    function, x = tk.elementwise_function("x + b"), np.zeros((3, 4), np.float32)
    for call, says in [
        ((), "x: was missing, must be an array: the function is of x, b"),
        ((x,), "b: was missing, must be an array"),
        ((x, x, x), "arrays: had 3, must be 2: x, b"),
        ((x.astype(np.int32), x), "x: dtype was int32, must be fp32, fp16 or bf16"),
        ((x, x.astype(np.float16)), "b: dtype was fp16, must be fp32"),
        ((x, x[:2]), "b: dimension 0 was 2 long, must be 1 or 3 as others are"),
    ]:
        with pytest.raises(tk.ArgumentError) as error:
            function(*call)
        assert str(error.value).startswith(says)
    with pytest.raises(tk.ArgumentError, match="z: was given, must be one of x, b"):
        function(x, z=x)
