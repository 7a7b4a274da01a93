# SPDX-License-Identifier: MIT
"""flash_attn.models.opt: checkpoints of OPT, for models.gpt."""

from __future__ import annotations

from typing import Any

from ..._modules import FaceArgumentError
from ._names import FINAL, POSITIONS, WORDS, State, each, finished, gpt2_config, joined, renamed

__all__ = ["opt_config_to_gpt2_config", "remap_state_dict_hf_opt"]

NAMES = {
    "self_attn.q_proj": "mixer.q",
    "self_attn.k_proj": "mixer.k",
    "self_attn.v_proj": "mixer.v",
    "self_attn.out_proj": "mixer.out_proj",
    "self_attn_layer_norm": "norm1",
    "final_layer_norm": "norm2",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
OUTER = {
    "embed_tokens": WORDS,
    "embed_positions": POSITIONS,
    "project_in": "transformer.embeddings.project_in",
    "project_out": "project_out",
    "final_layer_norm": FINAL,
    "layer_norm": FINAL,
}


def remap_state_dict_hf_opt(state_dict: State, config: Any) -> State:
    """The tensors under the names of GPTLMHeadModel, without the two positions of padding."""
    bare = {key.removeprefix("model.").removeprefix("decoder."): tensor for key, tensor in state_dict.items()}
    state = renamed(bare, "layers.", NAMES, OUTER)
    joined(state, "mixer.Wqkv", "mixer.q", "mixer.k", "mixer.v")
    each(state, "position_embeddings.weight", lambda rows: rows[2:])
    return finished(state, config, tied=True)


def opt_config_to_gpt2_config(opt_config: Any) -> Any:
    """The config of GPTLMHeadModel for an OPTConfig."""
    for name, wanted in (("layerdrop", 0.0), ("layer_norm_elementwise_affine", True)):
        if getattr(opt_config, name) != wanted:
            raise FaceArgumentError(f"opt_config: {name} was {getattr(opt_config, name)}, must be {wanted}")
    width = opt_config.word_embed_proj_dim
    return gpt2_config(
        opt_config,
        n_positions=opt_config.max_position_embeddings,
        n_inner=opt_config.ffn_dim,
        activation_function=opt_config.activation_function,
        resid_pdrop=opt_config.dropout,
        embd_pdrop=opt_config.dropout,
        attn_pdrop=opt_config.attention_dropout,
        initializer_range=opt_config.init_std,
        prenorm=opt_config.do_layer_norm_before,
        word_embed_proj_dim=None if width == opt_config.hidden_size else width,
    )
