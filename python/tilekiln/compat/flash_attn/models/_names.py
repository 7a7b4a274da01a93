# SPDX-License-Identifier: MIT
"""Names of a checkpoint's tensors, brought to those of models.gpt: common parts of the families' functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

State = dict[str, Tensor]
LAYERS = "transformer.layers."
WORDS = "transformer.embeddings.word_embeddings"
POSITIONS = "transformer.embeddings.position_embeddings"
FINAL = "transformer.ln_f"


def renamed(
    state: Mapping[str, Tensor], layers: str, inner: Mapping[str, str], outer: Mapping[str, str], to: str = LAYERS
) -> State:
    """Every tensor under its name here; "" drops it, and a module in neither table keeps its name.

    layers: prefix of a layer's modules, before its number. inner: module within a layer -> its name here.
    outer: module elsewhere -> its name.
    """
    made = {}
    for key, tensor in state.items():
        module, _, kind = key.rpartition(".")
        number, _, within = module.removeprefix(layers).partition(".")
        if module.startswith(layers) and number.isdigit():
            new = inner.get(within, within)
            if new or within not in inner:
                made[f"{to}{number}.{new}.{kind}" if new else f"{to}{number}.{kind}"] = tensor
        elif outer.get(module, module) or module not in outer:
            made[f"{outer.get(module, module)}.{kind}"] = tensor
    return made


def inverted(names: Mapping[str, str]) -> dict[str, str]:
    """The table the other way round, without what it drops."""
    return {new: old for old, new in names.items() if new}


def joined(state: State, name: str, *parts: str) -> None:
    """In place: the parts of each layer, one below the other, as its `name`."""
    for key in [key for key in state if f".{parts[0]}." in key]:
        before, _, after = key.partition(f".{parts[0]}.")
        state[f"{before}.{name}.{after}"] = torch.cat([state.pop(f"{before}.{part}.{after}") for part in parts])


def split(state: State, name: str, sizes: Callable[[int], list[int]], *parts: str) -> None:
    """In place: each layer's `name` in parts, whose numbers of rows `sizes` says of the number of all."""
    for key in [key for key in state if f".{name}." in key]:
        whole = state.pop(key)
        for part, rows in zip(parts, whole.split(sizes(len(whole))), strict=True):
            state[key.replace(f".{name}.", f".{part}.")] = rows


def each(state: State, suffix: str, change: Callable[[Tensor], Tensor]) -> None:
    """In place: change every tensor whose name ends so."""
    for key in [key for key in state if key.endswith(f".{suffix}")]:
        state[key] = change(state[key])


def padded(rows: Tensor, config: Any, number: int | None = None, value: float = 0.0) -> Tensor:
    """With as many rows more as bring them, or `number`, to a multiple of pad_vocab_size_multiple."""
    multiple = getattr(config, "pad_vocab_size_multiple", 1)
    wanted = -(-(len(rows) if number is None else number) // multiple) * multiple
    return functional.pad(rows, (*[0, 0] * (rows.dim() - 1), 0, wanted - len(rows)), value=value)


def finished(state: State, config: Any, tied: bool | None = None, by_config: bool = True) -> State:
    """In place: embedding and lm_head filled up, and the one the other where they are tied.

    by_config: config.vocab_size says how many rows there are, else the tensors do.
    """
    number = config.vocab_size if by_config else None
    state[f"{WORDS}.weight"] = padded(state[f"{WORDS}.weight"], config, number)
    if config.tie_word_embeddings if tied is None else tied:
        state["lm_head.weight"] = state[f"{WORDS}.weight"]
    else:
        for kind in ("weight", "bias"):
            if f"lm_head.{kind}" in state:
                state[f"lm_head.{kind}"] = padded(state[f"lm_head.{kind}"], config, number)
    return state


def interleaved_heads(head_dim: int, parts: int = 3) -> Callable[[Tensor], Tensor]:
    """Rows (heads, parts, head_dim) as (parts, heads, head_dim)."""
    return lambda rows: rows.unflatten(0, (-1, parts, head_dim)).transpose(0, 1).flatten(0, 2)


def gpt2_config(config: Any, **values: Any) -> Any:
    """A GPT2Config of Transformers: what all families say alike, and values."""
    from transformers import GPT2Config

    alike = {name: getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "initializer_range")}
    return GPT2Config(
        vocab_size=config.vocab_size,
        n_embd=config.hidden_size,
        n_layer=config.num_hidden_layers,
        n_head=config.num_attention_heads,
        **({name: value for name, value in alike.items() if value is not None} | values),
    )


NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NO_BIAS = {"qkv_proj_bias": False, "out_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False}
