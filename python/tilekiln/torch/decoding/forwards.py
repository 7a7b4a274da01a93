# SPDX-License-Identifier: MIT
"""Forwards of short prompts as CUDA graphs, by their shape: their launches take longer than their kernels.

A shape is recorded when it comes for the second time. There is no padding, and nothing in the cache before.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ..fused_layers import cache_word
from ..growing_cache import GrowingLayer, spare
from .layers import step as running

MOST_TOKENS = 512
"""Of a recorded prompt, all sequences together: beyond, kernels take longer."""
MOST = 4
"""Recorded shapes that a model keeps."""
COUNTED = 256
"""Shapes that are counted."""


class Shape(NamedTuple):
    """Of a prompt."""

    batch: int
    tokens: int
    keep: int
    """Logits of so many last tokens; 0: of all."""


class _Kept(DynamicLayer):
    """A layer of a recorded prompt's cache: what it is given, which nothing was before."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = key_states, value_states
        return key_states, value_states


class _KeptOfWindow(DynamicSlidingWindowLayer):
    """The same of a layer that keeps a window: all of it."""

    update = _Kept.update


KEPT: dict[Any, Any] = {DynamicLayer: _Kept, DynamicSlidingWindowLayer: _KeptOfWindow}


class RecordedForward:
    """A prompt of a shape, its logits, and its keys and values at fixed places."""

    def __init__(self, model: Any, shape: Shape, record: Any, device: torch.device) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.ids = torch.zeros(shape.batch, shape.tokens, dtype=torch.long, device=device)
            self.kept: list[Tensor] = []
            """Keys and values of each layer; all of them as one if they are of one shape and no layer has a window."""
            self.layers = 0
            self.recorded = record(functools.partial(self._compute, model, shape.keep), device)

    def _compute(self, model: Any, keep: int) -> Tensor:
        cache = DynamicCache(config=model.config)
        layers: Any = cache.layers
        for one in layers:
            if type(one) not in KEPT:
                raise ValueError(f"its cache has a {type(one).__name__}")
            one.__class__ = KEPT[type(one)]
        running.plain = True
        try:
            given = {str(cache_word(type(model).forward)): cache, "use_cache": True, "logits_to_keep": keep}
            made: Tensor = type(model).forward(model, input_ids=self.ids, **given).logits
        finally:
            running.plain = False
        self.layers, self.kept = len(layers), [one for layer in layers for one in (layer.keys, layer.values)]
        if len({one.shape for one in self.kept}) == 1 and all(type(one) is _Kept for one in layers):
            self.kept = [torch.stack(self.kept)]
        return made

    def run(self, ids: Tensor, cache: Any) -> Tensor:
        """Logits; keys and values go into a cache, if there is one."""
        self.ids.copy_(ids)
        for one, keys in zip(() if cache is None else cache.layers, self.kept[::2], strict=False):
            if type(one) is DynamicSlidingWindowLayer:  # which waits for the device, as yet for nothing
                one.lazy_initialization(keys, keys)
        self.recorded.replay()
        if cache is not None:
            self._fill(cache)
        made: Tensor = self.recorded.made.clone()
        return made

    def _fill(self, cache: Any) -> None:
        whole = self.kept[0]
        if len(self.kept) > 1 or len(cache.layers) != self.layers:
            every = self.kept if len(self.kept) > 1 else whole.unbind()
            for word in range(self.layers):
                cache.update(every[2 * word], every[2 * word + 1], word)
            return
        tokens = whole.shape[-2]
        rooms = whole.new_empty(*whole.shape[:-2], tokens + spare(tokens), whole.shape[-1])
        filled = rooms.narrow(-2, 0, tokens)
        filled.copy_(whole)
        every, given = rooms.unbind(), filled.unbind()
        for word, layer in enumerate(cache.layers):
            here = slice(2 * word, 2 * word + 2)
            layer.begin(every[here], given[here])


class Forwards:
    """The recorded prompts of a model."""

    def __init__(self) -> None:
        self.made: dict[Shape, RecordedForward] = {}
        self.seen: Counter[Shape] = Counter()
        self.refused: set[Shape] = set()

    def take(self, steps: Any, shape: Shape) -> RecordedForward | None:
        """The recorded prompt of a shape that came before; None: it is computed."""
        found = self.made.pop(shape, None)
        if found is None:
            if shape in self.refused or not steps.is_ready():
                return None
            try:
                found = RecordedForward(steps.model, shape, steps.record, next(steps.model.parameters()).device)
            except Exception as error:  # whatever a stranger's module does: it is computed as before
                self.refused.add(shape)
                why = next(iter(str(error).splitlines()), type(error).__name__)
                steps.tell(f"a prompt of {shape.tokens} tokens is no graph: {why}")
                return None
            steps.looked()
        self.made[shape] = found  # the last that was used
        while len(self.made) > MOST:
            self.made.pop(next(iter(self.made)))
        return found

    def comes_again(self, shape: Shape) -> bool:
        """Was this shape asked for before? Counts it."""
        if len(self.seen) > COUNTED:
            self.seen.clear()
        self.seen[shape] += 1
        return self.seen[shape] > 1


def shape_of(named: dict[str, Any], cache: Any) -> Shape | None:
    """Of a call that a recorded prompt may answer, but for its mask and positions; None of others."""
    ids, keep = named["input_ids"], named.get("logits_to_keep") or 0
    if ids.dim() != 2 or not 0 < ids.numel() <= MOST_TOKENS or type(keep) is not int or keep > ids.shape[1]:
        return None
    layers: Any = () if cache is None else cache.layers if type(cache) is DynamicCache else (None,)
    if any(type(one) not in (*KEPT, GrowingLayer) or one.is_initialized for one in layers):
        return None
    if any(getattr(one, "record_past", False) for one in layers):
        return None
    return Shape(ids.shape[0], ids.shape[1], keep)


def is_plain(named: dict[str, Any], shape: Shape) -> bool:
    """Is nothing hidden, and are positions those of a prompt? Waits for the device."""
    mask, positions = named.get("attention_mask"), named.get("position_ids")
    if mask is not None and (tuple(mask.shape) != shape[:2] or not bool(mask.all())):
        return False
    if positions is None:
        return True
    if positions.dim() != 2 or positions.shape[1] != shape.tokens:
        return False
    return bool((positions == torch.arange(shape.tokens, device=positions.device)).all())
