# SPDX-License-Identifier: MIT
"""flash_attn.models.llama: checkpoints of Llama, Meta's and Hugging Face's, for models.gpt."""

from __future__ import annotations

import importlib
import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._modules import FaceArgumentError
from ._names import (
    FINAL,
    NO_BIAS,
    NO_DROPOUT,
    WORDS,
    State,
    each,
    finished,
    gpt2_config,
    inverted,
    joined,
    renamed,
    split,
)

__all__ = [
    "config_from_checkpoint",
    "config_from_hf_checkpoint",
    "config_from_meta_checkpoint",
    "inv_remap_state_dict_hf_llama",
    "llama_config_to_gpt2_config",
    "remap_state_dict_hf_llama",
    "remap_state_dict_meta_llama",
    "state_dicts_from_checkpoint",
]

META = {
    "attention.wq": "mixer.q",
    "attention.wk": "mixer.k",
    "attention.wv": "mixer.v",
    "attention.wo": "mixer.out_proj",
    "attention.inner_attention.rope": "",
    "feed_forward.w1": "mlp.gate",
    "feed_forward.w2": "mlp.fc2",
    "feed_forward.w3": "mlp.up",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
}
HUGGING_FACE = {
    "self_attn.q_proj": "mixer.q",
    "self_attn.k_proj": "mixer.k",
    "self_attn.v_proj": "mixer.v",
    "self_attn.o_proj": "mixer.out_proj",
    "self_attn.rotary_emb": "",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.fc2",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
}
OUTER = {"model.embed_tokens": WORDS, "model.norm": FINAL}


def _joined(state: State) -> State:
    joined(state, "mixer.Wqkv", "mixer.q", "mixer.k", "mixer.v")
    joined(state, "mlp.fc1", "mlp.up", "mlp.gate")
    return state


def remap_state_dict_meta_llama(state_dict: State, config: Any) -> State:
    """Meta's tensors under the names of GPTLMHeadModel; config: llama_config_to_gpt2_config's."""
    outer = {"tok_embeddings": WORDS, "norm": FINAL, "output": "lm_head", "rope": ""}
    return finished(_joined(renamed(state_dict, "layers.", META, outer)), config, by_config=False)


def _pairs(config: Any, apart: bool) -> Any:
    """Rows of each head with the two halves' elements beside each other, or, with apart, half by half again."""
    head_dim = config.n_embd // config.n_head
    shape = (-1, head_dim // 2, 2) if apart else (-1, 2, head_dim // 2)

    def change(rows: Tensor) -> Tensor:
        made: Tensor = rows.unflatten(0, shape).transpose(1, 2).flatten(0, 2)
        return made

    return change


def remap_state_dict_hf_llama(state_dict: State, config: Any) -> State:
    """Hugging Face's tensors under the names of GPTLMHeadModel, whose rotary embedding turns neighbours."""
    state = renamed(state_dict, "model.layers.", HUGGING_FACE, OUTER)
    for part in ("mixer.q.weight", "mixer.k.weight"):
        each(state, part, _pairs(config, False))
    return finished(_joined(state), config, by_config=False)


def inv_remap_state_dict_hf_llama(state_dict: State, config: Any) -> State:
    """The inverse of remap_state_dict_hf_llama; rows that fill up the vocabulary stay."""
    state = dict(state_dict)
    head_dim, heads_kv = config.n_embd // config.n_head, getattr(config, "n_head_kv", None) or config.n_head
    queries, keys = config.n_head * head_dim, heads_kv * head_dim
    split(state, "mixer.Wqkv", lambda _: [queries, keys, keys], "mixer.q", "mixer.k", "mixer.v")
    split(state, "mlp.fc1", lambda rows: [rows // 2] * 2, "mlp.up", "mlp.gate")
    for part in ("mixer.q.weight", "mixer.k.weight"):
        each(state, part, _pairs(config, True))
    return renamed(state, "transformer.layers.", inverted(HUGGING_FACE), inverted(OUTER), "model.layers.")


def config_from_meta_checkpoint(checkpoint_path: str | PathLike[str], model_name: str) -> Any:
    """The LlamaConfig of params.json in a folder of Meta's; vocab_size is tokenizer.model's where it is there."""
    from transformers import LlamaConfig

    folder = Path(checkpoint_path) / model_name
    said = json.loads((folder / "params.json").read_text())
    multiple = said.get("multiple_of", 1)
    inner = int(8 * said["dim"] / 3)
    if said.get("ffn_dim_multiplier") is not None:
        inner = int(said["ffn_dim_multiplier"] * inner)
    config = LlamaConfig(
        hidden_size=said["dim"],
        intermediate_size=-(-inner // multiple) * multiple,
        num_attention_heads=said["n_heads"],
        num_hidden_layers=said["n_layers"],
        rms_norm_eps=said["norm_eps"],
        num_key_value_heads=said.get("n_kv_heads"),
        vocab_size=32000,
    )
    if "rope_theta" in said:
        config.rotary_emb_base = said["rope_theta"]
    tokenizer = folder / "tokenizer.model"
    if tokenizer.is_file():
        config.vocab_size = importlib.import_module("sentencepiece").SentencePieceProcessor(str(tokenizer)).vocab_size()
    return config


def config_from_hf_checkpoint(checkpoint_path: str | PathLike[str], model_name: str) -> Any:
    """The LlamaConfig of `model_name`-hf/config.json in checkpoint_path."""
    from transformers import LlamaConfig

    return LlamaConfig.from_pretrained(Path(checkpoint_path) / f"{model_name}-hf" / "config.json")


def config_from_checkpoint(
    checkpoint_path: str | PathLike[str], model_name: str, checkpoint_format: str = "meta"
) -> Any:
    """config_from_meta_checkpoint's or, of the format "hf", config_from_hf_checkpoint's."""
    if checkpoint_format not in ("meta", "hf"):
        raise FaceArgumentError(f"checkpoint_format: was {checkpoint_format!r}, must be 'meta' or 'hf'")
    of = config_from_meta_checkpoint if checkpoint_format == "meta" else config_from_hf_checkpoint
    return of(checkpoint_path, model_name)


def state_dicts_from_checkpoint(checkpoint_path: str | PathLike[str], model_name: str) -> list[State]:
    """The tensors of each of Meta's files, which are parts of the same, in their order."""
    files = sorted((Path(checkpoint_path) / model_name).glob("consolidated.*.pth"))
    return [torch.load(file, map_location="cpu", weights_only=True) for file in files]


def llama_config_to_gpt2_config(llama_config: Any) -> Any:
    """The config of GPTLMHeadModel for a LlamaConfig."""
    return gpt2_config(
        llama_config,
        n_positions=0,
        n_inner=llama_config.intermediate_size,
        activation_function="swiglu",
        layer_norm_epsilon=llama_config.rms_norm_eps,
        pad_token_id=llama_config.pad_token_id,
        rms_norm=True,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=True,
        rotary_emb_base=_rotary_base(llama_config),
        tie_word_embeddings=False,
        n_head_kv=llama_config.num_key_value_heads,
        **NO_DROPOUT,
        **NO_BIAS,
    )


def _rotary_base(config: Any) -> float:
    """As config_from_meta_checkpoint, or as Transformers, names it."""
    told = getattr(config, "rope_parameters", None) or {}
    found = getattr(config, "rotary_emb_base", None) or told.get("rope_theta") or getattr(config, "rope_theta", None)
    return float(found or 10000.0)
