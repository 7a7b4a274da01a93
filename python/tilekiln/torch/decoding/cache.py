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
            layer.__dict__.update(_tenant=self, _room=room)
            layer.__class__ = StepLayer

    def leave(self) -> None:
        """The layers are GrowingLayer again, over the rooms."""
        if not self.attached:
            return
        self.attached = False
        self.settle()  # a step that runs ahead writes behind the last token
        cache = self.cache()
        if cache is not None:
            cache.__dict__[LEFT] = left(cache) + 1
        for layer in self.layers:
            room = layer.__dict__.pop("_room")
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


class StepLayer(GrowingLayer):
    """A layer of a cache that is attached to a step."""

    _tenant: Tenant
    _room: tuple[Tensor, Tensor]

    def _which(index: int) -> Any:  # type: ignore[misc]  # noqa: N805
        def get(self: StepLayer) -> Tensor:
            return _filled(self._room[index], self._tenant.length)

        def put(self: StepLayer, value: Any) -> None:
            self._tenant.leave()
            setattr(self, ("keys", "values")[index], value)

        return property(get, put)

    keys, values = _which(0), _which(1)
    del _which

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self._tenant.leave()
        return self.update(key_states, value_states, *args, **kwargs)

    def get_seq_length(self, *_: Any) -> int:
        return self._tenant.length

    def reset(self) -> None:
        self._tenant.leave()
        self.reset()

    def __reduce_ex__(self, _: Any) -> Any:
        """A copy is a layer of its own."""
        state = {key: one for key, one in self.__dict__.items() if key not in ("_tenant", "_room")}
        return _own_layer, (state | {"keys": self.keys.clone(), "values": self.values.clone()},)


def _own_layer(state: dict[str, Any]) -> GrowingLayer:
    made = GrowingLayer.__new__(GrowingLayer)
    made.__dict__.update(state)
    return made
