# SPDX-License-Identifier: MIT
"""Batches of unequal prompts without padding, for `optimize`: the decoder computes their tokens one after another.

The stack of layers, as `LlamaModel`, keeps its class; its `forward` is `packed_forward`. That takes padded batches over
an empty cache, whose keys then lie in it as before, those of padding 0; all else goes to the forward of its class.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from .checked import OFF, Check, _apart, _first_layers
from .fused_layers import CACHES, cache_word

KNOWN = frozenset(
    (
        "input_ids",
        "inputs_embeds",
        "attention_mask",
        "position_ids",
        "use_cache",
        "cache_position",
        "return_dict",
        *CACHES,
    )
)
KINDS = frozenset(("full_attention", "sliding_attention"))
PACKED = "_tilekiln_packed"
"""Attribute of a stack: its word for the cache."""
LEAST = 1 / 16
"""Share of padding from which a batch is packed."""
_now = threading.local()


def starts() -> Tensor | None:
    """The first token of each sequence that this thread computes packed, and their end, int32; None: it does not."""
    made: Tensor | None = getattr(_now, "starts", None)
    return made


class _Scattered:
    """A cache that is told of packed keys and values, and holds them as rows of a batch."""

    def __init__(self, cache: Any, shape: torch.Size, places: Tensor) -> None:
        self._cache, self._shape, self._places = cache, shape, places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, key: Tensor, value: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Those given, (1, nhead_k, tokens, hdim), which attention goes on with."""
        rows = (_spread(one.transpose(1, 2)[0], self._shape, self._places).transpose(1, 2) for one in (key, value))
        self._cache.update(*rows, *args, **named)
        return key, value


def _spread(packed: Tensor, shape: torch.Size, places: Tensor) -> Tensor:
    """(batch, tokens, ...) of (tokens of all, ...), 0 at padding. places: of each token, int64."""
    made = packed.new_zeros((shape.numel(), *packed.shape[1:]))
    return made.index_copy_(0, places, packed).unflatten(0, shape)


def packed_forward(self: Any, *args: Any, **named: Any) -> Any:
    """The forward of a stack of layers."""
    there = _there(self, args, named)
    if there is None:
        return type(self).forward(self, *args, **named)
    word = next((word for word in CACHES if named.get(word) is not None), None)
    cache = None if word is None else named[word]
    if cache is None and (self.config.use_cache if named.get("use_cache") is None else named["use_cache"]):
        from transformers import DynamicCache

        word, cache = self.__dict__[PACKED], DynamicCache(config=self.config)
    given = {name: one for name, one in named.items() if name not in ("attention_mask", "cache_position")}
    for name in ("input_ids", "inputs_embeds"):
        if given.get(name) is not None:
            given[name] = given[name][there].unsqueeze(0)
    positions = given.get("position_ids")
    if positions is None:
        positions = torch.arange(there.shape[1], device=there.device)[None]
    given["position_ids"] = positions.expand(there.shape)[there].unsqueeze(0)
    scattered, places = None, there.flatten().nonzero()[:, 0]
    if word is not None and cache is not None:
        scattered = given[word] = _Scattered(cache, there.shape, places)
    _now.starts = torch.nn.functional.pad(there.sum(1).cumsum(0), (1, 0)).to(torch.int32)
    try:
        out = type(self).forward(self, **given)
    finally:
        _now.starts = None
    for name, one in list(out.items()):
        if one is scattered:
            out[name] = cache
    out["last_hidden_state"] = _spread(out["last_hidden_state"][0], there.shape, places)
    return out


