# SPDX-License-Identifier: MIT
"""Attention modules of models that compute it themselves: Falcon, BLOOM, MPT and (to 5.23) GPT-J of Transformers 5.

Transformers hands its word for attention to models whose modules ask its AttentionInterface. Those of these four do
not, so that they know eager alone (Falcon: sdpa too). Each has a class here that keeps the layers, their names and what
the model's class does with them, and asks that interface for "tilekiln". A module becomes one by its `__class__`.

BLOOM and MPT add slope * position to the scores, which softmax makes the same as alibi's -slope * |i - j|: kernels have
the slopes. Falcon rounds slope * position to bf16 whatever its dtype, and gets these numbers as a bias.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

MODELS = ("falcon", "bloom", "mpt", "gptj")
"""Words of Transformers for them, of configs (model_type) and of modules."""
TABLES = {"falcon": "FALCON_ATTENTION_CLASSES", "gptj": "GPTJ_ATTENTION_CLASSES"}
"""Tables of modules by the word for attention, which a model that is made looks into."""


NOTHING_HIDDEN = torch.empty(0, dtype=torch.bool, device="cpu")
"""A mask that hides nothing, for MPT, which casts the mask whatever it is."""


def never_none(mask: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """A function that makes masks as `mask` does, MPT's never None."""

    @functools.wraps(mask)
    def make(*places: Any, **named: Any) -> Tensor | None:
        given = mask(*places, **named)
        return NOTHING_HIDDEN if given is None and _type(named.get("config")) == "mpt" else given

    return make


def _type(config: Any) -> str | None:
    return getattr(config, "model_type", None)


MASKS = "create_causal_mask", "create_bidirectional_mask"
"""Functions of Transformers that make a mask as the config's word for attention takes it."""


def _attend(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **named: Any) -> Tensor:
    """(batch, seqlen, nhead_q * hdim) of q, k and v (batch, heads, seqlen, hdim)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    function: Any = ALL_ATTENTION_FUNCTIONS["tilekiln"]
    made: Tensor = function(self, q, k, v, mask, is_causal=True, **named)[0].flatten(2)
    return made


def _updated(cache: Any, k: Tensor, v: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
    made: tuple[Tensor, Tensor] = (k, v) if cache is None else cache.update(k, v, layer)
    return made


class FalconAttention(torch.nn.Module):
    """Of FalconAttention: heads of keys stay as few as they are, in the cache too."""

    def forward(
        self: Any, hidden_states: Tensor, alibi: Tensor | None, attention_mask: Tensor | None,
        position_ids: Tensor | None = None, layer_past: Any = None, use_cache: bool = False,
        output_attentions: bool = False, position_embeddings: Any = None, **others: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        shared = self.new_decoder_architecture or self.multi_query
        of_k = self.num_kv_heads if shared else self.num_heads
        whole = self.query_key_value(hidden_states)
        # Queries of each head of keys, it and its values.
        heads = whole.view(*whole.shape[:2], of_k, -1, self.head_dim)
        q, k, v = heads[..., :-2, :].flatten(2, 3), heads[..., -2, :], heads[..., -1, :]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        dropout, named = 0.0, {}
        if alibi is None:
            cos, sin = position_embeddings
            q, k = _module(self).apply_rotary_pos_emb(q, k, cos, sin)
        else:
            dropout = self.attention_dropout.p if self.training else 0.0
            if attention_mask is None or attention_mask.dim() == 2:  # one of four dimensions has it already
                named["position_bias"] = alibi.view(q.shape[0], self.num_heads, 1, -1) * self.inv_norm_factor
        k, v = _updated(others.get("cache", layer_past), k, v, self.layer_idx)
        out = _attend(self, q, k, v, attention_mask, scaling=self.inv_norm_factor, dropout=dropout, **named)
        return self.dense(out), None


@functools.cache
def _bloom_slopes(name: str, heads: int) -> Tensor:
    """fp32 (heads,): as BLOOM's module gives them to a token of position 1."""
    made: Tensor = (
        sys.modules[name].build_alibi_tensor(torch.ones(1, 2, device="cpu"), heads, torch.float32)[:, 0, 1].contiguous()
    )
    return made


