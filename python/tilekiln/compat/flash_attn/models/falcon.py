# SPDX-License-Identifier: MIT
"""flash_attn.models.falcon: checkpoints of Falcon, for models.gpt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._names import WORDS, State, each, finished, gpt2_config, renamed

__all__ = ["falcon_config_to_gpt2_config", "remap_state_dict_hf_falcon"]

NAMES = {
    "self_attention.query_key_value": "mixer.Wqkv",
    "self_attention.dense": "mixer.out_proj",
    "input_layernorm": "norm1",
    "ln_attn": "norm1",
    "post_attention_layernorm": "norm2",
    "ln_mlp": "norm2",
    "mlp.dense_h_to_4h": "mlp.fc1",
    "mlp.dense_4h_to_h": "mlp.fc2",
}


def remap_state_dict_hf_falcon(state_dict: State, config: Any) -> State:
    """The tensors under the names of GPTLMHeadModel: all queries, then keys, then values, not group by group."""
    state = renamed(state_dict, "transformer.h.", NAMES, {"transformer.word_embeddings": WORDS})
    groups, head_dim = getattr(config, "n_head_kv", 1), config.hidden_size // config.n_head
    heads = config.n_head // groups

    def apart(rows: Tensor) -> Tensor:
        """(groups, queries + key + value, head_dim) as (queries, keys, values)."""
        parts = rows.unflatten(0, (groups, heads + 2, head_dim)).split([heads, 1, 1], 1)
        return torch.cat([part.flatten(0, 2) for part in parts])

    for kind in ("weight", "bias"):
        each(state, f"mixer.Wqkv.{kind}", apart)
    return finished(state, config)


def falcon_config_to_gpt2_config(falcon_config: Any) -> Any:
    """The config of GPTLMHeadModel for a FalconConfig; one norm a layer where all queries share one key."""
    heads = falcon_config.num_attention_heads
    groups = getattr(falcon_config, "n_head_kv", 1 if getattr(falcon_config, "multi_query", False) else heads)
    bias = falcon_config.bias
    return gpt2_config(
        falcon_config,
        n_positions=0,
        n_inner=4 * falcon_config.hidden_size,
        activation_function="gelu",
        resid_pdrop=falcon_config.hidden_dropout,
        embd_pdrop=0.0,
        attn_pdrop=falcon_config.attention_dropout,
        layer_norm_epsilon=falcon_config.layer_norm_epsilon,
        parallel_block=falcon_config.parallel_attn,
        n_head_kv=groups,
        parallel_block_tied_norm=groups == 1,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        tie_word_embeddings=True,
        qkv_proj_bias=bias,
        out_proj_bias=bias,
        mlp_fc1_bias=bias,
        mlp_fc2_bias=bias,
        lm_head_bias=False,
    )
