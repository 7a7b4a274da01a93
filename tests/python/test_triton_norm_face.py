# SPDX-License-Identifier: MIT
"""flash_attn.ops.triton.layer_norm against the same in float64: values, gradients, dtypes, what is returned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
COLUMNS, EPSILON = 96, 1e-5


@pytest.fixture(autouse=True)
def library(load: Callable[..., tk.Library], finds: Callable[..., None]) -> tk.Library:
    found = load("norm_default", targets="all")
    finds(found)
    return found


def exact(x: Any, weight: Any, bias: Any, residual: Any, x1: Any, rowscale: Any, rms: bool, centered: bool) -> Any:
    """(norm, sum) of what is given."""
    total = x if rowscale is None else x * rowscale[..., None]
    total = total + sum(one for one in (x1, residual) if one is not None)
    middle = total if rms else total - total.mean(-1, keepdim=True)
    made = middle / (middle.square().mean(-1, keepdim=True) + EPSILON).sqrt() * (weight + centered)
    return made if bias is None else made + bias, total


CASES = [
    (rms, residual, more, centered, dtype, of_weight)
    for (rms, residual, more, centered), (dtype, of_weight) in itertools.product(
        [
            (False, None, "", False), (True, torch.float32, "x1", False), (True, None, "rowscale", True),
            (False, torch.bfloat16, "x1", True), (True, torch.bfloat16, "", False),
        ],
        [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)],
    )
]  # fmt: skip


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rms", "residual", "more", "centered", "dtype", "of_weight"), CASES)
def test_values_and_gradients(
    rms: bool, residual: Any, more: str, centered: bool, dtype: Any, of_weight: Any, with_bias: bool
) -> None:
    from tilekiln.compat.flash_attn.ops.triton.layer_norm import layer_norm_fn, rms_norm_fn

    torch.manual_seed(3)
    given: dict[str, Any] = {
        "x": torch.randn(2, 5, COLUMNS).to(dtype), "weight": torch.randn(COLUMNS).to(of_weight),
        "bias": torch.randn(COLUMNS).to(of_weight) if with_bias else None,
        "residual": None if residual is None else torch.randn(2, 5, COLUMNS).to(residual),
        "x1": torch.randn(2, 5, COLUMNS).to(dtype) if more == "x1" else None,
        "rowscale": torch.rand(2, 5) if more == "rowscale" else None,
    }  # fmt: skip
    leaves = {name: one if one is None else one.clone().requires_grad_() for name, one in given.items()}
    wide = {name: one if one is None else one.double().requires_grad_() for name, one in given.items()}
    function = rms_norm_fn if rms else layer_norm_fn
    out, total = function(**leaves, eps=EPSILON, prenorm=True, zero_centered_weight=centered, residual_in_fp32=True)
    assert out.dtype is dtype
    assert total.dtype is (residual or torch.float32)
    expected = exact(**wide, rms=rms, centered=centered)
    weights = [torch.randint(-4, 5, out.shape) for _ in range(2)]
    sum((one * by).sum() for one, by in zip((out.double(), total.double()), weights, strict=True)).backward()
    sum((one * by).sum() for one, by in zip(expected, weights, strict=True)).backward()
    pairs = {"out": (out, expected[0]), "sum": (total, expected[1])}
    pairs |= {name: (leaf.grad, wide[name].grad) for name, leaf in leaves.items() if leaf is not None}
    for name, (mine, its) in pairs.items():
        rounding = max(torch.finfo(one).eps for one in (mine.dtype, total.dtype, dtype, of_weight))
        far = (mine.detach().double() - its.detach()).abs().max() / its.detach().abs().max()
        assert far <= (2e-5 if rounding < 1e-6 else 2 * rounding), (name, far)


def test_second_norms_masks_and_places() -> None:
    from tilekiln.compat.flash_attn.ops.triton.layer_norm import layer_norm_fn

    torch.manual_seed(1)
    x, x1, residual = (torch.randn(4, COLUMNS) for _ in range(3))
    weight, weight1, bias1 = (torch.randn(COLUMNS) for _ in range(3))
    options = {"residual": residual, "x1": x1, "weight1": weight1, "bias1": bias1, "dropout_p": 0.3, "prenorm": True}
    places = torch.zeros(4, COLUMNS), torch.zeros(4, COLUMNS)
    out, second, total, kept, kept1 = layer_norm_fn(
        x, weight, None, **options, return_dropout_mask=True, out=places[0], residual_out=places[1]
    )
    assert (out is places[0], total is places[1]) == (True, True)
    assert (kept.dtype, kept1.dtype) == (torch.bool, torch.bool)
    assert 0.5 < kept.float().mean() < 0.9
    torch.testing.assert_close(total, x * kept / 0.7 + x1 * kept1 / 0.7 + residual)
    norm = torch.nn.functional.layer_norm
    torch.testing.assert_close(out, norm(total, (COLUMNS,), weight, None, 1e-6))
    torch.testing.assert_close(second, norm(total, (COLUMNS,), weight1, bias1, 1e-6))
    alone, none, neither = layer_norm_fn(x, weight, None, return_dropout_mask=True, out_dtype=torch.bfloat16)
    assert (alone.dtype, none, neither) == (torch.bfloat16, None, None)


def test_the_module_and_bad_input() -> None:
    from tilekiln.compat.flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn

    x = torch.randn(3, COLUMNS)
    layer = RMSNorm(COLUMNS, zero_centered_weight=True, dropout_p=0.5)
    assert not layer.weight.any()
    torch.testing.assert_close(layer.eval()(x), torch.nn.functional.rms_norm(x, (COLUMNS,), None, 1e-5))
    assert (layer.train()(x) == 0).float().mean() > 0.2
    weight = torch.ones(COLUMNS)
    with pytest.raises(ValueError, match="rowscale: was given, must be absent beside x1"):
        layer_norm_fn(x, weight, None, x1=x, rowscale=torch.ones(3))
    with pytest.raises(ValueError, match=r"out: shape was \(2, 96\), must be \(3, 96\)"):
        layer_norm_fn(x, weight, None, out=torch.empty(2, COLUMNS))