class BloomAttention(torch.nn.Module):
    """Of BloomAttention."""

    def forward(
        self: Any, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Tensor | None,
        layer_past: Any = None, use_cache: bool = False, output_attentions: bool = False, **others: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        q, k, v = self._reshape(self.query_key_value(hidden_states))
        k, v = _updated(others.get("cache", layer_past), k, v, self.layer_idx)
        if attention_mask is None or attention_mask.dim() == 2:
            named = {"alibi_slopes": _bloom_slopes(_module(self).__name__, self.num_heads).to(q.device)}
        else:
            named = {"position_bias": alibi.view(q.shape[0], self.num_heads, 1, -1)}
        dropout = self.attention_dropout.p if self.training else 0.0
        out = self.dense(_attend(self, q, k, v, attention_mask, scaling=self.inv_norm_factor, dropout=dropout, **named))
        return residual + torch.dropout(out, self.hidden_dropout, self.training), None


class MptAttention(torch.nn.Module):
    """Of MptAttention."""

    def forward(
        self: Any, hidden_states: Tensor, position_bias: Tensor, past_key_values: Any = None,
        attention_mask: Tensor | None = None, **others: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        if attention_mask is NOTHING_HIDDEN:
            attention_mask = None
        mixed = self.Wqkv(hidden_states)
        if self.clip_qkv:
            mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        shape = (*mixed.shape[:2], self.n_heads, self.head_dim)
        q, k, v = (one.view(shape).transpose(1, 2) for one in mixed.chunk(3, dim=2))
        k, v = _updated(others.get("cache", past_key_values), k, v, self.layer_idx)
        if attention_mask is None or attention_mask.dim() == 2:  # the last key has 0, the one before it -slope
            named = {"alibi_slopes": -position_bias[:, 0, -2].float()}
        else:
            named = {"position_bias": position_bias[None, :, :, -k.shape[2] :]}
        dropout = self.attn_dropout_p if self.training else 0.0
        out = _attend(self, q, k, v, attention_mask, scaling=self.softmax_scale, dropout=dropout, **named)
        return self.out_proj(out), None


class GPTJAttention(torch.nn.Module):
    """Of GPTJAttention."""

    def forward(
        self: Any, hidden_states: Tensor, layer_past: Any = None, attention_mask: Tensor | None = None,
        position_ids: Any = None, use_cache: bool | None = False, output_attentions: bool | None = False, **others: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        shape = (*hidden_states.shape[:2], self.num_attention_heads, self.head_dim)
        q, k, v = (one(hidden_states).view(shape) for one in (self.q_proj, self.k_proj, self.v_proj))
        angles = self.embed_positions.to(position_ids.device)[position_ids].to(k.dtype)
        sin, cos = angles.chunk(2, dim=-1)
        rotate = _module(self).apply_rotary_pos_emb
        if self.rotary_dim is None:
            q, k = (rotate(one, sin, cos) for one in (q, k))
        else:
            parts = [one.tensor_split([self.rotary_dim], dim=-1) for one in (q, k)]
            q, k = (torch.cat([rotate(turned, sin, cos), rest], dim=-1) for turned, rest in parts)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        k, v = _updated(others.get("cache", layer_past), k, v, self.layer_idx)
        dropout = self.attn_dropout.p if self.training else 0.0
        out = _attend(self, q, k, v, attention_mask, scaling=1.0 / self.scale_attn, dropout=dropout)
        return self.resid_dropout(self.out_proj(out)), None


OURS = (FalconAttention, BloomAttention, MptAttention, GPTJAttention)


def _module(attention: Any) -> Any:
    """Transformers' module of a class that was joined with its own."""
    return sys.modules[type(attention).__mro__[2].__module__]


@functools.cache
def _joined(theirs: type) -> type:
    """A class of Transformers with the forward of ours, of the same name."""
    ours = next(one for one in OURS if one.__name__ == theirs.__name__)
    return type(theirs.__name__, (ours, theirs), {"__reduce_ex__": _reduced, "__doc__": ours.__doc__})


def _reduced(self: Any, protocol: int) -> Any:
    """For pickle and deepcopy, which look a class up by its name."""
    theirs = type(self).__mro__[2]
    return _made_again, (theirs,), self.__dict__.copy()


def _made_again(theirs: type) -> Any:
    return object.__new__(_joined(theirs))


def _is_ours(module: Any) -> bool:
    return isinstance(module, OURS)


def _kind(module: Any) -> str | None:
    """The word of MODELS for an attention module of Transformers, itself or one of ours."""
    theirs = type(module).__mro__[2] if _is_ours(module) else type(module)
    known = any(one.__name__ == theirs.__name__ for one in OURS)
    path = theirs.__module__.split(".")
    return path[2] if known and path[:2] == ["transformers", "models"] and path[2] in MODELS else None


def _attentions(model: torch.nn.Module) -> Iterator[Any]:
    return (one for one in model.modules() if _kind(one))


def why_not(model: Any, newer: bool = True) -> str | None:
    """The reason why attention that asks no AttentionInterface stays as it is; None where it can be ours, or is.

    newer: Is this Transformers 5 or newer?
    """
    name = type(model).__name__
    found = list(_attentions(model))
    if not newer or not found or _type(model.config) not in MODELS:
        return f"{name} computes its attention itself and asks no AttentionInterface"
    if any(getattr(one, "pretraining_tp", 1) > 1 and one.slow_but_exact for one in found):
        return f"{name} has slow_but_exact, which sums its products in slices"
    return None


def set_attention(model: Any, ours: bool, word: str) -> None:
    """Give the attention modules of a model of MODELS our classes and its config that word, or Transformers' own."""
    for one in _attentions(model):
        if ours and not _is_ours(one):
            theirs: type = type(one)
            one.__class__ = _joined(theirs)
        elif not ours and _is_ours(one):
            one.__class__ = type(one).__mro__[2]
    model.config._attn_implementation_internal = word


def setting(word: str, own: Callable[..., None]) -> Callable[..., None]:
    """In place of PreTrainedModel.set_attn_implementation: the same, but that MODELS take `word`, and give it back."""

    def set_attn_implementation(self: Any, attn_implementation: Any, *others: Any, **named: Any) -> None:
        asked, now = attn_implementation == word, self.config._attn_implementation == word
        if not (asked or now) or self._can_set_attn_implementation() or why_not(self) is not None:
            own(self, attn_implementation, *others, **named)
            return
        set_attention(self, asked, word if asked else "eager")
        if not asked and attn_implementation == "sdpa" and self._supports_sdpa:
            self.config._attn_implementation_internal = attn_implementation
        elif not asked and attn_implementation != "eager":  # Transformers says why not
            own(self, attn_implementation, *others, **named)

    return set_attn_implementation


def making(word: str, own: Callable[..., None]) -> Callable[..., None]:
    """In place of PreTrainedModel.__init__: tables of a model of MODELS that is made with `word` have it."""

    def init(self: Any, config: Any, *others: Any, **named: Any) -> None:
        own(self, config, *others, **named)
        table = getattr(sys.modules[type(self).__module__], TABLES.get(_type(config) or "", ""), None)
        if table is not None and self.config._attn_implementation == word:
            table.setdefault(word, table["eager"])

    return init


def made(word: str, own: Callable[..., None]) -> Callable[..., None]:
    """In place of PreTrainedModel.post_init: a model of MODELS that was made with `word` has our modules.

    ValueError for another that makes its masks by the word and does not ask for the attention function by it.
    """

    def post_init(self: Any) -> None:
        own(self)
        if self.config._attn_implementation != word or self._can_set_attn_implementation():
            return
        why = why_not(self)
        if why is None:
            set_attention(self, True, word)
        elif any(hasattr(sys.modules[type(self).__module__], one) for one in MASKS):
            raise ValueError(f"attn_implementation: was {word!r}, must be another, such as 'eager': {why}")

    return post_init


METHODS = {"set_attn_implementation": setting, "__init__": making, "post_init": made}
"""Methods of PreTrainedModel that know of MODELS while `word` is registered."""
