# SPDX-License-Identifier: MIT
"""Routers of Transformers' mixtures of experts by topk_gating: the experts and weights of their own forward."""

from __future__ import annotations

import copy
import importlib
import math
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import OLDER, became, libraries, make, prompt  # noqa: E402,F401

if OLDER:
    pytest.skip("Transformers 4 has no module for a router", allow_module_level=True)

WORDS: dict[str, Any] = {
    "hidden_size": 64, "num_experts_per_tok": 4, "num_local_experts": 32, "num_experts": 32, "n_routed_experts": 32,
    "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
}  # fmt: skip
ROUTERS = {
    "deepseek_v2.DeepseekV2TopkRouter": {"topk_method": "group_limited_greedy"},
    "deepseek_v3.DeepseekV3TopkRouter": {},
    "deepseek_v4.DeepseekV4TopKRouter": {"scoring_func": "sqrtsoftplus"},
    "glm4_moe.Glm4MoeTopkRouter": {"norm_topk_prob": False},
    "gpt_oss.GptOssTopKRouter": {},
    "mixtral.MixtralTopKRouter": {},
    "qwen3_moe.Qwen3MoeTopKRouter": {"norm_topk_prob": False},
}
LEFT = {
    "llama4.Llama4Router": "makes no logits, weights and indices of rows alone",
    "minimax_m2.MiniMaxM2TopKRouter": "makes no logits, weights and indices of rows alone",
    "axk2.AXK2TopkRouter": "routes by a rule that topk_gating has not",  # experts of other groups have the key 0
}


def router(name: str, **words: Any) -> Any:
    config = transformers.PretrainedConfig()
    for word, value in (WORDS | words).items():
        setattr(config, word, value)
    of, kind = name.split(".")
    made = getattr(importlib.import_module(f"transformers.models.{of}.modeling_{of}"), kind)(config).eval()
    random = torch.Generator().manual_seed(2)
    for one in (*made.parameters(), *made.buffers()):
        one.data = torch.randn(one.shape, generator=random) / 4
    return made


def by_index(made: Any) -> tuple[Any, Any]:
    _, weights, indices = made
    order = indices.argsort(-1)
    return weights.gather(1, order), indices.gather(1, order)


@pytest.mark.parametrize("name", ROUTERS)
@torch.no_grad()
def test_router_as_its_class(name: str) -> None:
    from tilekiln.torch import optimize

    holder = torch.nn.ModuleDict({"gate": router(name, **ROUTERS[name])}).eval()
    module, theirs = holder["gate"], copy.deepcopy(holder["gate"])
    done = optimize(holder)
    assert [one.became for one in done.changes] == ["topk_gating"], done
    x = torch.randn(60, 64, generator=torch.Generator().manual_seed(1))
    for rows in (x, x[:1], x.half()):
        both = [by_index(one.to(rows.dtype)(rows)) for one in (module, theirs)]
        if rows.dtype == torch.float32:
            assert torch.equal(both[0][1], both[1][1])
            torch.testing.assert_close(*(weights for weights, _ in both), rtol=1e-5, atol=1e-7)
        else:  # logits of 16 bits are equal more often, and of equal ones any may be chosen
            assert both[0][0].dtype == both[1][0].dtype
            assert (both[0][1] == both[1][1]).float().mean() > 0.9
    module.float()
    theirs.float()
    if hasattr(module, "e_score_correction_bias"):  # it is read by each call
        for one in (module, theirs):
            one.e_score_correction_bias[3] = 100
        assert (by_index(module(x))[1] == 3).any(1).all()
    with torch.enable_grad():
        rows = x.clone().requires_grad_()
        module(rows)[1].square().sum().backward()  # by the class
        assert rows.grad is not None
    done.undo()
    assert "forward" not in module.__dict__
    assert torch.equal(by_index(module(x))[1], by_index(theirs(x))[1])


@pytest.mark.parametrize("name", LEFT)
def test_router_of_another_rule_is_left(name: str) -> None:
    from tilekiln.torch import optimize

    holder = torch.nn.ModuleDict({"gate": router(name)}).eval()
    (change,) = optimize(holder).changes
    assert not change.became
    assert LEFT[name] in change.why
    assert "forward" not in holder["gate"].__dict__


MIXTURES: dict[str, dict[str, Any]] = {
    "DeepseekV3": {
        "n_routed_experts": 8, "num_local_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 4,
        "topk_group": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1, "q_lora_rank": 32,
        "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "head_dim": 16,
        "num_key_value_heads": 4,
    },
    "Glm4Moe": {
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 48, "first_k_dense_replace": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_mixtures_of_routed_and_shared_experts(name: str) -> None:
    from tilekiln.torch import optimize

    model = make(name, **MIXTURES[name])
    routers = [one for one in model.modules() if type(one).__name__.endswith("Router")]
    assert routers
    for one in routers:
        one.weight.normal_(std=1 / math.sqrt(one.weight.shape[1]))
        one.e_score_correction_bias.normal_(std=0.3)
    theirs, tokens = model(prompt()).logits, model.generate(prompt(), max_new_tokens=6, do_sample=False)
    done = optimize(model)
    assert became(done)[f"{name}TopkRouter"] == {"topk_gating"}, done
    ours = model(prompt()).logits
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    assert torch.equal(model.generate(prompt(), max_new_tokens=6, do_sample=False), tokens)
    done.undo()
    assert torch.equal(model(prompt()).logits, theirs)
