# SPDX-License-Identifier: MIT
"""Attention of few queries over aiter's caches, by fmha_fwd_splitkv and fmha_batch_prefill."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ...torch import calls

FP8 = torch.float8_e4m3fn
FORMATS = {"fp8": FP8, "fp8_e4m3": FP8, "fp8_e5m2": torch.float8_e5m2}
"""Values of kv_cache_dtype, and what a byte of such a cache is."""


def table_of(indptr: Tensor, indices: Tensor, last: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(block_table (batch, pages), seqlen_k (batch)), int32, of lists of pages with the keys in the last of each."""
    counts = indptr.diff()
    longest = int(counts.max()) if counts.numel() else 0
    table = torch.zeros(counts.numel(), max(longest, 1), dtype=torch.int32, device=indices.device)
    column = torch.arange(table.shape[1], device=indices.device)
    here = column < counts[:, None]
    table[here] = indices[: int(indptr[-1])].int()
    return table, ((counts - 1) * size + last).where(counts > 0, 0).int()


def typed(cache: Tensor, kind: str = "fp8") -> Tensor:
    """A cache of uint8 by what kv_cache_dtype says of its bytes; others as they are."""
    return cache.view(FORMATS[kind]) if cache.dtype == torch.uint8 and kind in FORMATS else cache


def _numbers(cache: Tensor, dtype: torch.dtype, scale: Any) -> Tensor:
    """A cache, or a part of it, in the dtype of q: fp8 and int8 times their scale."""
    cache = typed(cache)
    if cache.dtype == dtype and scale is None:
        return cache
    return (cache.float() if scale is None else cache.float() * scale).to(dtype)


def split(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, out: Tensor | None, **others: Any) -> Tensor:
    """out (sequences, heads, headdim): a query a sequence over pages k, v (pages, size, heads, headdim)."""
    given = {name: value for name, value in others.items() if value is not None}
    if out is not None:
        given["out"] = out[:, None]
    table, lengths = table.int().contiguous(), lengths.int()
    made: Tensor = calls.splitkv(q[:, None], k, v, block_table=table, seqlen_k=lengths, **given)
    return made[:, 0]


def gathered(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, table: Tensor, lengths: Tensor, scales: tuple[Any, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """(k, v, table): the pages that sequences have of vectorized caches, as (pages, size, heads, headdim) in q's dtype.

    scales: of keys and values: none, of one element, or (blocks, heads, size).
    """
    size = key_cache.shape[3]
    column = torch.arange(table.shape[1], device=table.device)
    pages = table.where(column < ((lengths + size - 1) // size)[:, None], 0).reshape(-1).long()
    k, v = key_cache[pages], value_cache[pages]  # (pages, heads, headdim / x, size, x)
    k = k.permute(0, 3, 1, 2, 4).flatten(3)
    v = v.permute(0, 3, 1, 2) if v.dim() == 4 else v.permute(0, 2, 4, 1, 3).flatten(1, 2)
    made = []
    for part, scale in ((k, scales[0]), (v, scales[1])):
        factor = scale
        if isinstance(scale, Tensor) and scale.numel() != 1:
            factor = scale[pages].transpose(1, 2)[..., None]
        made.append(_numbers(part, q.dtype, factor).contiguous())
    places = torch.arange(pages.numel(), dtype=torch.int32, device=pages.device).view(table.shape)
    return made[0], made[1], places


def vectorized(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, table: Tensor, lengths: Tensor, scale: float | None,
    out: Tensor | None, scales: tuple[Any, Any] = (None, None), alibi: Tensor | None = None,
    starts: Tensor | None = None, longest: int = 1,
) -> Tensor:  # fmt: skip
    """out like q (total, heads, headdim) over key_cache (blocks, heads, headdim / x, size, x) and its value_cache.

    A value_cache (blocks, heads, size / x, headdim, x) under 16 bits is read where it lies; of others the pages that
    sequences have are copied. starts (sequences + 1): the first query of each, causal; else a query a sequence.
    """
    if q.dim() != 3 or key_cache.dim() != 5 or value_cache.dim() not in (4, 5):
        raise ArgumentError(
            f"query: was of shape {tuple(q.shape)} over caches {tuple(key_cache.shape)}, {tuple(value_cache.shape)}, "
            "must be (tokens, heads, headdim) over (blocks, heads, headdim / x, block_size, x) and 4 or 5 dimensions"
        )
    direct = value_cache.dim() == 5 and key_cache.dtype == q.dtype and q.dtype != torch.float32
    if starts is None and not (direct and scales == (None, None)):
        k, v, places = gathered(q, key_cache, value_cache, table, lengths, scales)
        return split(q, k, v, places, lengths, out, softmax_scale=scale, alibi_slopes=alibi)
    if not direct:
        raise ArgumentError(
            "qo_indptr: was given, must be absent over caches that are not 5-D of the dtype of the queries: call "
            "flash_attn_varlen_func with block_table"
        )
    given: dict[str, Any] = {"causal": True, "max_seqlen_q": longest}
    if starts is None:
        starts = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
        given = {}
    for name, value in (("softmax_scale", scale), ("out", out), ("alibi_slopes", alibi)):
        if value is not None:
            given[name] = value
    if q.is_cuda:
        given |= {"max_seqlen_q": longest, "max_seqlen_k": table.shape[1] * key_cache.shape[3]}
    else:
        given.pop("max_seqlen_q", None)
    made: Tensor = calls.batch_prefill(
        q, key_cache, value_cache, cu_seqlens_q=starts.int(), block_table=table.int().contiguous(),
        seqlen_k=lengths.int(), **given,
    )  # fmt: skip
    return made
