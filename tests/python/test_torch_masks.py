# SPDX-License-Identifier: MIT
"""Masks and numbers of scaled_dot_product_attention that kernels take only with care, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

from tests.python.test_torch_sdpa import libraries, tkt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
F = torch.nn.functional
__all__ = ["libraries", "tkt"]


def test_a_gpu_rounds_masks() -> None:
    """It has no kernels of fp32. Seen on an H200, captured too, where PyTorch's own gives NaN for these."""
    from tilekiln.torch import dot_product
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        there = torch.empty(9, 9, device="cuda")
    assert dot_product.may_round(there, torch.bfloat16)
    assert not dot_product.may_round(torch.full((9, 9), 1.001), torch.bfloat16)
    assert dot_product.may_round(torch.full((9, 9), 1.5), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("middle", "width"), [(0, 5), (0, 20), (300, 1)])
def test_terms_of_fp32_are_not_rounded(tkt: Any, dtype: Any, middle: float, width: float) -> None:
    q, k, v = (torch.randn(1, 4, 130, 64).to(dtype) for _ in range(3))
    mask = middle + torch.randn(1, 4, 130, 130) * width
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask.double())
    step = torch.finfo(dtype).eps
    bound = step * exact.abs().max() + 2 * step * v.double().abs().max()

    def routed(*given: Any, **named: Any) -> Any:
        with tkt.use():
            return F.scaled_dot_product_attention(*given, **named)

    for call in (tkt.sdpa, routed):
        assert (call(q, k, v, attn_mask=mask).double() - exact).abs().max() < bound
    compiled = torch.compile(tkt.sdpa, backend="aot_eager", fullgraph=True)
    assert (compiled(q, k, v, attn_mask=mask).double() - exact).abs().max() < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_the_least_terms_has_the_mean(tkt: Any, dtype: Any) -> None:
    q, k, v = (torch.randn(1, 2, 9, 16).to(dtype) for _ in range(3))
    for of_mask in {dtype, torch.float32}:
        mask = torch.zeros(9, 9, dtype=of_mask)
        mask[3] = torch.finfo(of_mask).min
        ours, theirs = tkt.sdpa(q, k, v, attn_mask=mask), F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=2e-2)
        if of_mask != torch.float16:  # whose least number, 65504, leaves scores their difference
            torch.testing.assert_close(ours[:, :, 3].float(), v.float().mean(2), atol=1e-2, rtol=0)


def test_an_expanded_mask_stays_small(tkt: Any) -> None:
    from tilekiln.torch.dot_product import additive

    q = torch.randn(8, 8, 300, 16)
    for mask in (torch.rand(300, 300) > 0.5, torch.randn(300, 300)):
        given = mask.expand(8, 8, 300, 300)
        made = additive(given, (8,), q.bfloat16(), q.bfloat16())
        assert made.untyped_storage().nbytes() <= 2 * 300 * 300
        assert torch.equal(made[5, 3], additive(mask, (8,), q.bfloat16(), q.bfloat16())[0, 0])
    column = (torch.rand(8, 1, 1, 300) > 0.5).expand(8, 8, 300, 300)
    assert additive(column, (8,), q, q).untyped_storage().nbytes() <= 4 * 8 * 300 * 300
    torch.testing.assert_close(tkt.sdpa(q, q, q, attn_mask=column), F.scaled_dot_product_attention(q, q, q, column))


Z = (2, 2, 4, 8)
ODD: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "no heads": lambda: ((torch.randn(2, 0, 4, 8),) * 3, {}),
    "no head dim": lambda: ((torch.randn(2, 2, 4, 0), torch.randn(2, 2, 4, 0), torch.randn(Z)), {}),
    "infinite scale": lambda: ((torch.randn(Z),) * 3, {"scale": float("inf")}),
    "scale is no number": lambda: ((torch.randn(Z),) * 3, {"scale": float("nan")}),
    "scale past fp32": lambda: ((torch.randn(Z),) * 3, {"scale": 1e39}),
    "zero tensor": lambda: ((torch._efficientzerotensor(Z), torch.randn(Z), torch.randn(Z)), {}),
    "no key": lambda: ((torch.randn(Z), None, torch.randn(Z)), {}),
    "dropout in words": lambda: ((torch.randn(Z),) * 3, {"dropout_p": "0.1"}),
    "causal in words": lambda: ((torch.randn(Z),) * 3, {"is_causal": "yes"}),
    "scale that learns": lambda: ((torch.randn(Z),) * 3, {"scale": torch.nn.Parameter(torch.tensor(0.5))}),
    "mask of lists": lambda: ((torch.randn(Z),) * 3, {"attn_mask": [[1]]}),
}


@pytest.mark.parametrize("name", ODD)
def test_what_kernels_do_not_take_goes_to_torch(tkt: Any, name: str) -> None:
    """Also its errors, with its words."""
    if name == "no heads" and torch.cpu._is_amx_tile_supported():
        pytest.skip("PyTorch 2.11 divides by the number of heads there, which ends the process")
    given, named = ODD[name]()

    def result() -> Any:
        try:
            return F.scaled_dot_product_attention(*given, **named)
        except Exception as error:  # any: torch's own, to be compared
            return type(error), str(error)

    theirs = result()
    with tkt.use():
        ours = result()
    if isinstance(theirs, tuple):
        assert ours == theirs
    elif name == "zero tensor":  # which torch's own kernel reads as whatever lies in memory
        assert ours.shape == theirs.shape
    else:
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("name", ["softmax_scale", "softcap", "alibi_slopes"])
def test_a_number_that_learns_is_refused(tkt: Any, name: str) -> None:
    """It would silently get no gradient."""
    from tilekiln.compat import flash_attn

    value = torch.full((2,) if name == "alibi_slopes" else (), 0.5, requires_grad=True)
    for q in (torch.randn(1, 5, 2, 16), torch.randn(1, 5, 2, 16, requires_grad=True)):
        for call in (tk.attention, flash_attn.flash_attn_func, lambda *x, **n: tkt.calls.forward(*x, **n)[0]):
            with pytest.raises(ValueError, match=f"{name}: required grad, must"):
                call(q, q, q, **{name: value})
            with torch.no_grad():
                call(q, q, q, **{name: value})
    if name == "softmax_scale":
        x = torch.randn(1, 2, 5, 16)
        with pytest.raises(TypeError, match="argument 'scale' must be float, not Tensor"):
            tkt.sdpa(x, x, x, scale=value)


def test_a_mask_as_it_lies_goes_the_native_way(tkt: Any, torch_kernels: object, monkeypatch: Any) -> None:
    """Forward and gradients; one of another dtype, or one that learns, is Python's."""
    from tilekiln.torch import dot_product, native

    assert native.load(), native.why_not
    q, k, v = (torch.randn(2, 9, 3, 32).transpose(1, 2) for _ in range(3))
    mask, leaf = torch.randn(1, 3, 9, 9), q.clone().requires_grad_()
    call = lambda one, mask=mask: tkt.sdpa(one, k, v, attn_mask=mask, is_causal=True)  # noqa: E731
    expected, learned = call(q), torch.autograd.grad(call(leaf).sum(), leaf)
    seen = mask.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(expected, F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
    monkeypatch.setattr(dot_product, "_sdpa", None)
    assert torch.equal(call(q), expected)
    assert torch.equal(torch.autograd.grad(call(leaf).sum(), leaf)[0], learned[0])
    for other in (mask > 0, mask.clone().requires_grad_(), mask.transpose(2, 3)):
        with pytest.raises(TypeError):
            call(q, other)
