# SPDX-License-Identifier: MIT
"""Activation checkpoints around attention: what autograd saves, and where recomputation is routed."""

from __future__ import annotations

from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
F = torch.nn.functional

from tests.python.test_torch_native import native  # noqa: E402

__all__ = ["native"]


def _checkpoint(*given: Any, **named: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(*given, **named)


@pytest.mark.parametrize("hdim", [8, 24, 16, 40])
def test_the_first_step_of_a_shape(native: Any, hdim: int) -> None:
    """Tensors saved by the forward and by its recomputation are as many, though the first call finds its library."""
    layer = torch.nn.TransformerEncoderLayer(4 * hdim, 4, 128, batch_first=True, dropout=0.0)
    x = torch.randn(2, 20, 4 * hdim)
    with tk.torch.use():
        _checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("causal", [False, True])
def test_hooks_see_each_tensor_once(native: Any, causal: bool) -> None:
    q = torch.randn(1, 2, 9, 48, requires_grad=True)
    counts = []
    for _ in range(3):
        packed: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, packed=packed: packed.append(x) or x, lambda x: x):
            out = tk.torch.sdpa(q, q, q, is_causal=causal)
        counts.append(len(packed))
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q, is_causal=causal))
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_recomputation_goes_where_the_forward_went(native: Any, reentrant: bool, inside: bool) -> None:
    """Also a backward outside of `use`: else its dropout has another mask."""

    def attend(q: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, q, v, dropout_p=0.3)

    q = torch.randn(1, 2, 20, 16, requires_grad=True)
    v = torch.eye(20).expand(1, 2, 20, 20).clone().requires_grad_()
    torch.manual_seed(7)
    with tk.torch.use():
        want = attend(q, v)
        gradients = torch.autograd.grad(want.sum(), (q, v))
    torch.manual_seed(7)
    with tk.torch.use():
        out = _checkpoint(attend, q, v, use_reentrant=reentrant)
        if inside:
            out.sum().backward()
    if not inside:
        out.sum().backward()
    assert torch.equal(out, want)
    assert torch.equal(q.grad, gradients[0])
    assert torch.equal(v.grad, gradients[1])
    torch.manual_seed(7)  # and what was checkpointed outside is torch's
    theirs = _checkpoint(attend, q, v, use_reentrant=reentrant)
    torch.manual_seed(7)
    assert torch.equal(theirs, attend(q, v))
