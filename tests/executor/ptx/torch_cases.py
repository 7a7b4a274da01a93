# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.torch_cases DEVICE LIBRARY: tensors of PyTorch on cudasim, recorded by autograd.

DEVICE is torch_device.cpp, built. Prints nothing when all holds.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

device = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before PyTorch looks for one
import pytest  # noqa: E402
import tilekiln as tk  # noqa: E402
import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None

import tilekiln.torch  # noqa: E402
from tilekiln.api import operators  # noqa: E402
from tilekiln.compat import flash_attn  # noqa: E402
from tilekiln.torch import calls, dot_product, native  # noqa: E402

F = torch.nn.functional


def pair(*shape: int, learns: bool = True) -> tuple[Any, Any]:
    """Numbers on the device, and the same on the host."""
    numbers = torch.randn(*shape).bfloat16()
    there = torch.empty(*shape, dtype=torch.bfloat16, device="cuda").copy_(numbers)
    return there.requires_grad_(learns), numbers.float().requires_grad_(learns)


def fetched(one: Any) -> Any:
    return torch.empty(one.shape, dtype=one.dtype).copy_(one.detach()).float()


class Counted:
    """A count of the calls of the facade that are made."""

    def __init__(self) -> None:
        self.count = 0
        for module in (calls, tilekiln.torch.operators, dot_product):
            module._call = self._of(module._call)  # type: ignore[attr-defined]

    def _of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            self.count += 1
            return call(*given)

        return counted


def expected(q: Any, k: Any, v: Any, **named: Any) -> Any:
    """As PyTorch has it in fp32, of arrays by tokens."""
    turned = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*turned, enable_gqa=True, **named).transpose(1, 2)


def by_heads(q: Any, k: Any, v: Any, **named: Any) -> Any:
    made = tilekiln.torch.sdpa(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True, **named)
    assert made.stride() == torch.empty_like(q).transpose(1, 2).stride()
    return made.transpose(1, 2)


WAYS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (tk.attention, {}),
    "scaled": (lambda *x: tk.attention(*x, causal=True, softmax_scale=0.2), {"is_causal": True, "scale": 0.2}),
    "sdpa": (lambda *x: by_heads(*x, is_causal=True), {"is_causal": True}),
    "flash_attn": (lambda *x: flash_attn.flash_attn_func(*x, causal=True), {"is_causal": True}),
}
"""Calls of (q, k, v), and the arguments of PyTorch's own that says what they must be."""


def main(library: str) -> None:
    loaded = tk.load(library)
    operators._at_hand = lambda: [loaded]  # type: ignore[assignment]
    assert native.load(), native.why_not
    python, asked = Counted(), ctypes.c_int.in_dll(device, "streams_asked")
    (q, hq), (k, hk), (v, hv) = (pair(1, 40, heads, 64) for heads in (2, 1, 1))
    dout, hdout = pair(1, 40, 2, 64, learns=False)
    for name, (way, named) in WAYS.items():
        for _ in range(2):  # the first teaches which library serves it
            python.count, asked.value = 0, 0
            out = way(q, k, v)
            gradients = torch.autograd.grad(out, (q, k, v), dout)
        assert (python.count, asked.value) == (0, 2), (name, python.count, asked.value)
        assert all(one.is_cuda for one in (out, *gradients)), name
        want = expected(hq, hk, hv, **named)
        wanted = want, *torch.autograd.grad(want, (hq, hk, hv), hdout)
        for got, right in zip((out, *gradients), wanted, strict=True):
            torch.testing.assert_close(fetched(got), right.detach(), atol=0.03, rtol=0.03, msg=name)
    out = tk.attention(q, k, v)  # a gradient that sum() hands over: one number, expanded
    ones = pair(1, 1, 1, 1, learns=False)[0]
    ones.copy_(torch.ones(1, 1, 1, 1))
    mine = torch.autograd.grad(out, (q, k, v), ones.expand(out.shape))
    theirs = torch.autograd.grad(expected(hq, hk, hv).sum(), (hq, hk, hv))
    for got, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(fetched(got), right, atol=0.03, rtol=0.03)
    with torch.no_grad():
        for _ in range(2):
            python.count = 0
            by_heads(q, k, v)
    assert python.count == 0
    with pytest.raises(tk.ArgumentError, match=r"^k: "):
        tk.attention(q, hk, v)


if __name__ == "__main__":
    main(sys.argv[2])
