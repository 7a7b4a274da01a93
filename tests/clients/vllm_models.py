# SPDX-License-Identifier: MIT
"""A model served by the real vLLM for CPUs: greedy tokens in fp32 by Tilekiln's plugin are those of vLLM's own kernels.

vllm_models.py ours|stock MODEL [kv_cache_dtype]      prints one JSON line: tokens of each prompt
vllm_models.py make MODEL                             writes a random checkpoint there
"""

from __future__ import annotations

import json
import sys
from typing import Any

PROMPTS = [list(range(3, 3 + length)) for length in (1, 7, 40, 130)]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "gemma2": {"model_type": "gemma2", "query_pre_attn_scalar": 64, "sliding_window": 32},
    "qwen3": {"model_type": "qwen3"},
    "mistral": {"model_type": "mistral", "sliding_window": 48},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}


def make(place: str, kind: str) -> None:
    """A checkpoint whose logits differ enough for greedy tokens to be compared."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 512,
    }  # fmt: skip
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**sizes, **KINDS[kind]})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, (1.0 if "embed" in name else 1.3) / weight.shape[1] ** 0.5)
    model.save_pretrained(place)


def serve(place: str, whose: str, cache: str) -> list[list[int]]:
    """Greedy tokens of every prompt; `whose` attention computed them is asserted."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=place, skip_tokenizer_init=True, dtype="bfloat16" if cache != "auto" else "float32", enforce_eager=True,
        max_model_len=256, kv_cache_dtype=cache, max_num_seqs=4, max_num_batched_tokens=96,
    )  # fmt: skip

    def kinds(model: Any) -> set[str]:
        found = {type(layer.impl).__module__ for layer in model.modules() if hasattr(layer, "impl")}
        named = [(name, layer) for name, layer in model.named_modules() if not name.endswith(".gate")]  # of experts
        found |= {type(one).__module__ for _, layer in named if (one := getattr(layer, "cpu_linear", None))}
        experts = [layer.quant_method for _, layer in named if hasattr(layer, "w2_weight")]
        found |= {"tilekiln" if getattr(one, "packed", None) else type(one).__module__ for one in experts}
        return {name.partition(".")[0] for name in found}

    [found] = llm.apply_model(kinds)
    assert (found == {"tilekiln"}) is (whose == "ours"), found
    asked = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    made = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], asked, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in made]


if __name__ == "__main__":
    whose, place, *rest = sys.argv[1:]
    if whose == "make":
        make(place, rest[0])
        print("made")
    else:
        print(json.dumps(serve(place, whose, rest[0] if rest else "auto")))
