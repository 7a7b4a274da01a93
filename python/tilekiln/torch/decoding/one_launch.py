# SPDX-License-Identifier: MIT
"""A decode step through all layers of a decoder in one launch, on Hopper (kernels/backends/cuda/decoder).

Its weights are read in one stream, which does not rest between the parts of a layer. It takes up to 8 sequences in
layers of RMSNorm, rotary attention and a gated feed-forward layer by silu, without biases, of bf16 or fp16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..._core.decoder_step import NO_KERNEL, OPERATOR, Call, Function, function_of
from ...api.operators import _backends, at_hand
from ..fused_layers import FUSED, halves_of
from .layers import DTYPES, FEW, Joined, Layer, head_forward, last_norm_forward

MOST_TOKENS = 8192
"""Of all rooms of a layer: beyond, nothing was measured, and attention's own kernel splits keys more."""
PIECE = 16
"""Bytes that are read at once."""
CODES = {torch.float16: 0x210, torch.bfloat16: 0x410}


class OneLaunchError(ValueError):
    """The reason why a step is not one launch."""


def _try(call: Call) -> Function:
    """The function of the first library that takes a call, which has said how large its workspace is."""
    why = f"no library for cuda-sm90a has {OPERATOR}: tools/dev scons receipt=flash target=cuda-sm90a,native"
    for library in at_hand():
        if OPERATOR not in library.operators or "cuda" not in _backends(library):
            continue
        function = function_of(library.path)
        if function is None:
            continue
        status, words = function(call)
        if status == 0:
            return function
        why = words
        if status != NO_KERNEL:
            break
    raise OneLaunchError(why)


def _same(name: str, values: Sequence[Any]) -> Any:
    if any(one != values[0] for one in values):
        raise OneLaunchError(f"its layers differ in {name}")
    return values[0]


def _fused_by(model: Any, forward: Any) -> list[Any]:
    return [one for one in model.modules() if getattr(one.__dict__.get("forward"), "func", None) is forward]


def _check_layer(layer: Layer, room: int) -> None:
    """OneLaunchError says why the kernel computes no such layer."""
    joined = layer.qkv, layer.out, layer.gate_up, layer.down
    said = layer.said
    if layer.gate_up is None:
        raise OneLaunchError("it has experts")
    if not all(type(one) is Joined for one in joined):
        raise OneLaunchError("its weights are quantised")
    if any(one.bias is not None for one in joined if isinstance(one, Joined)):
        raise OneLaunchError("it has biases")
    if any(one.sums is not None for one in joined if isinstance(one, Joined)):
        raise OneLaunchError("its weights are split over processes")
    if layer.after or layer.head_norms:
        raise OneLaunchError("it has norms of heads, or behind attention")
    if layer.activation != "silu":
        raise OneLaunchError(f"its activation is {layer.activation}")
    if said.get("softcap") or said.get("s_aux") is not None or 0 < (said.get("sliding_window") or 0) < room:
        raise OneLaunchError("its attention has a window, a soft cap or sinks")
    if any(how["offset"] for _, how in layer.norms):
        raise OneLaunchError("its norms add to their factors")


