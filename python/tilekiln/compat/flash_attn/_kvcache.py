# SPDX-License-Identifier: MIT
"""Attention over KV caches and pages of keys, by the families that have the features asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError, NoKernelError
from ...api.operators import _call
from ...torch import calls
from .._modules import FaceArgumentError, errors_as_upstream, longest
from ._arguments import UNBOUNDED, bare, bounded, in_vectors, last_dense, mask, narrowed, scale_of


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Any = UNBOUNDED, softcap: float = 0.0,
    rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention of q over a KV cache, to which k and v are appended first. No autograd.

    q (batch, seqlen_q, nheads, headdim), which is not written. k_cache, v_cache (batch_cache, seqlen_cache, nheads_k,
    headdim), or with block_table, int32 (batch, max_blocks), pages (blocks, page, nheads_k, headdim).
    k, v (batch, seqlen_new, nheads_k, headdim): written to the cache at cache_seqlens, in place.
    cache_seqlens: an int, or int32 (batch): the keys in the cache before the append; None without k: all there is room
    for. cache_batch_idx: int32 (batch): the row of the cache of each sequence. cache_leftpad: int32 (batch): the first
    key of each sequence that is attended to; masks and biases count keys from there.
    rotary_cos, rotary_sin (positions, rotary_dim / 2), with k and v: new key t is rotated for position cache_seqlens
    + t, so is query t if causal or window_size is given, else every query for cache_seqlens. rotary_interleaved: pairs
    (2i, 2i + 1), else (i, i + rotary_dim / 2).
    num_splits: parts the keys are cut into, 1 to 128; 0 chooses; with a soft cap they are not cut. The others as the
    module flash_attn_interface says.
    Returns out, shape of q, or (out, softmax_lse) with return_softmax_lse, fp32 (batch, nheads, seqlen_q).
    """
    if not softcap and rotary_cos is rotary_sin is None:
        made = quickly(
            q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, softmax_scale,
            causal, window_size, alibi_slopes, num_splits, return_softmax_lse,
        )  # fmt: skip
        if made is not None:
            return made
    return _attended(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
        softmax_scale, causal, window_size, softcap, rotary_interleaved, alibi_slopes, num_splits, return_softmax_lse,
    )  # fmt: skip


def quickly(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, cache_seqlens: int | Tensor | None,
    cache_batch_idx: Tensor | None, cache_leftpad: Tensor | None, block_table: Tensor | None,
    softmax_scale: float | None, causal: bool, window_size: Any, alibi_slopes: Tensor | None, num_splits: int,
    return_lse: bool,
) -> Any:  # fmt: skip
    """flash_attn_with_kvcache without rotation and soft cap, of tensors that are `bare`; None leaves it to the longer
    way.
    """
    if type(cache_seqlens) not in (Tensor, int) or not bare(q, k_cache, v_cache, 4) or k_cache.dim() != 4:
        return None
    if block_table is not None and (type(block_table) is not Tensor or block_table.dim() != 2):
        return None
    given: dict[str, Any] = {"seqlen_k": _lengths(cache_seqlens, q, None)}
    room = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    if not q.is_cpu:
        given["max_seqlen_k"] = max(room, 1)
    if block_table is not None:
        given["block_table"] = block_table
    if softmax_scale is not None:
        given["softmax_scale"] = softmax_scale
    if cache_batch_idx is not None:
        given["cache_batch_idx"] = cache_batch_idx
    if cache_leftpad is not None:
        given["cache_leftpad"] = cache_leftpad
    if alibi_slopes is not None:
        given["alibi_slopes"] = alibi_slopes
    if causal:
        given["causal"] = True
    if num_splits:
        given["num_splits"] = num_splits
    if return_lse:
        given["return_lse"] = True
    if window_size is not UNBOUNDED and not bounded(given, window_size, causal, room):
        return None
    try:
        if k is None and v is None:
            if not q.is_cpu:
                given["max_seqlen_q"] = max(q.shape[1], 1)
            return _call("fmha_fwd_splitkv", (q, k_cache, v_cache), given)
        if k is None or v is None or type(k) is not Tensor or type(v) is not Tensor:
            return None
        if k.requires_grad or v.requires_grad:
            return None
        return _call("fmha_fwd_appendkv", (q, k_cache, v_cache, k, v), given)
    except (ArgumentError, NoKernelError, TypeError):
        return None


