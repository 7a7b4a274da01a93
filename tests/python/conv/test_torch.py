# SPDX-License-Identifier: MIT
"""Autograd of conv_fwd in PyTorch, beside that of its own convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def library(load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch) -> None:
    library = load("conv")
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [library])
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    import tilekiln.torch  # noqa: F401  # registers the operators


def leaves(*shapes: tuple[int, ...]) -> list[Any]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).requires_grad_() for shape in shapes]


WINDOWS = [
    ((2, 6, 9, 8), (4, 6, 3, 3), {"stride": [2, 1], "padding": [1, 2]}),
    ((2, 6, 9, 8), (12, 1, 3, 3), {"padding": [1, 1], "groups": 6}),
    ((2, 6, 19), (4, 3, 4), {"stride": [3], "dilation": [2], "groups": 2}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"stride": [1, 2, 2]}),
]


@pytest.mark.parametrize(("shape", "filters", "window"), WINDOWS, ids=["2d", "depthwise", "1d", "3d"])
def test_gradients_are_pytorchs(shape: tuple[int, ...], filters: tuple[int, ...], window: dict[str, Any]) -> None:
    function = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d, 5: torch.nn.functional.conv3d}[len(shape)]
    x, weight, bias = leaves(shape, filters, (filters[0],))
    for relu in (False, True):
        ours = torch.ops.tilekiln.conv_fwd(x, weight, bias=bias, activation="relu" if relu else "none", **window)
        theirs = function(x, weight, bias, **window)
        theirs = theirs.relu() if relu else theirs
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        dy = torch.randn_like(theirs)
        both = [torch.autograd.grad(y, (x, weight, bias), dy) for y in (ours, theirs)]
        for mine, other in zip(*both, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-3)


def test_what_has_no_gradient_is_refused() -> None:
    x, weight = leaves((1, 2, 5), (3, 2, 2))
    with pytest.raises(tk.ArgumentError, match=r"^activation: was 'gelu', must be 'none' or 'relu' when an input"):
        torch.ops.tilekiln.conv_fwd(x, weight, activation="gelu")


@pytest.mark.parametrize(("shape", "filters", "window"), WINDOWS, ids=["2d", "depthwise", "1d", "3d"])
def test_gradients_of_gradients(shape: tuple[int, ...], filters: tuple[int, ...], window: dict[str, Any]) -> None:
    function = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d, 5: torch.nn.functional.conv3d}[len(shape)]
    given, made = leaves(shape, filters, (filters[0],)), []
    for convolve in (
        lambda x, w, b: torch.ops.tilekiln.conv_fwd(x, w, bias=b, activation="relu", **window),
        lambda x, w, b: function(x, w, b, **window).relu(),
    ):
        first = torch.autograd.grad((convolve(*given) ** 3).mean(), given, create_graph=True)
        made.append(torch.autograd.grad(sum((one**2).sum() for one in first), given))
    for mine, other in zip(*made, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_compiled_as_one_graph() -> None:
    x, weight = leaves((2, 4, 6, 6), (8, 4, 3, 3))
    compiled = torch.compile(
        lambda x, w: torch.ops.tilekiln.conv_fwd(x, w, padding=[1]), fullgraph=True, backend="aot_eager"
    )
    eager = torch.ops.tilekiln.conv_fwd(x, weight, padding=[1])
    assert torch.equal(compiled(x, weight), eager)
    mine, other = (torch.autograd.grad(y.square().sum(), (x, weight)) for y in (compiled(x, weight), eager))
    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
