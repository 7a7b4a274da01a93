# SPDX-License-Identifier: MIT
"""optimize(model, train=True): the loss and gradients of stock, by operators with a backward; undone, and refused."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tilekiln as tk  # noqa: E402

from tests.gpu_run import DEVICE  # noqa: E402
from tests.python.tiny_models import make  # noqa: E402

DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16


@pytest.fixture(autouse=True)
def libraries(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load("flash"), *([load("fp32")] if DEVICE == "cpu" else [])]
    found += [load(name, targets="all") for name in ("gemm_default", "norm_default", "moe_default")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})


def ids() -> Any:
    return torch.randint(1, 90, (2, 11), generator=torch.Generator("cpu").manual_seed(1), device="cpu").to(DEVICE)


def step(model: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    """Loss, and gradients by parameter."""
    model.zero_grad()
    labels = ids()
    labels[0, 5] = -100
    loss = model(input_ids=ids(), labels=labels, **more).loss
    loss.backward()
    return loss.detach(), {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma2", "Phi3", "Mixtral"])
def test_loss_and_gradients_are_those_of_stock(name: str) -> None:
    stock = make(name).to(DTYPE).to(DEVICE).train()
    model = copy.deepcopy(stock)
    done = tk.torch.optimize(model, train=True)
    for what in ("rotary, forward and backward", "cross_entropy, forward and backward", "RMSNorm"):
        assert what in str(done), str(done)
    assert inspect.signature(model.forward) == inspect.signature(stock.forward)  # by which trainers choose columns
    assert name in ("Phi3", "Mixtral") or "silu_and_mul" in str(done) or "gelu_and_mul" in str(done), str(done)
    bound = 1e-4 if torch.float32 == DTYPE else 0.05
    for more in ({}, {"num_items_in_batch": 7}):
        (theirs, right), (ours, made) = step(stock, **more), step(model, **more)
        assert (theirs - ours).abs() <= bound * theirs.abs()
        assert right.keys() == made.keys()
        for key, one in right.items():
            assert (made[key] - one).abs().max() <= bound * one.abs().max() + 1e-7, key
    state = model.state_dict()
    assert state.keys() == stock.state_dict().keys()
    done.undo()
    assert torch.equal(step(model)[0], step(stock)[0])
    assert "_loss_function" not in vars(model)
    assert all("forward" not in vars(one) for one in model.modules())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_a_compiled_step_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms, gates, rotary and the loss are the compiler's then, which fuses them; attention is an operator of it."""
    monkeypatch.setattr("tilekiln.transformers.sdpa_mask", None)  # nobody makes a mask of rows by columns
    stock = make(name).to(DTYPE).to(DEVICE).train()
    model = copy.deepcopy(stock)
    tk.torch.optimize(model, train=True)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    (theirs, right), (ours, made) = step(stock), step(compiled, use_cache=False)
    bound = 1e-4 if torch.float32 == DTYPE else 0.05
    assert (theirs - ours).abs() <= bound * theirs.abs()
    for key, one in right.items():
        found = made[f"_orig_mod.{key}"]
        assert (found - one).abs().max() <= bound * one.abs().max() + 1e-7, key


def test_angles_are_made_anew_when_they_change() -> None:
    """They are made once for all layers: another sin, or numbers written into one, are other angles."""
    from tilekiln.torch.training import _rotary
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as theirs

    q = torch.randn(2, 3, 5, 64, dtype=DTYPE, device=DEVICE, requires_grad=True)
    cos, sin, other = (torch.randn(2, 5, 32, dtype=DTYPE, device=DEVICE).repeat(1, 1, 2) for _ in range(3))
    for change in (lambda: None, lambda: sin.mul_(2), lambda: cos.add_(1), lambda: sin.set_(other)):
        change()
        ours = _rotary(theirs)(q, q, cos, sin)
        for made, right in zip(ours, theirs(q, q, cos, sin), strict=True):
            torch.testing.assert_close(made, right, rtol=0.02, atol=0.02)
    made, _ = _rotary(theirs)(q, q, cos, other)
    sin.zero_()
    cos.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


def test_quantised_weights_do_not_learn() -> None:
    with pytest.raises(tk.ArgumentError, match="weights: was 'int8', must be None with train=True"):
        tk.torch.optimize(make("Llama"), train=True, weights="int8")


def test_a_loss_of_another_kind_stays() -> None:
    model = make("Llama").train()
    model.loss_function = lambda *args, **named: torch.zeros((), requires_grad=True)
    done = tk.torch.optimize(model, train=True)
    assert "loss: is another than ForCausalLMLoss" in str(done)
    assert not model(input_ids=ids().cpu(), labels=ids().cpu()).loss