def _there(self: Any, args: Any, named: dict[str, Any]) -> Tensor | None:
    """Tokens of a batch, bool (batch, tokens); None for a call that is not packed."""
    mask = named.get("attention_mask")
    if named.get("return_dict") is False:
        return None
    tokens = next((named[name] for name in ("input_ids", "inputs_embeds") if named.get(name) is not None), None)
    if (
        args or not isinstance(mask, Tensor) or tokens is None or self.training or torch.is_grad_enabled()
        or torch.compiler.is_compiling() or mask.dim() != 2 or mask.shape != tokens.shape[:2] or mask.shape[1] < 2
        or self.config._attn_implementation != "tilekiln"
        or any(one is not None and one is not False and name not in KNOWN for name, one in named.items())
    ):  # fmt: skip
        return None
    positions = named.get("position_ids")
    if positions is not None and (positions.dim() != 2 or positions.shape[1] != mask.shape[1]):
        return None
    from transformers import DynamicCache

    caches = [named[word] for word in CACHES if named.get(word) is not None]
    if any(not isinstance(one, DynamicCache) or one.get_seq_length() for one in caches):
        return None
    there = mask.bool()
    lengths = there.sum(1)
    count = int(lengths.sum())
    if count > there.numel() * (1 - LEAST) or not bool(lengths.all()):
        return None
    if positions is None and not bool(there[:, 0].all()):  # some models count them from the first token
        return None
    begins = there[:, 1:] & ~there[:, :-1]
    if bool((begins.sum(1) + there[:, 0]).gt(1).any()) or _is_watched(self):  # holes stay padding
        return None
    return there


def _is_watched(self: Any) -> bool:
    """Do hooks look at rows of the batch, or results that are not packed?"""
    config = self.config
    told = getattr(config, "output_hidden_states", False) or getattr(config, "output_attentions", False)
    if told or not getattr(config, "return_dict", True) or _has_any_global_hook():
        return True
    return any(one._forward_hooks or one._forward_pre_hooks for one in self.modules())


def _stack(model: Any) -> tuple[str, Any] | None:
    """The module whose layers are a decoder's, and its name; None where there is none."""
    if getattr(model.config, "is_encoder_decoder", False):
        return None
    for name, one in model.named_modules():
        layers = one._modules.get("layers")
        if isinstance(layers, torch.nn.ModuleList) and len(layers) and hasattr(one, "set_attn_implementation"):
            return (name, one) if cache_word(type(one).forward) else None
    return None


def pack_prompts(model: Any, undo: list[Any], check: Any, exact: bool) -> list[tuple[str, str, str, str]]:
    """Give the stack of a model's layers `packed_forward`. A row of the table: name, class, what it does now, why not.

    check: that of the model, of whose first layers a padded batch is computed in both ways; exact: compared, too. None
    for a model without such a stack or check.
    """
    found = _stack(model)
    if found is None or not isinstance(check, Check):
        return []
    name, stack = found
    row = name, type(stack).__name__
    if PACKED in stack.__dict__:
        return [(*row, "", "takes prompts without padding already")]
    stack.__dict__[PACKED] = cache_word(type(stack).forward)
    undo.append(functools.partial(_give_back, stack))
    try:
        _compare(model, stack, check, exact)
    except BaseException as error:
        undo.pop()()
        if not isinstance(error, Exception):
            raise
        return [(*row, "", f"computes padding, too: {next(iter(str(error).splitlines()), '') or type(error).__name__}")]
    stack.forward = functools.partial(packed_forward, stack)
    return [(*row, "prompts without padding", "")]


def _compare(model: Any, stack: Any, check: Any, exact: bool) -> None:
    """ValueError where a padded batch cannot be packed, or gives other numbers then."""
    types = set(getattr(stack.config, "layer_types", None) or ())
    if types - KINDS or not all("self_attn" in layer._modules for layer in stack.layers):
        raise ValueError("has layers that are not attention")
    if stack.config._attn_implementation != "tilekiln":
        raise ValueError("has other attention")
    if stack._forward_hooks or stack._forward_pre_hooks or "forward" in stack.__dict__:
        raise ValueError("has hooks, or a forward of its own")
    with _apart(model), _first_layers(model, check._counts), torch.no_grad():
        theirs, ours = (_tried(stack, forward, check._tokens) for forward in (type(stack).forward, packed_forward))
    far = float((theirs - ours).norm() / theirs.norm().clamp_min(1e-30))
    if exact and not far <= OFF.get(stack.dtype, 0):
        raise ValueError(f"gave other numbers, {far:.2g} of their size away")


def _tried(stack: Any, forward: Any, tokens: Tensor) -> Tensor:
    """Results of two rows, half of one padding."""
    mask = torch.ones_like(tokens)
    mask[0, : tokens.shape[1] // 2] = 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    made: Tensor = forward(stack, input_ids=tokens, attention_mask=mask, position_ids=positions)["last_hidden_state"]
    return made[mask.bool()].double()


def _give_back(stack: Any) -> None:
    for name in ("forward", PACKED):
        stack.__dict__.pop(name, None)
