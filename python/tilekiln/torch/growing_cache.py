# SPDX-License-Identifier: MIT
"""A KV cache of Transformers that grows in place, where its own is copied whole for every token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

LEAST = 64


class GrowingLayer(DynamicLayer):
    """A DynamicLayer whose keys and values are the filled part of rooms with a quarter to spare.

    `update` writes new tokens behind the others; a room that is full, or that was cut, repeated or reordered, is made
    anew. keys and values (batch, nhead_k, tokens, hdim) are views of it: what was taken from the cache before stays as
    it was until the cache is cropped and written again. Tensors that a gradient is recorded for, and what torch.compile
    traces, go the original's way.
    """

    _rooms: tuple[Tensor, Tensor] | None = None
    _given: tuple[Tensor, Tensor] | None = None
    """Result of the last update: still keys and values, if nothing else has changed the cache."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        new = key_states, value_states
        recorded = torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad)
        if recorded or torch.compiler.is_compiling():
            self._rooms = None
            made: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return made
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old: tuple[Any, Any] = (self.keys, self.values)  # type: ignore[has-type]  # of a base that is Any without Transformers
        given, rooms = self._given, self._rooms
        ours = given is not None and old[0] is given[0] and old[1] is given[1]
        length = old[0].shape[-2] if ours else self.get_seq_length()
        end = length + key_states.shape[-2]
        fits = rooms is not None and all(map(_has_room, rooms, new, (end, end)))
        if rooms is None or not fits or not (ours or all(map(_begins, rooms, old))):
            room = end + spare(end)
            self._rooms = rooms = _room(key_states, room), _room(value_states, room)
            if length:
                for place, one in zip(rooms, old, strict=True):
                    place[..., :length, :] = one
        for place, one in zip(rooms, new, strict=True):
            place.narrow(-2, length, end - length).copy_(one)
        self._given = given = rooms[0].narrow(-2, 0, end), rooms[1].narrow(-2, 0, end)
        self.keys, self.values = given
        return given

    def begin(self, rooms: tuple[Tensor, Tensor], given: tuple[Tensor, Tensor]) -> None:
        """Of a layer without tokens: they are there, in the filled parts of rooms."""
        self.dtype, self.device, self.is_initialized = given[0].dtype, given[0].device, True
        self._rooms, self._given = rooms, given
        self.keys, self.values = given

    def room_for(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int] | None:
        """Rooms where such new tokens fit behind the others, to be written before `grow`, and how many those are."""
        given, rooms = self._given, self._rooms
        if given is None or rooms is None or self.keys is not given[0] or self.values is not given[1]:
            return None
        length = given[0].shape[-2]
        end = length + k.shape[-2]
        return (*rooms, length) if _has_room(rooms[0], k, end) and _has_room(rooms[1], v, end) else None

    def grow(self, tokens: int) -> None:
        """Tokens that were written into `room_for` are in the cache."""
        assert self._rooms is not None
        assert self.keys is not None
        end = self.keys.shape[-2] + tokens
        self._given = given = self._rooms[0].narrow(-2, 0, end), self._rooms[1].narrow(-2, 0, end)
        self.keys, self.values = given


def spare(tokens: int) -> int:
    """Room beyond so many tokens."""
    return max(LEAST, tokens // 4)


def _room(like: Tensor, tokens: int) -> Tensor:
    return like.new_empty(*like.shape[:-2], tokens, like.shape[-1])


def _begins(room: Tensor, old: Tensor) -> bool:
    """Are the tokens there the beginning of this room?"""
    return old.data_ptr() == room.data_ptr() and old.stride() == room.stride()


def _has_room(room: Tensor, new: Tensor, end: int) -> bool:
    """Does it have space up to `end`, for tokens such as these?"""
    shape = room.shape
    return end <= shape[-2] and shape[:-2] == new.shape[:-2] and room.dtype == new.dtype and room.device == new.device


def grow_in_place(cache: Any) -> None:
    """Have the plain layers of a DynamicCache grow in place from now on; others, such as sliding ones, stay."""
    for layer in getattr(cache, "layers", ()):
        if type(layer) is DynamicLayer:
            layer.__class__ = GrowingLayer
