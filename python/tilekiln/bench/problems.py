# SPDX-License-Identifier: MIT
"""The arrays of a call of `tilekiln bench`, drawn by a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._core.dtypes import NUMPY
from .._core.native import ArgumentError
from .declaration import CALLS
from .settings import Settings

POSITIVE = ("inv_rms", "inv_std", "smooth_scale", "row_scale", "column_scale", "q_descale", "k_descale", "v_descale",
            "out_scale", "kv_block_descale", "topk_weights", "a_scale")  # fmt: skip


def arrays(settings: Settings, seed: int, library: Any, place: Callable[..., Any] | None = None) -> dict[str, Any]:
    """The arguments of a call that are arrays, but for its results. place: has a function run where the call does."""
    random = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for name in settings.call.arrays:
        if name in settings.wanted and not (settings.packed and name in ("b", "b_scale", "bias")):
            made[name] = _strided(settings, name, _made(settings, name, random))
    if settings.packed:
        _pack(settings, made, random)
    if settings.operator == "fmha_bwd":
        forward = CALLS["fmha_fwd"]  # what both take
        arguments = {name: made[name] for name, one in forward.arrays.items() if one.kind == "array" and name in made}
        taken = forward.numbers.keys() - {"instance"}
        arguments |= {name: value for name, value in settings.arguments.items() if name in taken}
        forward = library.fmha_fwd if place is None else place(library.fmha_fwd)
        made["out"], made["lse"] = forward(**arguments, return_lse=True)
    return made


def whole(settings: Settings, made: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a call: the arrays `made` for it, its arguments, and None for arrays that it goes without."""
    from .._generated.tables import OPERATORS

    given: dict[str, Any] = {**made, **settings.arguments}
    for name, one in settings.call.arrays.items():  # by position, and may be null
        if one.kind != "result" and name in OPERATORS[settings.operator].optional:
            given.setdefault(name, None)
    return given


def _made(settings: Settings, name: str, random: np.random.Generator) -> Any:
    if name in settings.indices:
        return np.ascontiguousarray(settings.indices[name], NUMPY[settings.dtype(name)])
    if name in INDICES:
        return np.ascontiguousarray(INDICES[name](settings, random), settings.dtype(name))
    shape, dtype = settings.shape_of(name), settings.dtype(name)
    if name == "alibi_slopes":
        return np.float32(2.0) ** -np.arange(1, shape[0] + 1, dtype=np.float32)
    if name in ("rotary_cos", "rotary_sin"):
        angle = np.arange(shape[0])[:, None] * 10000.0 ** (-np.arange(shape[1]) / max(1, shape[1]))
        return (np.cos if name == "rotary_cos" else np.sin)(angle).astype(NUMPY[dtype])
    if NUMPY[dtype].kind in "iub":
        raw = random.integers(0, 2 if dtype == "bool" else 100, shape)
        return (raw - 50 if NUMPY[dtype].kind == "i" else raw).astype(NUMPY[dtype])
    values = random.uniform(0.5, 1.5, shape) if name in POSITIVE else settings.draw(random, shape)
    return values.astype(NUMPY[dtype])


def _strided(settings: Settings, name: str, array: Any) -> Any:
    """With the order and the stride that were asked for between rows, or columns."""
    if name in settings.columns_first:
        if array.ndim < 2:
            raise ArgumentError(f"{name}.order: is of {array.ndim} dimensions, must be of 2 or more")
        return _spaced(settings, name, np.ascontiguousarray(array.swapaxes(-1, -2))).swapaxes(-1, -2)
    return _spaced(settings, name, array)


def _spaced(settings: Settings, name: str, array: Any) -> Any:
    stride = settings.strides.get(name)
    if stride is None:
        return array
    if array.ndim < 2 or stride < array.shape[-1]:
        raise ArgumentError(
            f"{name}.stride: was {stride}, must be at least {array.shape[-1]}, the length of its rows"
            if array.ndim > 1
            else f"{name}.stride: was given for an array of {array.ndim} dimensions, must be of one of 2 or more"
        )
    room = np.zeros((*array.shape[:-1], stride), array.dtype)
    room[..., : array.shape[-1]] = array
    return room[..., : array.shape[-1]]


