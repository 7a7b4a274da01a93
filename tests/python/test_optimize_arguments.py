# SPDX-License-Identifier: MIT
"""Arguments that models of Transformers hand to the modules that optimize has replaced, by every name."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import OLDER, became, libraries, make, prompt  # noqa: E402,F401


@pytest.fixture
def by_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Llama whose attention and layers take their cache by the name `cache`, as from Transformers 5.24 on."""
    theirs = sys.modules[transformers.LlamaForCausalLM.__module__]
    if "cache" in inspect.signature(theirs.LlamaAttention.forward).parameters:
        return transformers
    source = inspect.getsource(theirs)
    for name in ("LlamaAttention", "LlamaDecoderLayer"):
        own = inspect.getsource(getattr(theirs, name))
        assert "past_key_values" in own
        source = source.replace(own, own.replace("past_key_values", "cache"))
    call = "past_key_values=past_key_values,\n                use_cache=use_cache"
    assert call in source
    source = source.replace(call, call.replace("past_key_values=", "cache="))
    (tmp_path / "by_cache.py").write_text(source)
    name = f"{theirs.__package__}.by_cache"
    spec: Any = importlib.util.spec_from_file_location(name, tmp_path / "by_cache.py")
    renamed = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, renamed)
    spec.loader.exec_module(renamed)
    return renamed


@pytest.mark.skipif(OLDER, reason="Transformers 4 of tests/clients has the old word alone")
@torch.no_grad()
def test_a_cache_by_its_new_name(by_cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used, it grows in place, and a step of one token is one pass."""
    from tilekiln.torch import joined_step, optimize
    from tilekiln.torch.growing_cache import GrowingLayer

    model, theirs = by_cache.LlamaForCausalLM(make("Llama").config).eval(), make("Llama")
    model.load_state_dict(theirs.state_dict())
    assert became(optimize(model))["LlamaDecoderLayer"] == {"one pass for a token"}
    tokens = theirs.generate(prompt(), max_new_tokens=4, do_sample=False)
    assert torch.equal(model.generate(prompt(), max_new_tokens=4, do_sample=False), tokens)
    steps: list[Any] = []
    call = joined_step._call
    monkeypatch.setattr(joined_step, "_call", lambda name, *rest: steps.append(name) or call(name, *rest))
    caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
    for ids in (prompt(), prompt()[:, :1]):
        ours, wanted = (one(ids, past_key_values=cache) for one, cache in zip((model, theirs), caches, strict=True))
        torch.testing.assert_close(ours.logits, wanted.logits, atol=1e-4, rtol=1e-4)
    assert steps.count("fmha_fwd_appendkv") == model.config.num_hidden_layers
    assert {type(layer) for layer in caches[0].layers} == {GrowingLayer}


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
@torch.no_grad()
def test_norms_of_heads_rotary_cache_and_attention_are_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the bits of one after another."""
    from tilekiln.torch import fused_decoder, optimize

    model = make(name, hidden_size=128, head_dim=32).bfloat16()
    for one in model.modules():
        if type(one).__name__.endswith("RMSNorm"):
            torch.nn.init.uniform_(one.weight, 0.5, 2)
    assert became(optimize(model))[f"{name}DecoderLayer"] == {"one pass for a token"}
    made: list[list[Any]] = []
    real, calls = fused_decoder._appended, list[Any]()
    for appended in (lambda *given: calls.append(real(*given)) or calls[-1], lambda *_: None):
        monkeypatch.setattr(fused_decoder, "_appended", appended)
        cache = transformers.DynamicCache(config=model.config)
        ids = [prompt(), *(prompt()[:, i : i + 1] for i in range(3))]
        made.append([model(one, past_key_values=cache).logits for one in ids])
        made[-1] += [part for layer in cache.layers for part in (layer.keys, layer.values)]
    assert sum(one is not None for one in calls) == 3 * model.config.num_hidden_layers
    assert all(torch.equal(*both) for both in zip(*made, strict=True))


@pytest.mark.parametrize("name", ["StableLm", "Qwen2VLText"])
@torch.no_grad()
def test_what_a_layer_hands_on_is_said_once(name: str) -> None:
    """Attention whose forward takes position_ids by name and hands them on."""
    from tilekiln.torch import optimize

    if name == "StableLm":
        model, theirs = (make(name, partial_rotary_factor=1.0, hidden_size=128) for _ in range(2))
    else:
        words = {"rope_scaling" if OLDER else "rope_parameters": {"rope_type": "default", "mrope_section": [8, 4, 4]}}
        words[next(iter(words))] |= {} if OLDER else {"rope_theta": 10000.0}
        model, theirs = (
            make("Qwen2VL", _config=f"{name}Config", _name=f"{name}Model", hidden_size=128, **words) for _ in range(2)
        )
    found = became(optimize(model))
    assert {kind for module, kinds in found.items() if module.endswith("Attention") for kind in kinds} & {
        "rotary", "one product, rotary in place",
    }, found  # fmt: skip
    mask = torch.ones_like(prompt())
    mask[0, :4] = 0
    for given in ({}, {"attention_mask": mask}):
        ours, wanted = (one(input_ids=prompt(), **given)[0] for one in (model, theirs))
        torch.testing.assert_close(ours[:, 4:], wanted[:, 4:], atol=1e-4, rtol=1e-4)
    if name == "StableLm":
        tokens = theirs.generate(prompt(), max_new_tokens=4, do_sample=False)
        assert torch.equal(model.generate(prompt(), max_new_tokens=4, do_sample=False), tokens)
