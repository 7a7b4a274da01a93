# SPDX-License-Identifier: MIT
"""flash_attn.models.bigcode: checkpoints of StarCoder and its like, for models.gpt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._modules import FaceArgumentError
from ._names import POSITIONS, WORDS, State, each, finished, gpt2_config, inverted, renamed

__all__ = ["bigcode_config_to_gpt2_config", "inv_remap_state_dict_hf_bigcode", "remap_state_dict_hf_bigcode"]

NAMES = {
    "attn": "",
    "attn.c_attn": "mixer.Wqkv",
    "attn.c_proj": "mixer.out_proj",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
OUTER = {"transformer.wte": WORDS, "transformer.wpe": POSITIONS}


def remap_state_dict_hf_bigcode(state_dict: State, config: Any) -> State:
    """The tensors under the names of GPTLMHeadModel, the one head of keys and of values for each of the queries'."""
    if not config.multi_query:
        raise FaceArgumentError("config: multi_query was False, must be True")
    head_dim = config.n_embd // config.n_head

    def repeated(rows: Tensor) -> Tensor:
        q, k, v = rows.split([config.n_embd, head_dim, head_dim])
        return torch.cat([q, *(one.repeat(config.n_head, *[1] * (one.dim() - 1)) for one in (k, v))])

    state = renamed(state_dict, "transformer.h.", NAMES, OUTER)
    for kind in ("weight", "bias"):
        each(state, f"mixer.Wqkv.{kind}", repeated)
    return finished(state, config, tied=True)


def inv_remap_state_dict_hf_bigcode(state_dict: State, config: Any) -> State:
    """The inverse of remap_state_dict_hf_bigcode."""
    head_dim = config.n_embd // config.n_head

    def once(rows: Tensor) -> Tensor:
        q, k, v = rows.chunk(3)
        return torch.cat([q, k[:head_dim], v[:head_dim]])

    state = dict(state_dict)
    for kind in ("weight", "bias"):
        each(state, f"mixer.Wqkv.{kind}", once)
    state = renamed(state, "transformer.layers.", inverted(NAMES), inverted(OUTER), "transformer.h.")
    state["transformer.wte.weight"] = state["lm_head.weight"] = state["transformer.wte.weight"][: config.vocab_size]
    return state


def bigcode_config_to_gpt2_config(bigcode_config: Any) -> Any:
    """The config of GPTLMHeadModel for a GPTBigCodeConfig."""
    names = (
        "activation_function", "attn_pdrop", "embd_pdrop", "layer_norm_epsilon", "multi_query", "n_inner",
        "n_positions", "resid_pdrop", "scale_attn_weights", "use_cache",
    )  # fmt: skip
    return gpt2_config(bigcode_config, **{name: getattr(bigcode_config, name) for name in names})