@errors_as_upstream(k="k_cache", v="v_cache", knew="k", vnew="v", seqlen_k="cache_seqlens", window="window_size")
def _attended(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, rotary_cos: Tensor | None,
    rotary_sin: Tensor | None, cache_seqlens: int | Tensor | None, cache_batch_idx: Tensor | None,
    cache_leftpad: Tensor | None, block_table: Tensor | None, softmax_scale: float | None, causal: bool,
    window_size: Any, softcap: float, rotary_interleaved: bool, alibi_slopes: Tensor | None, num_splits: int,
    return_softmax_lse: bool,
) -> Any:  # fmt: skip
    _check_append(k, v, rotary_cos, rotary_sin, cache_seqlens)
    _check_rotary_dim(rotary_cos, q.shape[-1])
    headdim_v = v_cache.shape[-1]
    with torch.no_grad():
        wide_q, wide_k, wide_v = in_vectors(*last_dense(q), k_cache, v_cache)
        new = None if k is None or v is None else in_vectors(*last_dense(k, v))
        made = _attend(
            wide_q, wide_k, wide_v, new, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
            block_table, scale_of(softmax_scale, q, wide_q), causal, window_size, softcap, rotary_interleaved,
            alibi_slopes, num_splits, return_softmax_lse, wide_q is q,
        )  # fmt: skip
        if new is not None:
            for cache, wide in ((k_cache, wide_k), (v_cache, wide_v)):
                if wide is not cache:
                    cache.copy_(narrowed(wide, cache.shape[-1]))
    if headdim_v == wide_v.shape[-1]:
        return made
    return (narrowed(made[0], headdim_v), made[1]) if return_softmax_lse else narrowed(made, headdim_v)


def _attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, new: tuple[Tensor, ...] | None, rotary_cos: Tensor | None,
    rotary_sin: Tensor | None, cache_seqlens: int | Tensor | None, cache_batch_idx: Tensor | None,
    cache_leftpad: Tensor | None, block_table: Tensor | None, softmax_scale: float | None, causal: bool,
    window_size: Any, softcap: float, rotary_interleaved: bool, alibi_slopes: Tensor | None, num_splits: int,
    return_softmax_lse: bool, is_callers: bool,
) -> Any:  # fmt: skip
    """flash_attn_with_kvcache of headdims that kernels read. is_callers: q must not be written."""
    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    whole = new is None and block_table is None and type(cache_seqlens) is int and cache_seqlens == capacity
    lengths = None if whole else _lengths(cache_seqlens, q, None if block_table is None else capacity)
    places: dict[str, Any] = {"block_table": block_table, "cache_batch_idx": cache_batch_idx}
    masks: dict[str, Any] = mask(causal, window_size, capacity)
    scores: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "alibi_slopes": alibi_slopes,
        "cache_leftpad": cache_leftpad,
    }
    splits: dict[str, Any] = {"num_splits": num_splits, "return_lse": return_softmax_lse}
    most = longest(q.shape[1], capacity, q)
    if new is not None:
        k, v = new
        grown = _grown(most, rotary_cos, k.shape[1], q.shape[1] if causal or masks["window"] != (-1, -1) else 1)
        rotary: dict[str, Any] = {
            "rotary_cos": rotary_cos,
            "rotary_sin": rotary_sin,
            "rotary_interleaved": rotary_interleaved,
        }
        q = q.clone() if is_callers and rotary_cos is not None else q  # the append rotates it in place
        if not softcap:
            return calls.appendkv(
                q,
                k_cache,
                v_cache,
                k,
                v,
                seqlen_k=lengths,
                **rotary,
                **places,
                **masks,
                **scores,
                **splits,
                **grown,
            )
        rotated = q if rotary_cos is not None else None
        calls.appendkv(
            rotated, k_cache, v_cache, k, v, seqlen_k=lengths, **rotary, **places, **masks, **grown, attend=False
        )
        lengths = None if lengths is None else lengths + k.shape[1]
    if not softcap:
        return calls.splitkv(q, k_cache, v_cache, seqlen_k=lengths, **places, **masks, **scores, **splits, **most)
    return _soft_capped(
        q, k_cache, v_cache, lengths, places, {**masks, **scores, **most, "softcap": softcap}, return_softmax_lse
    )


