# SPDX-License-Identifier: MIT
"""tilekiln.torch.optimize of tiny models of Transformers with linear attention, a state space or short convolutions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.20")
from tests.python.tiny_models import make, prompt  # noqa: E402

pytestmark = pytest.mark.transformers

HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Next": HYBRID | DELTA | EXPERTS,
    "Mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 24, "n_groups": 2, "chunk_size": 16, "expand": 2},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "KimiLinear": HYBRID
    | {"linear_num_heads": 4, "linear_head_dim": 16, "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16}
    | {"qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 32, "n_shared_experts": 1, "num_key_value_heads": 4},
}
BECOMES = {
    "Qwen3Next": "causal_conv1d and gated_delta_rule",
    "Mamba2": "causal_conv1d and gated_delta_rule",
    "Lfm2": "causal_conv1d",
    "KimiLinear": "causal_conv1d and gated_delta_rule",
}


@pytest.fixture(autouse=True)
def library(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load("linear_attention", targets="all")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})


def optimized(model: Any) -> Any:
    from tilekiln.torch import optimize

    return optimize(model)


def loss_gradients(model: Any) -> dict[str, Any]:
    tokens = torch.randint(1, 90, (2, 40), generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_generates_and_trains_as_before(name: str) -> None:
    model = make(name, **MODELS[name])
    tokens = torch.randint(1, 90, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = model(tokens).logits
    written = model.generate(prompt(), max_new_tokens=8, do_sample=False)
    right = loss_gradients(copy.deepcopy(model))
    done = optimized(model)
    assert BECOMES[name] in {one.became for one in done.changes}, str(done)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, logits, rtol=2e-3, atol=2e-4)
    assert torch.equal(model.generate(prompt(), max_new_tokens=8, do_sample=False), written)
    done.undo()
    layers = [one for one in model.modules() if "forward" in one.__dict__]
    assert not layers
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, logits)
    done = optimized(model.train())  # packed weights do not learn: those layers are left
    assert BECOMES[name] in {one.became for one in done.changes}, str(done)
    if model.config._attn_implementation == "tilekiln":
        model.set_attn_implementation("sdpa")  # libraries of attention are not here
    found = loss_gradients(model)
    assert found.keys() == right.keys()
    for key, gradient in right.items():
        torch.testing.assert_close(
            found[key], gradient, rtol=5e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


def test_16_bits_and_a_model_saved_whole() -> None:
    model = make("Qwen3Next", **MODELS["Qwen3Next"]).to(torch.bfloat16)
    with torch.no_grad():
        right = model(prompt()).logits.float()
    done = optimized(model)
    assert BECOMES["Qwen3Next"] in {one.became for one in done.changes}, str(done)
    again = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        ours = model(prompt()).logits.float()
        assert torch.equal(again(prompt()).logits.float(), ours)
    assert (ours - right).norm() < 0.05 * right.norm()


def test_packed_sequences_stay_apart() -> None:
    """Transformers' own functions refuse them without a package of kernels."""
    from tilekiln.torch import linear_attention as ours

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 40, heads, 16, generator=random) for heads in (2, 2, 4))
    g, beta = -torch.rand(1, 40, 4, generator=random), torch.rand(1, 40, 4, generator=random)
    whole, states = ours.delta_rule(q, k, v, g, beta, output_final_state=True, cu_seqlens=torch.tensor([0, 15, 40]))
    alone, state = ours.delta_rule(*(x[:, 15:] for x in (q, k, v, g, beta)), output_final_state=True)
    torch.testing.assert_close(whole[:, 15:], alone)
    torch.testing.assert_close(states[1:], state)
    x, weight = torch.randn(1, 8, 40, generator=random), torch.randn(8, 4, generator=random)
    index = torch.tensor([[0] * 15 + [1] * 25])
    packed = ours.causal_conv1d_fn(x, weight, activation="silu", seq_idx=index)
    torch.testing.assert_close(packed[..., 15:], ours.causal_conv1d_fn(x[..., 15:], weight, activation="silu"))
    with pytest.raises(ValueError, match="activation: was 'relu', must be 'silu' or None"):
        ours.causal_conv1d_fn(x, weight, activation="relu")
    with pytest.raises(ValueError, match="seq_idx: batch was 2, must be 1"):
        ours.causal_conv1d_fn(x, weight, seq_idx=index.repeat(2, 1))
