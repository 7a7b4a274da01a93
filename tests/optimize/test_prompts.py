# SPDX-License-Identifier: MIT
"""Prompts of a fused decoder: recorded by their shape, and computed by fused layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding", "libraries")]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.gpu_run import DEVICE  # noqa: E402
from tests.optimize.test_steps import DTYPE, fuse, libraries, make, prompt  # noqa: E402

__all__ = ["libraries"]

PROMPTS: dict[str, dict[str, Any]] = {"Llama": {}, "Qwen3Moe": {}, "Mistral": {"sliding_window": 8}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROMPTS)
@torch.no_grad()
def test_a_prompt_that_comes_again_is_recorded(name: str) -> None:
    """By its shape; padding, other positions and what is in a cache before are not of it."""
    model = make(name, **PROMPTS[name])
    stock = copy.deepcopy(model)
    done = fuse(model)
    made = model.__dict__["_tilekiln_steps"].forwards.made
    bound = 1e-4 if torch.float32 == DTYPE else 0.1
    for ids in (prompt(), prompt().flip(1), prompt().flip(0)):
        for keep in (0, 1):
            ours, theirs = (one(ids, logits_to_keep=keep) for one in (model, stock))
            assert (ours.logits - theirs.logits).abs().max() <= bound * theirs.logits.abs().max()
            mine, its = ours.past_key_values, theirs.past_key_values
            assert (mine.layers[1].keys - its.layers[1].keys).abs().max() <= bound * its.layers[1].keys.abs().max()
            assert mine.get_seq_length() == 11
    assert set(made) == {(2, 11, 0), (2, 11, 1)}, str(done)
    assert model(ids, use_cache=False).past_key_values is None
    mask, places = torch.ones_like(ids), torch.arange(11, device=DEVICE)[None].expand(2, 11)
    mask[0, :3] = 0
    for how in (
        {"attention_mask": mask},
        {"position_ids": places + 1},
        {"position_ids": places, "attention_mask": mask},
    ):
        ours, theirs = (one(ids, **how).logits[:, 5:] for one in (model, stock))
        assert (ours - theirs).abs().max() <= bound * theirs.abs().max()
    for layer in (one.model.layers[0].self_attn.o_proj for one in (model, stock)):
        layer.weight.data = -layer.weight.data
    ours, theirs = (one(ids).logits for one in (model, stock))
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max()
    model.config.output_hidden_states = True
    assert len(model(ids).hidden_states) == 3
    assert len(model(ids[:, :1], past_key_values=model(ids).past_key_values).hidden_states) == 3


@torch.no_grad()
def test_layers_of_a_mixture_are_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers tells them that nobody asks for the logits of their routers."""
    model = make("Qwen3Moe")
    theirs = model(prompt()).logits
    fuse(model)
    monkeypatch.setattr(type(model.model.layers[0]), "forward", None)
    bound = 1e-4 if torch.float32 == DTYPE else 0.1
    assert (model(prompt()).logits - theirs).abs().max() <= bound * theirs.abs().max()
