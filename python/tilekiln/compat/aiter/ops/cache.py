# SPDX-License-Identifier: MIT
"""aiter.ops.cache: keys and values of new tokens into the blocks of a cache, and blocks from one place to another.

key, value (tokens, heads, headdim), or with more dimensions before the heads; slot_mapping (tokens), int64 or int32:
block block_size + place, below 0 for a token that is not kept. key_cache (blocks, heads, headdim / x, block_size, x),
x = 16 / bytes of an element, value_cache (blocks, heads, headdim, block_size), with asm_layout (blocks, heads,
block_size / x, headdim, x); of the flash form both (blocks, block_size, heads, headdim). kv_cache_dtype "auto": the
cache has the dtype of key; "fp8": e4m3, "fp8_e5m2": e5m2 (uint8 or float8), key / k_scale and value / v_scale, fp32 of
one element, 1 unless given. No gradient reaches key and value, and none is recorded of a cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...._core.native import ArgumentError
from ... import _absent
from ..._modules import errors_as_upstream
from .._paged import FORMATS, FP8, typed
from .._rows import divided, quantise
from .._run import run

__all__ = [
    "concat_and_cache_mla",
    "copy_blocks",
    "fused_qk_rope_concat_and_cache_mla",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "reshape_and_cache_with_pertoken_quant",
    "swap_blocks",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream()


def _pairs(block_mapping: Tensor) -> tuple[Tensor, Tensor]:
    if block_mapping.dim() != 2 or block_mapping.shape[1] != 2:
        raise ArgumentError(f"block_mapping: was of shape {tuple(block_mapping.shape)}, must be (pairs, 2): from, to")
    return block_mapping[:, 0].long(), block_mapping[:, 1].long()


def _movable(cache: Tensor) -> Tensor:
    """The same memory in a dtype that PyTorch moves: it has no index_copy_ of fp8."""
    return cache.view(torch.uint8) if cache.element_size() == 1 else cache


@_named
def swap_blocks(src: Tensor, dst: Tensor, block_mapping: Tensor) -> None:
    """dst[to] = src[from] for each pair (from, to) of block_mapping (pairs, 2); the two may be of other devices."""
    source, place = _pairs(block_mapping)
    src, dst = _movable(src), _movable(dst)
    dst.index_copy_(0, place.to(dst.device), src.index_select(0, source.to(src.device)).to(dst.device))


@_named
def copy_blocks(key_caches: list[Tensor], value_caches: list[Tensor], block_mapping: Tensor) -> None:
    """cache[to] = cache[from] for each pair (from, to) of block_mapping (pairs, 2), in every cache."""
    source, place = _pairs(block_mapping)
    for cache in map(_movable, (*key_caches, *value_caches)):
        cache.index_copy_(0, place.to(cache.device), cache.index_select(0, source.to(cache.device)))


def _kept(slot_mapping: Tensor, size: int, *rows: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(blocks, places, rows) of the tokens that are kept."""
    slots = slot_mapping.reshape(-1).long()
    kept = slots >= 0
    if slots.device.type == "cpu" and bool(kept.all()):
        return slots // size, slots % size, list(rows)
    slots = slots[kept]
    return slots // size, slots % size, [one[kept] for one in rows]


def _check_kind(x: Tensor, cache: Tensor, kind: str, name: str) -> None:
    if kind == "auto" and cache.dtype != x.dtype:
        raise ArgumentError(f"{name}: was {cache.dtype}, must be {x.dtype}, as the tokens, with kv_cache_dtype 'auto'")
    if kind != "auto" and cache.dtype not in (torch.uint8, FORMATS.get(kind)):
        must = f"'auto', {FORMATS[kind]} or torch.uint8" if kind in FORMATS else f"'auto', {', '.join(FORMATS)}"
        raise ArgumentError(f"kv_cache_dtype: was {kind!r} of a cache of {cache.dtype}, must be {must}")


