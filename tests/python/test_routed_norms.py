# SPDX-License-Identifier: MIT
"""F.layer_norm and F.group_norm inside `use`, and tilekiln.torch.group_norm: values, gradients, layouts, fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
twice = pytest.importorskip("tests.python.twice")
pytestmark = pytest.mark.torch
functional = torch.nn.functional
CASES = [
    ((2, 12, 5, 7), 4, False),
    ((2, 12, 5, 7), 4, True),
    ((3, 8), 2, False),
    ((2, 6, 9), 3, False),
    ((2, 8, 2, 3, 4), 2, False),
]


@pytest.fixture(autouse=True)
def library(load: Callable[..., tk.Library], finds: Callable[..., None]) -> Any:
    from tilekiln.torch import routed_norms

    found = load("norm_default", targets="all")
    finds(found)
    routed_norms._has.cache_clear()
    yield found
    routed_norms._has.cache_clear()


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_group_norm_and_its_gradients(case: Any, dtype: torch.dtype, activation: str) -> None:
    from tilekiln.torch import group_norm

    shape, groups, last = case
    torch.manual_seed(0)
    form = {"memory_format": torch.channels_last if last else torch.contiguous_format}
    given = [torch.randn(shape).to(dtype).contiguous(**form), *(torch.randn(shape[1]).to(dtype) for _ in "wb")]
    dy, made = torch.randn(shape).to(dtype), []
    for exact in (False, True):
        leaves = [(one.double() if exact else one.clone()).requires_grad_() for one in given]
        y = (functional.group_norm if exact else group_norm)(leaves[0], groups, *leaves[1:])
        if exact and activation == "silu":
            y = functional.silu(y)
        elif not exact and activation == "silu":
            y = group_norm(leaves[0], groups, *leaves[1:], activation=activation)
        made.append((y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))))
        if not exact:
            assert y.is_contiguous(**form)
            assert torch.equal(y, group_norm(given[0], groups, *given[1:], activation=activation))
    most = 2e-5 if dtype == torch.float32 else 2**-6
    for mine, its in zip(*made, strict=True):
        assert (mine.double() - its).abs().max() <= most * its.abs().max()


def test_group_norm_traced_and_transformed() -> None:
    from tilekiln.torch import group_norm

    x, weight = torch.randn(2, 16, 8, 8, requires_grad=True), torch.randn(16, requires_grad=True)

    def loss(x: Any, weight: Any) -> Any:
        return (group_norm(x, 4, weight, activation="silu") ** 2).sum()

    eager = torch.autograd.grad(loss(x, weight), (x, weight))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, weight), (x, weight)), eager)
    torch.testing.assert_close(torch.func.grad(loss)(x.detach(), weight.detach()), eager[0])
    several = torch.stack([x.detach(), 2 * x.detach()])
    torch.testing.assert_close(torch.func.vmap(lambda one: group_norm(one, 4))(several)[1], group_norm(several[1], 4))
    with pytest.raises(ValueError, match="activation: was 'gelu', must be 'none' or 'silu'"):
        group_norm(x, 4, activation="gelu")
    with pytest.raises(ValueError, match="x: had 1 dimensions, must have 2 or more"):
        group_norm(x[0, 0, 0], 4)
    with pytest.raises(tk.ArgumentError, match="groups: was 3, must divide 16, the channels of x"):
        group_norm(x.detach(), 3)


def test_gradients_of_gradients_and_weights_of_any_strides() -> None:
    """As without `use`: a penalty on gradients, a parameter that is a part of another, or one number for all."""
    import tilekiln.torch

    torch.manual_seed(0)
    x, wide = torch.randn(2, 6, 4, 8), torch.randn(2, 16)
    cases: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (lambda x, w, b: functional.layer_norm(x, (8,), w[::2], b[:1].expand(8)), (x, *wide)),
        (lambda x, w: functional.layer_norm(x, (4, 8), w.reshape(8, 4).T), (x, wide)),
        (lambda x, w, b: functional.group_norm(x, 3, w[:12:2], b[:1].expand(6)), (x, *wide)),
        (lambda x: functional.group_norm(x.to(memory_format=torch.channels_last), 2), (x,)),
    ]

    def routed(function: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*given: Any) -> Any:
            with tilekiln.torch.use():
                return function(*given)

        return inside

    for function, given in cases:
        torch.testing.assert_close(routed(function)(*given), function(*given), rtol=1e-4, atol=1e-5)
        twice.agree(routed(function), function, *given)
    ours, stock = tilekiln.torch.group_norm, functional.group_norm
    twice.agree(
        lambda x, w: ours(x, 3, w[:6], activation="silu"), lambda x, w: functional.silu(stock(x, 3, w[:6])), x, wide[0]
    )


def test_use_routes_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    import tilekiln.torch
    from tilekiln.torch import routed_norms

    asked: list[str] = []
    for name in ("layer_norm", "group_norm"):
        owner = routed_norms.norms if name == "layer_norm" else routed_norms
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, name=name, real=real: [asked.append(name), real(*given)][1])
    own = functional.layer_norm, functional.group_norm
    x = torch.randn(2, 6, 4, 8)
    layers = [torch.nn.LayerNorm(8), torch.nn.LayerNorm((4, 8), bias=False)]
    layers += [torch.nn.GroupNorm(3, 6), torch.nn.GroupNorm(6, 6, affine=False)]
    with tilekiln.torch.use():
        made = [layer(x) for layer in layers]
        assert asked == ["layer_norm", "layer_norm", "group_norm", "group_norm"]
        # Left to torch: fp64, no weight, forward mode, sums under autocast, and what is wrong.
        functional.layer_norm(x.double(), (8,))
        functional.layer_norm(x, (8,))
        with torch.autocast("cpu", torch.bfloat16):
            layers[0](x)
        torch.func.jvp(layers[0], (x,), (x,))
        with pytest.raises(RuntimeError, match="Expected number of channels"):
            functional.group_norm(x, 4)
        with pytest.raises(RuntimeError, match="Given normalized_shape"):
            functional.layer_norm(x, (7,), torch.ones(7))
        torch.testing.assert_close(torch.compile(layers[0], backend="aot_eager")(x), made[0])
        assert len(asked) == 4
    assert (functional.layer_norm, functional.group_norm) == own
    for layer, ours in zip(layers, made, strict=True):
        torch.testing.assert_close(ours, layer(x), rtol=2e-5, atol=2e-6)
    monkeypatch.setattr("tilekiln.api.operators._at_hand", list)
    routed_norms._has.cache_clear()
    with tilekiln.torch.use():
        assert torch.equal(layers[0](x), own[0](x, (8,), layers[0].weight, layers[0].bias))
