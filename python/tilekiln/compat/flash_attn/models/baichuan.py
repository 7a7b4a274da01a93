# SPDX-License-Identifier: MIT
"""flash_attn.models.baichuan: checkpoints of Baichuan, for models.gpt."""

from __future__ import annotations

from typing import Any

from ._names import FINAL, NO_BIAS, NO_DROPOUT, WORDS, State, finished, gpt2_config, joined, renamed

__all__ = ["baichuan_config_to_gpt2_config", "remap_state_dict_hf_baichuan"]

NAMES = {
    "self_attn.W_pack": "mixer.Wqkv",
    "self_attn.o_proj": "mixer.out_proj",
    "self_attn.rotary_emb": "",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.fc2",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
}


def remap_state_dict_hf_baichuan(state_dict: State, config: Any) -> State:
    """The tensors under the names of GPTLMHeadModel."""
    state = renamed(state_dict, "model.layers.", NAMES, {"model.embed_tokens": WORDS, "model.norm": FINAL})
    joined(state, "mlp.fc1", "mlp.up", "mlp.gate")
    return finished(state, config, by_config=False)


def baichuan_config_to_gpt2_config(baichuan_config: Any) -> Any:
    """The config of GPTLMHeadModel: rotary where the model is narrower than 5,000, of 7B, else ALiBi, of 13B.

    A vocabulary above 70,000 is that of version 2, whose head is normed.
    """
    rotary = baichuan_config.hidden_size < 5000
    return gpt2_config(
        baichuan_config,
        n_positions=0,
        n_inner=baichuan_config.intermediate_size,
        activation_function="swiglu",
        layer_norm_epsilon=baichuan_config.rms_norm_eps,
        pad_token_id=baichuan_config.pad_token_id,
        rms_norm=True,
        rotary_emb_fraction=1.0 if rotary else 0.0,
        rotary_emb_interleaved=False,
        use_alibi=not rotary,
        use_flash_attn=not rotary,
        tie_word_embeddings=False,
        norm_head=baichuan_config.vocab_size > 70000,
        **NO_DROPOUT,
        **NO_BIAS,
    )
