# SPDX-License-Identifier: MIT
"""Autograd of causal_conv1d and gated_delta_rule in PyTorch: beside that of their formulas, opcheck, compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
if TYPE_CHECKING:
    import torch


@pytest.fixture(autouse=True)
def lib(load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch) -> None:
    import tilekiln.torch

    assert tilekiln.torch
    library = load("linear_attention", targets="all")
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [library])
    monkeypatch.setattr("tilekiln.api.operators._served", {})


def leaves(dtype: Any = torch.float32, **shapes: tuple[int, ...]) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=random).to(dtype).requires_grad_() for name, shape in shapes.items()}


def conv(x: Any, weight: Any, bias: Any, initial_state: Any) -> tuple[Any, Any]:
    inputs = torch.cat([initial_state.transpose(1, 2), x], 1)
    width = weight.shape[1]
    z = bias + sum(weight[:, j] * inputs[:, j : j + x.shape[1]] for j in range(width))
    return torch.nn.functional.silu(z), inputs[:, x.shape[1] :].transpose(1, 2)


def rule(q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any, update: str) -> tuple[Any, Any]:
    group = v.shape[2] // q.shape[2]
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(group, 2) for x in (q * q.shape[-1] ** -0.5, k))
    state, out = initial_state, []
    for t in range(q.shape[1]):
        kept = g[:, t].exp()
        state = state * (kept[..., None, None] if g.ndim == 3 else kept[..., None])
        missing = v[:, t]
        if update == "delta":
            missing = missing - (state * k[:, t, ..., None]).sum(-2)
        state = state + k[:, t, ..., None] * (beta[:, t, ..., None] * missing)[..., None, :]
        out.append((state * q[:, t, ..., None]).sum(-2))
    return torch.stack(out, 1), state


def given_rule(gate: str, tokens: int = 70, dtype: Any = torch.float32) -> dict[str, Any]:
    more = (20,) if gate == "channel" else ()
    lengths = {"q": (2, tokens, 2, 20), "k": (2, tokens, 2, 20), "v": (2, tokens, 4, 24), "beta": (2, tokens, 4)}
    one = leaves(dtype, **lengths) | leaves(g=(2, tokens, 4, *more), initial_state=(2, 4, 20, 24))
    with torch.no_grad():
        one["g"].copy_(-one["g"].abs() / 4)
        one["beta"].copy_(one["beta"].sigmoid())
    return one


def alike(ours: tuple[Any, Any], theirs: tuple[Any, Any], given: dict[str, Any]) -> None:
    weights = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype) for x in theirs]
    grads = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(made, weights, strict=True)), list(given.values()))
        for made in (ours, theirs)
    ]
    for name, mine, its in zip(("out", "state", *given), (*ours, *grads[0]), (*theirs, *grads[1]), strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("compiled", [False, True])
def test_convolution(compiled: bool) -> None:
    given = leaves(x=(2, 150, 40), weight=(40, 4), bias=(40,), initial_state=(2, 40, 3))

    def call(x: Any, weight: Any, bias: Any, initial_state: Any) -> tuple[Any, Any]:
        made = torch.ops.tilekiln.causal_conv1d(
            x, weight, bias=bias, initial_state=initial_state, activation="silu", return_final_state=True
        )
        return made[0], made[1]

    function = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    alike(function(**given), conv(**given), given)


@pytest.mark.parametrize("update", ["delta", "add"])
@pytest.mark.parametrize("gate", ["head", "channel"])
def test_rule(gate: str, update: str) -> None:
    given = given_rule(gate)

    def call(q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any) -> tuple[Any, Any]:
        made = torch.ops.tilekiln.gated_delta_rule(
            q, k, v, g, beta, initial_state=initial_state, qk_l2norm=True, update=update, return_final_state=True
        )
        return made[0], made[1]

    alike(call(**given), rule(**given, update=update), given)
    if gate == "head":
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        alike(compiled(**given), rule(**given, update=update), given)


def test_opcheck_with_gradients_and_packed_sequences() -> None:
    from torch.library import opcheck

    starts = torch.tensor([0, 3, 20], dtype=torch.int32)
    x = leaves(x=(1, 20, 8), weight=(8, 4), initial_state=(2, 8, 3))
    named = {"initial_state": x["initial_state"], "cu_seqlens": starts, "return_final_state": True}
    opcheck(torch.ops.tilekiln.causal_conv1d, (x["x"], x["weight"]), named)
    given = {name: array[:1].detach().requires_grad_() for name, array in given_rule("head", 20).items()}
    state = torch.zeros(2, 4, 20, 24, requires_grad=True)
    arrays = tuple(given[name] for name in ("q", "k", "v", "g", "beta"))
    named = {"initial_state": state, "cu_seqlens": starts, "return_final_state": True}
    opcheck(torch.ops.tilekiln.gated_delta_rule, arrays, named)


def test_only_what_is_asked_for_and_no_second() -> None:
    given = given_rule("head", dtype=torch.bfloat16)
    arrays = [given[name].detach() for name in ("q", "k", "v", "g", "beta")]
    arrays[2].requires_grad_()
    out = torch.ops.tilekiln.gated_delta_rule(*arrays, qk_l2norm=True)[0]
    out.sum().backward()
    assert arrays[2].grad.dtype == torch.bfloat16
    assert [one.grad is None for one in arrays] == [True, True, False, True, True]
    state = torch.ops.tilekiln.gated_delta_rule(*arrays, return_final_state=True)[1]
    state.sum().backward()  # without a gradient of out
    x, weight = leaves(x=(1, 5, 4), weight=(4, 3)).values()
    y = torch.ops.tilekiln.causal_conv1d(x, weight)[0]
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="tilekiln has no second derivative of causal_conv1d"):
        dx.sum().backward()


def test_the_facade_names_what_has_gradients() -> None:
    x, weight = leaves(x=(1, 5, 4), weight=(4, 3)).values()
    with pytest.raises(tk.ArgumentError, match=r"^x: requires grad, and torch.ops.tilekiln.causal_conv1d has"):
        tk.causal_conv1d(x, weight)