def _stored(x: Tensor, cache: Tensor, kind: str, scale: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    """(x, cache) as arrays of one dtype whose elements are moved as they are."""
    _check_kind(x, cache, kind, name)
    if kind == "auto":
        return x, cache
    made = divided(x, 1.0 if scale is None else scale, FORMATS[kind])  # type: ignore[arg-type]
    return made.view(torch.uint8), cache.view(torch.uint8)


def _tokens(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.reshape(-1, *x.shape[-2:])


def _rows(x: Tensor) -> Tensor:
    """(tokens, heads, headdim) whose heads lie together."""
    x = _tokens(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _write_keys(key: Tensor, cache: Tensor, slots: Tensor) -> None:
    block, place, [rows] = _kept(slots, cache.shape[3], key)
    cache[block, :, :, place] = rows.view(*rows.shape[:2], cache.shape[2], cache.shape[4])


def _write_values(value: Tensor, cache: Tensor, slots: Tensor, asm_layout: bool) -> None:
    size = cache.shape[2] * cache.shape[4] if asm_layout else cache.shape[3]
    block, place, [rows] = _kept(slots, size, value)
    if asm_layout:
        wide = cache.shape[4]
        cache[block, :, place // wide, :, place % wide] = rows
    else:
        cache[block, :, :, place] = rows


def _check_blocks(key_cache: Tensor, value_cache: Tensor, asm_layout: bool) -> None:
    for name, cache, dims in (("key_cache", key_cache, 5), ("value_cache", value_cache, 5 if asm_layout else 4)):
        if cache.dim() != dims:
            raise ArgumentError(f"{name}: was of shape {tuple(cache.shape)}, must have {dims} dimensions")


@_named
@torch.no_grad()
def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None, asm_layout: bool = False,
) -> None:  # fmt: skip
    """Writes key and value into their blocks."""
    _check_blocks(key_cache, value_cache, asm_layout)
    keys, key_cache = _stored(_tokens(key), key_cache, kv_cache_dtype, k_scale, "key_cache")
    values, value_cache = _stored(_tokens(value), value_cache, kv_cache_dtype, v_scale, "value_cache")
    _write_keys(keys, key_cache, slot_mapping)
    _write_values(values, value_cache, slot_mapping, asm_layout)


@errors_as_upstream(knew="key", vnew="value", k="key_cache", v="value_cache")
def reshape_and_cache_flash(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str,
    k_scale: Tensor, v_scale: Tensor,
) -> None:  # fmt: skip
    """Writes key and value into blocks (blocks, block_size, heads, headdim); scales of one element, or None."""
    if kv_cache_dtype == "auto" and key.dtype == key_cache.dtype and value.dtype == value_cache.dtype:
        slots = slot_mapping if slot_mapping.dim() == 1 else slot_mapping.reshape(-1)
        run("reshape_and_cache", (_rows(key), _rows(value), key_cache, value_cache, slots), {})
        return
    arrays = []
    for name, x, cache in (("key_cache", key, key_cache), ("value_cache", value, value_cache)):
        _check_kind(_tokens(x), cache, kv_cache_dtype, name)
        arrays.append(typed(cache, kv_cache_dtype))
    scales = {} if kv_cache_dtype == "auto" else {"k_scale": k_scale, "v_scale": v_scale}
    run("reshape_and_cache", (_rows(key), _rows(value), *arrays, slot_mapping.reshape(-1)), scales)


@errors_as_upstream(x="key", y="key_cache", quant_dtype="key_cache")
@torch.no_grad()
def reshape_and_cache_with_pertoken_quant(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
    v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool,
) -> None:  # fmt: skip
    """Writes key and value, each head of a token quantised to the cache's int8 or fp8 with a scale of its own.

    k_dequant_scales, v_dequant_scales, fp32 (heads, slots), with asm_layout (blocks, heads, block_size): written, too.
    """
    _check_blocks(key_cache, value_cache, asm_layout)
    size = key_cache.shape[3]
    made = []
    for x, cache in ((_tokens(key), key_cache), (_tokens(value), value_cache)):
        y = torch.empty(x.shape, dtype=cache.dtype, device=x.device)
        scale = torch.empty(x.shape[:2], dtype=torch.float32, device=x.device)
        quantise(y, x.contiguous(), scale)
        made.append((y.view(torch.uint8), scale))
    for (_, scale), place in zip(made, (k_dequant_scales, v_dequant_scales), strict=True):
        block, at, [kept] = _kept(slot_mapping, size, scale)
        if asm_layout:
            place[block, :, at] = kept
        else:
            place[:, block * size + at] = kept.t()
    _write_keys(made[0][0], key_cache.view(torch.uint8), slot_mapping)
    _write_values(made[1][0], value_cache.view(torch.uint8), slot_mapping, asm_layout)


@_named
@torch.no_grad()
def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    """Writes kv_c (tokens, latent) and k_pe (tokens, rotary) side by side into kv_cache (blocks, size, both)."""
    both, cache = _stored(
        torch.cat([kv_c, k_pe.view(kv_c.shape[0], -1)], 1), kv_cache, kv_cache_dtype, scale, "kv_cache"
    )
    block, place, [kept] = _kept(slot_mapping, cache.shape[1], both)
    cache.view(*cache.shape[:2], -1)[block, place] = kept


@errors_as_upstream(x="q_pe", cos="cos_cache", sin="sin_cache")
@torch.no_grad()
def fused_qk_rope_concat_and_cache_mla(
    q_nope: Tensor, q_pe: Tensor, kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, q_out: Tensor, slot_mapping: Tensor,
    k_scale: Tensor, q_scale: Tensor, positions: Tensor, cos_cache: Tensor, sin_cache: Tensor, is_neox: bool,
    is_nope_first: bool, compute_all_q_rope: bool = False,
) -> None:  # fmt: skip
    """q_out (tokens, heads, latent + rotary): q_nope beside q_pe turned; kv_cache: kv_c beside k_pe turned.

    cos_cache, sin_cache (positions, rotary / 2), positions (tokens). is_nope_first: else the turned parts come first.
    Of fp8 q_out is divided by q_scale, kv_cache by k_scale. Every token of q is written.
    """
    turned = []
    for part in (q_pe, k_pe.view(q_pe.shape[0], -1, q_pe.shape[-1])):
        cos, sin = (t if t.dtype in (part.dtype, torch.float32) else t.float() for t in (cos_cache, sin_cache))
        arrays = (part[None], cos.view(-1, cos.shape[-1]), sin.view(-1, sin.shape[-1]))
        turned.append(run("rotary", arrays, {"positions": positions[None], "interleaved": not is_neox})[0])
    q_parts, k_parts = (q_nope, turned[0]), (kv_c, turned[1].reshape(kv_c.shape[0], -1))
    q = torch.cat(q_parts if is_nope_first else q_parts[::-1], -1)
    q_out.copy_(divided(q, q_scale, FP8) if q_out.dtype == FP8 else q)
    rows = torch.cat(k_parts if is_nope_first else k_parts[::-1], -1)
    kind = "fp8" if kv_cache.dtype in (torch.uint8, FP8) else "auto"
    rows, cache = _stored(rows, kv_cache, kind, k_scale, "kv_cache")
    flat = cache.view(cache.shape[0], -1, cache.shape[-1])
    block, place, [kept] = _kept(slot_mapping, flat.shape[1], rows)
    flat[block, place] = kept