def _pack(settings: Settings, made: dict[str, Any], random: np.random.Generator) -> None:
    """The weight of flatmm and flatmm_quant, packed, and what has its columns."""
    from ..api.products import PackedWeight
    from ..api.quantised_weight import LANES, Bits, QuantisedWeight

    n, k = settings.lengths["N"], settings.lengths["K"]
    settings.weight = weight = random.standard_normal((n, k), np.float32)
    if settings.operator == "flatmm":
        made["b"] = PackedWeight(weight.astype(NUMPY[settings.dtype("a")])).panels
    else:
        kind, factors = settings.dtype("b"), settings.dtype("b_scale")
        if kind == "fp8":
            raise ArgumentError("weights: was 'fp8', must be int4 or int8: the bench quantises a weight itself")
        if factors == "fp16":
            raise ArgumentError(
                "weights: was 'uint4', must be int4, int8 or mxfp4: the bench quantises a weight itself"
            )
        group = settings.arguments.setdefault("group", 32)
        bits: Bits = "mxfp4" if factors == "uint8" else 4 if kind == "uint8" else 8
        packed = QuantisedWeight(weight, bits=bits, group=group)
        made["b"], made["b_scale"] = packed.panels, packed.scale
    if "bias" in settings.wanted:
        made["bias"] = random.standard_normal((made["b"].shape[0], LANES), np.float32)


def _even(total: int, parts: int) -> Any:
    """0 to total in equal steps."""
    return np.linspace(0, total, parts + 1).astype(np.int64)


def _mask(settings: Settings, random: np.random.Generator) -> Any:
    """Some experts are elsewhere: of moe_sorting any, of fused_moe every second of twice as many."""
    if settings.operator == "moe_sorting":
        return random.integers(0, 2, settings.arguments["experts"])
    return np.arange(2 * settings.lengths["E"]) % 2


def _experts(settings: Settings, random: np.random.Generator) -> Any:
    experts = settings.lengths.get("E") or settings.arguments["experts"]
    if settings.lengths["K"] > experts:
        raise ArgumentError(f"topk: was {settings.lengths['K']}, must be at most {experts}, the experts")
    drawn = random.random((settings.lengths["M"], experts))
    return np.argsort(drawn, axis=1)[:, : settings.lengths["K"]]


def _lengths_k(settings: Settings, _: Any) -> Any:
    """Full sequences; before an append, with room for what is new."""
    return np.full(settings.lengths["B"], settings.keys - settings.lengths.get("Sn", 0))


def _table(settings: Settings, _: Any) -> Any:
    rows, blocks = settings.lengths["B"], settings.lengths["Mb"]
    return np.arange(rows * blocks).reshape(rows, blocks)


def _squares(settings: Settings, _: Any) -> Any:
    """Square problems, as large as what is shorter of a and b holds, one after the other."""
    count = settings.lengths["Q"]
    side = math.isqrt(min(settings.lengths["A"], settings.lengths["F"]) // max(1, count))
    settings.arguments.setdefault("out_length", count * side * side)
    starts = np.arange(count) * side * side
    sides, none = np.full(count, side), np.zeros(count, np.int64)
    return np.stack([sides, sides, sides, starts, sides, starts, sides, starts, sides, none], axis=1)


INDICES: dict[str, Callable[[Settings, np.random.Generator], Any]] = {
    "topk_ids": _experts,
    "labels": lambda settings, random: random.integers(0, settings.lengths["N"], settings.lengths["M"]),
    "positions": lambda settings, random: np.tile(np.arange(settings.lengths["S"]), (settings.lengths["B"], 1)),
    "expert_mask": _mask,
    "local_tokens": lambda settings, random: [settings.lengths["M"]],
    "starts": lambda settings, random: _even(settings.lengths["T"], settings.lengths["G"]),
    "problems": _squares,
    "seqstart_q": lambda settings, random: _even(settings.lengths["Tq"], settings.lengths["B"]),
    "seqstart_k": lambda settings, random: _even(settings.lengths["Tk"], settings.lengths["B"]),
    "cu_seqlens_q": lambda settings, random: _even(settings.lengths["Tq"], settings.lengths["B"]),
    "seqlen_k": _lengths_k,
    "block_table": _table,
    "cache_batch_idx": lambda settings, random: np.arange(settings.lengths["B"])[::-1],
    "kv_indptr": lambda settings, random: _even(settings.lengths["P"], settings.lengths["B"]),
    "kv_page_indices": lambda settings, random: np.arange(settings.lengths["P"]),
    "kv_last_page_lens": lambda settings, random: np.full(settings.lengths["B"], settings.lengths["Ps"]),
}
"""Arrays whose numbers mean something."""