def _grown(most: dict[str, int], rotary_cos: Tensor | None, seqlen_new: int, queries: int) -> dict[str, int]:
    """max_seqlen_k, all that an append takes of `most`: no sequence grows past it.

    Neither does one that the rotary tables have no positions for: the last query's, where there are more queries than
    new keys, lies behind the sequence.
    """
    if "max_seqlen_k" not in most:
        return {}
    room = most["max_seqlen_k"]
    if rotary_cos is not None and rotary_cos.shape[0] >= max(seqlen_new, queries):
        room = min(room, rotary_cos.shape[0] - max(seqlen_new, queries) + seqlen_new)
    return {"max_seqlen_k": room}


def _check_rotary_dim(cos: Tensor | None, headdim: int) -> None:
    if cos is not None and cos.ndim == 2 and 2 * cos.shape[1] > headdim:
        raise FaceArgumentError(
            f"rotary_cos: rotary_dim was 2 x {cos.shape[1]}, must be from 2 to {headdim // 2 * 2}, the headdim of q"
        )


def _lengths(cache_seqlens: int | Tensor | None, q: Tensor, capacity: int | None) -> Tensor | None:
    """int32 (batch), where q is; capacity is what None stands for."""
    given = capacity if cache_seqlens is None else cache_seqlens
    return torch.full(q.shape[:1], given, dtype=torch.int32, device=q.device) if isinstance(given, int) else given


def _check_append(
    k: Tensor | None, v: Tensor | None, cos: Tensor | None, sin: Tensor | None, cache_seqlens: int | Tensor | None
) -> None:
    if (k is None) != (v is None):
        absent, given = ("k", "v") if k is None else ("v", "k")
        raise FaceArgumentError(f"{absent}: was None, must be given with {given}: they are appended together")
    if (cos is None) != (sin is None):
        absent, given = ("rotary_cos", "rotary_sin") if cos is None else ("rotary_sin", "rotary_cos")
        raise FaceArgumentError(f"{absent}: was None, must be given with {given}")
    if cos is not None and k is None:
        raise FaceArgumentError(
            "rotary_cos: was given, must be absent without k and v: new keys and q are rotated together"
        )
    if k is not None and cache_seqlens is None:
        raise FaceArgumentError("cache_seqlens: was None, must be given with k and v: they land behind these keys")


def _soft_capped(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, places: dict[str, Tensor | None],
    arguments: dict[str, Any], return_lse: bool,
) -> Any:  # fmt: skip
    """As calls.splitkv, whose kernels have no soft cap: over the cache as it lies, over its pages, or over a copy."""
    table, rows, leftpad = places["block_table"], places["cache_batch_idx"], arguments.pop("cache_leftpad")
    if table is None and (rows is not None or leftpad is not None):  # a row of the cache is a page
        rows = torch.arange(q.shape[0], dtype=torch.int32, device=q.device) if rows is None else rows
        table, rows = rows[:, None], None
        lengths = _lengths(lengths, q, k.shape[1])
    if table is not None and k.shape[1] % PAGE_STEP == 0 and not return_lse:
        where = {"block_table": table, "cache_batch_idx": rows, "cache_leftpad": leftpad}
        return calls.pagedkv(q, k, v, seqlen_k=lengths, **where, **arguments)
    if table is not None:
        assert lengths is not None
        k, v, lengths = _copied(k, v, table if rows is None else table[rows], lengths, leftpad)
    out, lse, *_ = calls.forward(q, k, v, seqlen_k=lengths, **arguments, return_lse=return_lse)
    return (out, lse) if return_lse else out


