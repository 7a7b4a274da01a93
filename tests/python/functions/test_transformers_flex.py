# SPDX-License-Identifier: MIT
"""Models of Transformers with attn_implementation="flex_attention" over Tilekiln's kernels."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.python.test_function_attention import store  # noqa: F401

pytestmark = [pytest.mark.torch, pytest.mark.day]


def test_a_model_generates(store: pathlib.Path) -> None:  # noqa: F811
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import tilekiln.transformers

    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=99,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(1, 99, (2, 150))
    mask = torch.ones_like(tokens)
    mask[0, :9] = 0
    arguments: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    want = model.generate(tokens, **arguments)
    tilekiln.transformers.register(flex_attention=True)
    try:
        model.set_attn_implementation("flex_attention")
        assert torch.equal(model.generate(tokens, **arguments), want)
        with torch.no_grad():
            logits = model(tokens, attention_mask=mask).logits[0, 9:]
    finally:
        tilekiln.transformers.unregister()
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(logits, model(tokens, attention_mask=mask).logits[0, 9:], rtol=1e-4, atol=1e-4)
    kernels = sum(one.name.startswith("attention_") for one in (store / "operators").iterdir())
    assert kernels <= 4, "each step had a kernel of its own"
