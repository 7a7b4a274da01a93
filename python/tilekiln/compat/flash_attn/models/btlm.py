# SPDX-License-Identifier: MIT
"""flash_attn.models.btlm: checkpoints of BTLM, for models.gpt."""

from __future__ import annotations

from typing import Any

from ._names import POSITIONS, WORDS, State, each, finished, gpt2_config, joined, renamed

__all__ = ["btlm_config_to_gpt2_config", "remap_state_dict_hf_btlm"]

NAMES = {
    "attn": "",
    "attn.c_attn": "mixer.Wqkv",
    "attn.c_proj": "mixer.out_proj",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "mlp.c_fc": "mlp.up",
    "mlp.c_fc2": "mlp.gate",
    "mlp.c_proj": "mlp.fc2",
}
OUTER = {"transformer.wte": WORDS, "transformer.wpe": POSITIONS, "transformer.relative_pe": ""}


def remap_state_dict_hf_btlm(state_dict: State, config: Any) -> State:
    """The tensors under the names of GPTLMHeadModel, weights the other way round; slopes of ALiBi are no weights."""
    state = renamed(state_dict, "transformer.h.", NAMES, OUTER)
    for part in ("mixer.Wqkv", "mixer.out_proj", "mlp.up", "mlp.gate", "mlp.fc2"):
        each(state, f"{part}.weight", lambda weight: weight.t())
    joined(state, "mlp.fc1", "mlp.up", "mlp.gate")
    return finished(state, config, tied=True)


def btlm_config_to_gpt2_config(btlm_config: Any) -> Any:
    """The config of GPTLMHeadModel for a BTLM's, with its widths' multipliers."""
    alibi = btlm_config.position_embedding_type == "alibi"
    names = "n_inner", "activation_function", "resid_pdrop", "embd_pdrop", "attn_pdrop", "layer_norm_epsilon"
    return gpt2_config(
        btlm_config,
        n_positions=0 if alibi else btlm_config.n_positions,
        **{name: getattr(btlm_config, name) for name in names},
        use_alibi=alibi,
        use_flash_attn=alibi,
        mup_width_scale=btlm_config.mup_width_scale,
        mup_embeddings_multiplier=btlm_config.mup_embeddings_scale,
        mup_output_multiplier=btlm_config.mup_output_alpha,
        mup_scale_qk_dot_by_d=btlm_config.mup_scale_qk_dot_by_d,
        mlp_multiple_of=1,
    )