PAGE_STEP = 16
"""`calls.pagedkv` takes pages of a multiple of this."""


def _copied(
    k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, leftpad: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The keys and values that a table names, (batch, capacity, nheads_k, headdim), and how many each sequence has."""
    page, room = k.shape[1], k.shape[1] * table.shape[1]
    if leftpad is None:
        leftpad = torch.zeros_like(lengths)
    used = lengths - leftpad
    token = torch.arange(room, device=lengths.device)[None] + leftpad[:, None]
    token = torch.minimum(token, (lengths[:, None] - 1).clamp(min=0))  # past the end: anything that is there
    if not torch.compiler.is_compiling():
        _check_pages(table, lengths, leftpad, page, k.shape[0])
    pages = table.long().gather(1, (token // page).clamp(max=table.shape[1] - 1)).clamp(0, k.shape[0] - 1)
    return k[pages, token % page], v[pages, token % page], used


def _check_pages(table: Tensor, lengths: Tensor, leftpad: Tensor, page: int, pages: int) -> None:
    blocks = table.shape[1]
    for b, (length, skipped) in enumerate(zip(lengths.tolist(), leftpad.tolist(), strict=True)):
        if length > blocks * page:
            raise FaceArgumentError(
                f"block_table: had {blocks} blocks of {page} keys a sequence, must have {-(-length // page)}: "
                f"sequence {b} is {length} keys long"
            )
        if not 0 <= skipped <= length:
            raise FaceArgumentError(
                f"cache_leftpad: entry {b} was {skipped}, must be from 0 to {length}, the keys of its sequence"
            )
        for i, entry in enumerate(table[b, : -(-length // page)].tolist()):
            if not 0 <= entry < pages:
                raise FaceArgumentError(
                    f"block_table: entry ({b}, {i}) was {entry}, must be from 0 to {pages - 1}: k has {pages} pages"
                )


def over_pages(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float | None, causal: bool, window_size: Any, softcap: float,
    alibi_slopes: Tensor | None, block_table: Tensor, seqused_k: Tensor | None = None, num_splits: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) of packed queries over pages of keys."""
    if dropout_p:
        raise FaceArgumentError(f"dropout_p: was {dropout_p}, must be 0 with block_table")
    lengths = cu_seqlens_k.diff() if seqused_k is None else seqused_k
    headdim_v = v.shape[-1]
    with torch.no_grad():
        dense, wide_k, wide_v = in_vectors(*last_dense(q), k, v)
        arguments = {
            "softmax_scale": scale_of(softmax_scale, q, dense),
            **mask(causal, window_size, max_seqlen_k, lambda: lengths),
            "alibi_slopes": alibi_slopes, "cu_seqlens_q": cu_seqlens_q, "seqlen_k": lengths,
            **longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q),
        }  # fmt: skip
        if not softcap:
            made = calls.splitkv(
                dense, wide_k, wide_v, block_table=block_table, num_splits=num_splits, return_lse=True, **arguments
            )
        else:
            keys, values, _ = _copied(wide_k, wide_v, block_table, lengths, None)
            starts = torch.arange(len(lengths) + 1, dtype=torch.int32, device=k.device) * keys.shape[1]
            made = calls.forward(
                dense, keys.flatten(0, 1), values.flatten(0, 1), seqstart_k=starts, softcap=softcap, **arguments
            )
        out, lse = narrowed(made[0], headdim_v), made[1]
    return without_backward(out, (q, k, v), PAGED), lse


PAGED = "block_table: was given, must be absent when gradients are wanted: pages have no backward"


def without_backward(out: Tensor, inputs: tuple[Tensor, ...], why: str) -> Tensor:
    """out, whose backward says why there is none when an input requires grad."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        made: Tensor = _ForwardOnly.apply(out, why, *inputs)
        return made
    return out


class _ForwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, why: str, *inputs: Tensor) -> Tensor:
        ctx.why = why
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        raise FaceArgumentError(ctx.why)
