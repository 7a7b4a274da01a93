# SPDX-License-Identifier: MIT
"""flash_attn.models.gpt_neox: checkpoints of GPT-NeoX and Pythia, for models.gpt."""

from __future__ import annotations

from typing import Any

from ..._modules import FaceArgumentError
from ._names import FINAL, NO_DROPOUT, WORDS, State, each, finished, gpt2_config, interleaved_heads, renamed

__all__ = ["gpt_neox_config_to_gpt2_config", "remap_state_dict_hf_gpt_neox"]

NAMES = {
    "attention": "",
    "attention.rotary_emb": "",
    "attention.query_key_value": "mixer.Wqkv",
    "attention.dense": "mixer.out_proj",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "mlp.dense_h_to_4h": "mlp.fc1",
    "mlp.dense_4h_to_h": "mlp.fc2",
}
OUTER = {"gpt_neox.embed_in": WORDS, "gpt_neox.final_layer_norm": FINAL, "embed_out": "lm_head"}


def remap_state_dict_hf_gpt_neox(state_dict: State, config: Any) -> State:
    """The tensors under the names of GPTLMHeadModel: of all heads queries, then keys, then values."""
    state = renamed(state_dict, "gpt_neox.layers.", NAMES, OUTER)
    for kind in ("weight", "bias"):
        each(state, f"mixer.Wqkv.{kind}", interleaved_heads(config.hidden_size // config.num_attention_heads))
    return finished(state, config)


def gpt_neox_config_to_gpt2_config(gpt_neox_config: Any) -> Any:
    """The config of GPTLMHeadModel for a GPTNeoXConfig whose rotary base is 10,000."""
    told = getattr(gpt_neox_config, "rope_parameters", None) or {}
    base = told.get("rope_theta") or getattr(gpt_neox_config, "rotary_emb_base", 10000)
    if base != 10000:
        raise FaceArgumentError(f"gpt_neox_config: the rotary base was {base}, must be 10000")
    fraction = told.get("partial_rotary_factor") or getattr(gpt_neox_config, "rotary_pct", 0.25)
    return gpt2_config(
        gpt_neox_config,
        n_positions=0,
        n_inner=gpt_neox_config.intermediate_size,
        activation_function=gpt_neox_config.hidden_act,
        layer_norm_epsilon=gpt_neox_config.layer_norm_eps,
        prenorm=True,
        parallel_block=gpt_neox_config.use_parallel_residual,
        parallel_block_tied_norm=False,
        rotary_emb_fraction=fraction,
        tie_word_embeddings=gpt_neox_config.tie_word_embeddings,
        **NO_DROPOUT,
    )