class OneLaunch:
    """A step of `len(lengths)` sequences through the layers of a model, as one launch. OneLaunchError says why not.

    rooms: of each layer keys and values (batch, heads, tokens, hdim). angles: cos and sin (1, tokens, ..) of all
    places. lengths, int32 (batch): tokens in the rooms before the step, on the device. tokens, int64 (batch, 1): the
    most probable ones are put there, and lengths grow by one; None: neither.
    """

    head: Any = None
    """The output embedding, if it and the norm before it are in the launch."""
    norm: Any = None

    def __init__(
        self, model: Any, rooms: list[tuple[Tensor, Tensor]], angles: tuple[Tensor, Tensor], lengths: Tensor,
        tokens: Tensor | None,
    ) -> None:  # fmt: skip
        layers = [one.__dict__[FUSED] for one in model.modules() if isinstance(one.__dict__.get(FUSED), Layer)]
        layers.sort(key=lambda one: int(one.word))
        keys = rooms[0][0]
        batch, of_k, room, hdim = keys.shape
        if len(layers) != len(rooms) or batch > FEW or batch * room > MOST_TOKENS or keys.dtype not in DTYPES:
            raise OneLaunchError(f"{batch} sequences of up to {room} tokens, {keys.dtype}, of {len(rooms)} layers")
        for one in layers:
            _check_layer(one, room)
        self.words, self.at = [one.word for one in layers], 0
        self.made: Tensor | None = None
        of_q, of_keys = _same("heads", [one.heads for one in layers])
        how = _same("norms", [norm[1] for one in layers for norm in one.norms])
        scale = _same("scale", [one.said.get("scaling") or hdim**-0.5 for one in layers])
        hidden = layers[0].qkv.weight.shape[1]
        inner = layers[0].down.weight.shape[1]
        weights = (of_q + 2 * of_k) * hdim, hidden
        shapes = [
            weights,
            (hidden, of_q * hdim),
            (inner, hidden),
            (inner, hidden),
            (hidden, inner),
            (hidden,),
            (hidden,),
        ]
        rows = []
        for one, (k, v) in zip(layers, [rooms[word] for word in self.words], strict=True):
            arrays = [one.qkv.weight, one.out.weight, *one.gate_up.weight.chunk(2), one.down.weight]
            arrays += [norm._parameters["weight"] for norm, _ in one.norms]
            for array, shape in zip((*arrays, k, v), (*shapes, keys.shape, keys.shape), strict=True):
                if tuple(array.shape) != tuple(shape) or not array.is_contiguous() or array.dtype != keys.dtype:
                    raise OneLaunchError(
                        f"an array is {array.dtype} {tuple(array.shape)}, not {keys.dtype} {tuple(shape)}"
                    )
                if array.data_ptr() % PIECE:
                    raise OneLaunchError(f"an array of {tuple(shape)} lies at no multiple of {PIECE} bytes")
            rows.append([array.data_ptr() for array in (*arrays, k, v)])
        if of_keys != of_k:
            raise OneLaunchError(f"its cache has {of_k} heads, its layers {of_keys}")
        cos, sin = (one.flatten(0, 1) for one in halves_of(*angles, keys.dtype, layers[0].doubled))
        if cos.dtype != keys.dtype or cos.shape != (room, hdim // 2) or sin.shape != cos.shape:
            raise OneLaunchError(f"its angles are {cos.dtype} {tuple(cos.shape)}")
        self.kept = cos.contiguous(), sin.contiguous(), lengths
        self.table = torch.tensor(rows, dtype=torch.int64, device=keys.device)
        self.call = Call(
            size=ctypes.sizeof(Call), layers=self.table.data_ptr(), cos=self.kept[0].data_ptr(),
            sin=self.kept[1].data_ptr(), lengths=lengths.data_ptr(), cos_row=hdim // 2, sin_row=hdim // 2,
            cache_row=keys.stride(0), cache_head=keys.stride(1), device=keys.device.index or 0, dtype=CODES[keys.dtype],
            count=len(layers), rows=batch, hidden=hidden, inner=inner, heads=of_q, kv_heads=of_k, hdim=hdim,
            rounds=how["rounding"] == "transformers", scale=scale, epsilon=how["epsilon"],
        )  # fmt: skip
        self.call.x = self.call.y = self.table.data_ptr()  # any place, until the step is launched
        self._take_head(model, how, keys.dtype, hidden, tokens)
        self.function = _try(self.call)
        self.workspace = torch.zeros(self.call.workspace_bytes, dtype=torch.uint8, device=keys.device)
        self.call.workspace = self.workspace.data_ptr()

    def _take_head(
        self, model: Any, how: dict[str, Any], dtype: torch.dtype, hidden: int, tokens: Tensor | None
    ) -> None:
        heads, norms = (_fused_by(model, forward) for forward in (head_forward, last_norm_forward))
        if len(heads) != 1 or len(norms) != 1 or norms[0].__dict__[FUSED] != how or heads[0].bias is not None:
            return
        weight, factors = heads[0].weight, norms[0]._parameters["weight"]
        fits = weight.shape[1] == hidden == len(factors) and weight.shape[0] % 8 == 0
        if not fits or not weight.is_contiguous() or {weight.dtype, factors.dtype} != {dtype}:
            return
        if (weight.data_ptr() | factors.data_ptr()) % PIECE:
            return
        self.head, self.norm = heads[0], norms[0]
        self.call.head, self.call.last_norm, self.call.vocabulary = weight.data_ptr(), factors.data_ptr(), len(weight)
        self.call.logits = self.table.data_ptr()  # as x
        if tokens is not None:
            self.tokens, self.call.tokens = tokens, tokens.data_ptr()

    tokens: Tensor | None = None
    logits: Tensor | None = None

    def multiplied(self, hidden: Tensor) -> Tensor:
        """Logits of what is behind all layers."""
        if self.made is None or hidden.data_ptr() != self.made.data_ptr() or hidden.shape != self.made.shape:
            raise OneLaunchError("something lies between its layers and its output embedding")
        logits: Any = self.logits
        return logits

    def chose(self, logits: Tensor) -> bool:
        """Are tokens chosen, by these logits?"""
        if self.tokens is None:
            return False
        if self.logits is None or logits.data_ptr() != self.logits.data_ptr():
            raise OneLaunchError("its logits are others than its output embedding's")
        return True

    def passed(self, word: int, hidden: Tensor) -> Tensor:
        """Hidden states (batch, 1, columns) behind a layer: the first computes all of them."""
        if self.at == 0:
            self.made = self._launch(hidden)
        elif hidden is not self.made:
            raise OneLaunchError("something lies between its layers")
        if word != self.words[self.at]:
            raise OneLaunchError("its layers come in another order than their caches")
        self.at = (self.at + 1) % len(self.words)
        made: Any = self.made
        return made

    def _launch(self, hidden: Tensor) -> Tensor:
        x = hidden.contiguous()
        made = torch.empty_like(x)
        self.call.x, self.call.y = x.data_ptr(), made.data_ptr()
        if self.head is not None:
            self.logits = x.new_empty(*x.shape[:-1], len(self.head.weight))
            self.call.logits = self.logits.data_ptr()
        self.call.stream = torch.cuda.current_stream(x.device).cuda_stream
        status, words = self.function(self.call)
        if status:
            raise OneLaunchError(words)
        return made


def one_launch(
    model: Any, rooms: list[tuple[Tensor, Tensor]], angles: tuple[Tensor, Tensor], lengths: Tensor,
    tokens: Tensor | None,
) -> OneLaunch | None:  # fmt: skip
    """An OneLaunch; None where other kernels are meant for so many sequences, or for the device."""
    if lengths.device.type != "cuda" or len(lengths) > FEW:
        return None
    return OneLaunch(model, rooms, angles, lengths, tokens)
