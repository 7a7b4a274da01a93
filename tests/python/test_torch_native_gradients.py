# SPDX-License-Identifier: MIT
"""tilekiln.attention that autograd records with no Python in it: the bits of the way through Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.host_only("tests/executor/ptx/test_torch.py has these of a device")]
from tests.python.test_torch_native import native, python  # noqa: E402

__all__ = ["native", "python"]

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True, "softmax_scale": 0.3},
    "top left": {"causal": True, "mask_origin": "top_left", "num_threads": 1},
    "window": {"window": (7, 2)},
    "a list": {"window": [7, 0], "sink_size": 0},
    "softcap": {"softcap": 5, "return_lse": True},
    "deterministic": {"deterministic": True, "dropout_p": 0.0},
    "layout": {"layout": "bhsd", "softmax_scale": 1},
}


def leaves(**said: Any) -> tuple[list[Any], Any]:
    """q, k, v as slices of one array, heads between or outside of tokens, and a gradient."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 33, heads, 32).requires_grad_() for heads in (4, 2, 2))
    dout = torch.randn(2, 33, 4, 32)
    if said.get("layout") == "bhsd":
        q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
    return [q, k, v], dout


def through_python(call: Callable[[], Any], native: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", None)
        return call()


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(native: Any, python: Callable[..., int], name: str) -> None:
    said = SETTINGS[name]
    given, dout = leaves(**said)

    def call() -> Any:
        made = tk.attention(*given, **said)
        out, *rest = made if said.get("return_lse") else (made,)
        return out, *rest, *torch.autograd.grad(out, given, dout)

    wanted = through_python(call, native)
    for _ in range(2):
        got = call()
        assert len(got) == len(wanted)
        for one, right in zip(got, wanted, strict=True):
            assert torch.equal(one, right)
            assert one.stride() == right.stride()
    assert python(call) == 0


def test_what_torch_says_of_determinism(native: Any, python: Callable[..., int]) -> None:
    """The deterministic schedule, whose sums over query heads are others: its bits tell."""
    torch.manual_seed(2)
    given = [torch.randn(1, 1024, heads, 32).requires_grad_() for heads in (4, 1, 1)]

    def call(**said: Any) -> Any:
        return torch.autograd.grad(tk.attention(*given, num_threads=1, **said).square().sum(), given[1])[0]

    plain, schedule = call(), call(deterministic=True)
    assert not torch.equal(plain, schedule)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(call(), schedule)
        assert torch.equal(call(deterministic=False), plain)
        assert python(call) == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_bias_that_learns_nothing(
    native: Any, python: Callable[..., int], load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load("ck_default")
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [library])
    given, dout = leaves()
    given, dout = [x.detach().bfloat16().requires_grad_() for x in given], dout.bfloat16()
    bias = torch.randn(1, 4, 33, 33).bfloat16()
    call = lambda: torch.autograd.grad(tk.attention(*given, bias=bias), given, dout)  # noqa: E731
    wanted = through_python(call, native)
    call()
    assert all(map(torch.equal, call(), wanted))
    assert python(call) == 0
    without = torch.autograd.grad(tk.attention(*given), given, dout)
    assert not torch.equal(without[0], wanted[0])
    bias.requires_grad_()
    [mine] = torch.autograd.grad(tk.attention(*given, bias=bias), bias, dout)
    assert mine.abs().max() > 0


WRONG: dict[str, dict[str, Any]] = {
    "causal": {"causal": 1},
    "mask_origin": {"mask_origin": "top_left,bcausal.0=1"},
    "window": {"window": (True, 0)},
    "softcap": {"softcap": -1.0},
    "num_threads": {"num_threads": -2},
    "layout": {"layout": "sbhd"},
    "no such": {"causall": True},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_in_pythons_words(native: Any, name: str) -> None:
    given, _ = leaves()
    for right in ({"causal": True}, {"window": (1, 0)}, {"num_threads": 1}):
        tk.attention(*given, **right)  # equal to a wrong value, as Python compares them
    call = lambda: tk.attention(*given, **WRONG[name])  # noqa: E731
    try:
        wanted = through_python(call, native)
    except Exception as error:
        for _ in range(2):
            with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
                call()
    else:
        assert torch.equal(call(), wanted)


def test_calls_of_the_operator_by_others(native: Any) -> None:
    """PyTorch's own operator with dropout, or a number that settings have not: nobody's results."""
    q = torch.randn(1, 2, 9, 32)
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    tk.attention(*leaves()[0], causal=True)
    for dropout_p in (0.1, 1.0, 1023.0, 5e9, -3.0):
        made = operator(q, q, q, None, dropout_p)
        assert made[0] is None, dropout_p


def test_more_looks_than_are_kept_go_through_python(
    native: Any, python: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilekiln.torch import recorded

    monkeypatch.setattr(recorded, "_MOST", len(recorded._numbers))
    given, _ = leaves()
    call = lambda: tk.attention(*given, softcap=0.123).sum().backward()  # noqa: E731
    call()
    assert python(call) == 2
