# SPDX-License-Identifier: MIT
"""flash_attn.models.gptj: checkpoints of GPT-J, for models.gpt."""

from __future__ import annotations

from typing import Any

from ._names import WORDS, State, finished, gpt2_config, joined, renamed

__all__ = ["gptj_config_to_gpt2_config", "remap_state_dict_hf_gptj"]

NAMES = {
    "attn": "",
    "attn.q_proj": "mixer.q",
    "attn.k_proj": "mixer.k",
    "attn.v_proj": "mixer.v",
    "attn.out_proj": "mixer.out_proj",
    "ln_1": "norm1",
    "mlp.fc_in": "mlp.fc1",
    "mlp.fc_out": "mlp.fc2",
}


def remap_state_dict_hf_gptj(state_dict: State, config: Any) -> State:
    """The tensors under the names of GPTLMHeadModel."""
    state = renamed(state_dict, "transformer.h.", NAMES, {"transformer.wte": WORDS})
    joined(state, "mixer.Wqkv", "mixer.q", "mixer.k", "mixer.v")
    return finished(state, config)


def gptj_config_to_gpt2_config(gptj_config: Any) -> Any:
    """The config of GPTLMHeadModel for a GPTJConfig: mixer and mlp side by side behind one norm."""
    names = "n_inner", "activation_function", "resid_pdrop", "embd_pdrop", "attn_pdrop", "layer_norm_epsilon"
    return gpt2_config(
        gptj_config,
        n_positions=0,
        **{name: getattr(gptj_config, name) for name in names},
        prenorm=True,
        parallel_block=True,
        parallel_block_tied_norm=True,
        rotary_emb_fraction=gptj_config.rotary_dim * gptj_config.n_head / gptj_config.n_embd,
        rotary_emb_interleaved=True,
        tie_word_embeddings=False,
        qkv_proj_bias=False,
        out_proj_bias=False,
        lm_head_bias=True,
    )
