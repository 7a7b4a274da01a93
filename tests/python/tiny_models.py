# SPDX-License-Identifier: MIT
"""Tiny models of Transformers for the tests of tilekiln.torch.optimize, and what they share."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OLDER = int(transformers.__version__.partition(".")[0]) < 5  # of tests/clients
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32, "vocab_size": 90, "max_position_embeddings": 64, "pad_token_id": 0, "tie_word_embeddings": False,
    "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip

DECODERS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": 8},
    "Gemma3": {"_config": "Gemma3TextConfig", "sliding_window": 8},
    "Phi": {"head_dim": 16},
    "OPT": {"head_dim": 16, "word_embed_proj_dim": 64, "ffn_dim": 64},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
"""Decoders of several kinds, and what `make` takes for each."""


@pytest.fixture(autouse=True)
def libraries(load, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load("flash"), load("pytorch"), load("fp32")]
    found += [load(name, targets="all") for name in ("gemm_default", "gemm_linear", "norm_default", "moe_default")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)


def make(name: str, **more: Any) -> Any:
    """A model by the beginning of its class's name in eval mode, with entries of its configuration besides SIZES."""
    config = getattr(transformers, more.pop("_config", f"{name}Config"))
    torch.manual_seed(0)
    return getattr(transformers, more.pop("_name", f"{name}ForCausalLM"))(config(**SIZES | more)).eval()


def prompt() -> Any:
    return torch.randint(1, SIZES["vocab_size"], (2, 11), generator=torch.Generator().manual_seed(1))


def became(done: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in done.changes:
        module = one.module if one.name else "cache" if one.module == "DynamicCache" else "attention"
        found.setdefault(module, set()).add(one.became)
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return sorted(one) == sorted(other) and all(torch.equal(one[key], other[key]) for key in one)
