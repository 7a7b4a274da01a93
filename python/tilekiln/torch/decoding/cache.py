# SPDX-License-Identifier: MIT
"""The KV cache of a decode step that is a graph: keys and values lie where the graph reads and writes them.

A cache of Transformers is attached to the rooms of a step: its layers are `StepLayer`, whose keys and values are views
of them, made when somebody asks. Whatever else happens to a layer (several tokens, crop, reorder, offload) takes the
cache off: it keeps the rooms, and its layers grow in place again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer

from ..growing_cache import GrowingLayer

LEAVES = 3
"""Times that a cache may be taken off before it is left alone: beams and assistants reorder or crop it at each step."""


class Tenant:
    """A cache in the rooms of a step. Its layers hold it, the step does not: when they are gone, the rooms are free."""

    def __init__(
        self, cache: Any, rooms: list[tuple[Tensor, Tensor]], length: int, apart: bool, settle: Callable[[], None]
    ) -> None:
        self.layers = weakref.WeakSet(cache.layers)
        self.cache = weakref.ref(cache)
        self.rooms, self.length, self.attached, self.settle = rooms, length, True, settle
        self.pads: Tensor | None = None
        """int32 (batch): tokens of padding before each sequence, as the step has them."""
        self.apart = apart
        """Is it in a step with padding, or positions of its own?"""
        self.misses = 0
        """Tokens that were predicted and became others."""
        for layer, room in zip(cache.layers, rooms, strict=True):
            for name in ("keys", "values", "_rooms", "_given"):
                layer.__dict__.pop(name, None)
            sliding = isinstance(layer, DynamicSlidingWindowLayer)
            if sliding:
                layer.__dict__.pop("cumulative_length")
            layer.__dict__.update(_tenant=self, _room=room)
            layer.__class__ = SlidingStepLayer if sliding else StepLayer

    def leave(self) -> None:
        """The layers are GrowingLayer again, over the rooms."""
        if not self.attached:
            return
        self.attached = False
        self.settle()  # a step that runs ahead writes behind the last token
        cache = self.cache()
        if cache is not None:
            cache.__dict__[LEFT] = left(cache) + 1
        layer: Any
        for layer in self.layers:
            room = layer.__dict__.pop("_room")
            sliding = type(layer) is SlidingStepLayer
            if sliding:
                layer.__class__ = DynamicSlidingWindowLayer
                kept = min(self.length, layer.sliding_window - 1)
                layer.keys, layer.values = (one.narrow(-2, self.length - kept, kept).clone() for one in room)
                layer.cumulative_length, layer._rooms = self.length, room
                continue
            given = _filled(room[0], self.length), _filled(room[1], self.length)
            layer.__class__ = GrowingLayer
            layer._rooms, layer._given = room, given
            layer.keys, layer.values = given


LEFT = "_tilekiln_left"


def left(cache: Any) -> int:
    """Times that a cache was taken off."""
    return int(cache.__dict__.get(LEFT, 0))


def _filled(room: Tensor, length: int) -> Tensor:
    return room.narrow(-2, 0, length)


def _shown(index: int) -> Any:
    """keys or values: of the room, what a layer shows."""

    def get(self: Any) -> Tensor:
        tokens: int = self._tenant.length
        kept = self.kept(tokens)
        return self._room[index].narrow(-2, tokens - kept, kept)

    def put(self: Any, value: Any) -> None:
        self._tenant.leave()
        setattr(self, ("keys", "values")[index], value)

    return property(get, put)


def _once_off(name: str) -> Any:
    """A method of a layer, for which the cache is taken off."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._tenant.leave()
        return getattr(self, name)(*args, **kwargs)

    return method


def _length(self: Any, *_: Any) -> int:
    return int(self._tenant.length)


def _apart(self: Any, _: Any) -> Any:
    """A copy is a layer of its own."""
    state = {key: one for key, one in self.__dict__.items() if key not in ("_tenant", "_room")}
    return _own_layer, (type(self).__bases__[0], state | self.state())


class StepLayer(GrowingLayer):
    """A layer of a cache that is attached to a step."""

    _tenant: Tenant
    _room: tuple[Tensor, Tensor]
    keys, values = _shown(0), _shown(1)
    update, reset = _once_off("update"), _once_off("reset")
    get_seq_length = _length
    __reduce_ex__ = _apart

    def kept(self, tokens: int) -> int:
        return tokens

    def state(self) -> dict[str, Any]:
        return {"keys": self.keys.clone(), "values": self.values.clone()}


class SlidingStepLayer(DynamicSlidingWindowLayer):
    """The same of a layer that keeps a window: the room has all tokens, the layer shows the last ones."""

    _tenant: Tenant
    _room: tuple[Tensor, Tensor]
    keys, values = _shown(0), _shown(1)
    update, reset, activate_past_recording = map(_once_off, ("update", "reset", "activate_past_recording"))
    get_seq_length, cumulative_length = _length, property(_length)
    __reduce_ex__ = _apart

    def kept(self, tokens: int) -> int:
        return min(tokens, int(self.sliding_window) - 1)

    def state(self) -> dict[str, Any]:
        return {"keys": self.keys.clone(), "values": self.values.clone(), "cumulative_length": self._tenant.length}


ATTACHED = StepLayer, SlidingStepLayer


def _own_layer(kind: Any, state: dict[str, Any]) -> Any:
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made
