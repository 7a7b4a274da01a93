# SPDX-License-Identifier: MIT
"""aiter.ops.attention: a query a sequence over a cache of blocks.

query, out (sequences, heads, headdim), fp32, fp16 or bf16; block_tables (sequences, blocks), context_lens (sequences).
Caches as `ops.cache` writes them; a 5-D value cache of 16 bits is read where it lies, of others the blocks that
sequences have are copied in each call. Workspaces (exp_sums, max_logits, tmp_out, workspace_buffer), partition_size,
block_tables_stride0, high_precision, kernelName and limits of lengths change nothing. No result has a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...._core.native import ArgumentError
from ... import _absent
from ..._modules import errors_as_upstream
from .._paged import split, table_of, typed, vectorized
from .._rows import off
from .._shapes import gen_pa_fwd_asm, gen_pa_fwd_native_fake, gen_pa_ps_fwd_asm

__all__ = [
    "gen_pa_fwd_asm",
    "gen_pa_fwd_native_fake",
    "gen_pa_ps_fwd_asm",
    "pa_fwd_asm",
    "pa_fwd_naive",
    "paged_attention_common",
    "paged_attention_ragged",
    "paged_attention_rocm",
    "paged_attention_v1",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(
    q="query", k="key_cache", v="value_cache", seqlen_k="context_lens", block_table="block_tables",
    softmax_scale="scale", softcap="logits_soft_cap",
)  # fmt: skip
_asm = errors_as_upstream(
    q="Q",
    k="K",
    v="V",
    query="Q",
    seqlen_k="context_lens",
    block_table="block_tables",
    out="out_",
    cu_seqlens_q="qo_indptr",
)
_PLAIN = "divide the result by it"


def _one(query: Tensor, mtp: int) -> None:
    if mtp != 1:
        raise ArgumentError(f"mtp: was {mtp}, must be 1: several queries a sequence go to pa_fwd_asm with qo_indptr")


@_named
def pa_fwd_naive(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
    k_dequant_scales: Tensor, v_dequant_scales: Tensor, max_seq_len: int, num_kv_heads: int, scale_s: float,
    scale_k: float, scale_v: float, block_size: int, quant_algo: int, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of scores scale_s q k; quant_algo 0: as the cache is, 2: times k_dequant_scales (heads, slots)."""
    if quant_algo not in (0, 2):
        raise ArgumentError(f"quant_algo: was {quant_algo}, must be 0 (none) or 2 (scales of tokens and heads)")
    scales: tuple[Any, Any] = (None, None)
    if quant_algo == 2:
        shape = (num_kv_heads, key_cache.shape[0], key_cache.shape[3])
        scales = tuple(s.view(shape).transpose(0, 1) for s in (k_dequant_scales, v_dequant_scales))  # type: ignore[assignment]
    return vectorized(query, key_cache, value_cache, block_tables, context_lens, scale_s, out, scales)


@_asm
def pa_fwd_asm(
    Q: Tensor, K: Tensor, V: Tensor, block_tables: Tensor, context_lens: Tensor, block_tables_stride0: int,
    max_qlen: int = 1, K_QScale: Tensor | None = None, V_QScale: Tensor | None = None, out_: Tensor | None = None,
    qo_indptr: Tensor | None = None, high_precision: int | None = 1, kernelName: str | None = None,
) -> Tensor:  # fmt: skip
    """Attention of scores q k / sqrt(headdim) over K and V of the asm layout; K_QScale (blocks, heads, block_size).

    qo_indptr (sequences + 1): the first query of each sequence, max_qlen of them at most, causal.
    """
    scales = K_QScale, V_QScale
    return vectorized(Q, K, V, block_tables, context_lens, None, out_, scales, None, qo_indptr, max_qlen)


@_named
def paged_attention_rocm(
    out: Tensor, exp_sums: Tensor, max_logits: Tensor, tmp_out: Tensor, query: Tensor, key_cache: Tensor,
    value_cache: Tensor, num_kv_heads: int, scale: float, block_tables: Tensor, context_lens: Tensor, block_size: int,
    max_context_len: int, alibi_slopes: Tensor | None, kv_cache_dtype: str, k_scale: Tensor | None,
    v_scale: Tensor | None, fp8_out_scale: Tensor | None = None, partition_size: int = 256, mtp: int = 1,
    q_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """out: attention; kv_cache_dtype "fp8", "fp8_e5m2": the cache times k_scale and v_scale, fp32 of one element."""
    off("fp8_out_scale", fp8_out_scale, _PLAIN)
    off("q_scale", q_scale, "queries are 16 or 32 bits")
    _one(query, mtp)
    scales = (None, None) if kv_cache_dtype == "auto" else (k_scale, v_scale)
    key_cache, value_cache = typed(key_cache, kv_cache_dtype), typed(value_cache, kv_cache_dtype)
    vectorized(query, key_cache, value_cache, block_tables, context_lens, scale, out, scales, alibi_slopes)


@_asm
def paged_attention_common(
    Q: Tensor, K: Tensor, V: Tensor, exp_sums: Tensor, max_logits: Tensor, tmp_out: Tensor, block_tables: Tensor,
    context_lens: Tensor, block_tables_stride0: int, scale: float, max_qlen: int = 1, max_seq_len: int = 1,
    K_QScale_hip: Tensor | None = None, V_QScale_hip: Tensor | None = None, K_QScale_asm: Tensor | None = None,
    V_QScale_asm: Tensor | None = None, out_: Tensor | None = None, qo_indptr: Tensor | None = None,
    high_precision: int | None = 1, kernelName: str | None = None, kv_cache_dtype: str = "auto",
    kv_cache_tensor_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Attention of scores scale q k; scales of the cache of one element (hip), or (blocks, heads, block_size) (asm)."""
    scales = (K_QScale_hip, V_QScale_hip) if K_QScale_asm is None else (K_QScale_asm, V_QScale_asm)
    if K.dtype == Q.dtype:
        scales = None, None
    return vectorized(Q, K, V, block_tables, context_lens, scale, out_, scales, None, qo_indptr, max_qlen)


def _in_blocks(cache: Tensor, layout: str, kind: str, scale: Tensor | None, query: Tensor) -> Tensor:
    """A 4-D cache as (blocks, block_size, heads, headdim) in the dtype of the query."""
    if layout not in ("NHD", "HND"):
        raise ArgumentError(f"kv_cache_layout: was {layout!r}, must be 'NHD' or 'HND'")
    if cache.dim() != 4:
        raise ArgumentError(
            f"key_cache: was of shape {tuple(cache.shape)}, must have 4 dimensions, as kv_cache_layout says"
        )
    here = cache if layout == "NHD" else cache.transpose(1, 2)
    if kind == "auto":
        return here
    made = typed(here, kind).float()
    return (made if scale is None else made * scale).to(query.dtype)


@_named
def paged_attention_v1(
    out: Tensor, workspace_buffer: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float,
    block_tables: Tensor, cu_query_lens: Tensor | None, context_lens: Tensor, max_context_len: int,
    alibi_slopes: Tensor | None, kv_cache_dtype: str, kv_cache_layout: str, logits_soft_cap: float, k_scale: Tensor,
    v_scale: Tensor, fp8_out_scale: Tensor | None = None, partition_size: int = 256, mtp: int = 1,
    sliding_window: int = 0,
) -> None:  # fmt: skip
    """out: attention over caches (blocks, block_size, heads, headdim) ("NHD") or (blocks, heads, block_size, headdim).

    sliding_window above 0: the last so many keys alone. fp8 caches are copied whole in each call, times their scale.
    """
    off("fp8_out_scale", fp8_out_scale, _PLAIN)
    _one(query, mtp)
    k, v = (
        _in_blocks(cache, kv_cache_layout, kv_cache_dtype, factor, query)
        for cache, factor in ((key_cache, k_scale), (value_cache, v_scale))
    )
    split(
        query, k, v, block_tables, context_lens, out, softmax_scale=scale, alibi_slopes=alibi_slopes,
        softcap=logits_soft_cap or None, window=(sliding_window - 1, 0) if sliding_window > 0 else None,
    )  # fmt: skip


@_named
def paged_attention_ragged(
    out: Tensor, workspace_buffer: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float,
    kv_indptr: Tensor, kv_page_indices: Tensor, kv_last_page_lens: Tensor, block_size: int, max_num_partitions: int,
    alibi_slopes: Tensor | None, kv_cache_dtype: str, kv_cache_layout: str, logits_soft_cap: float, k_scale: Tensor,
    v_scale: Tensor, fp8_out_scale: Tensor | None = None, partition_size: int = 256, mtp: int = 1,
) -> None:  # fmt: skip
    """`paged_attention_v1` of pages kv_page_indices[kv_indptr[i] to kv_indptr[i + 1] - 1]."""
    off("fp8_out_scale", fp8_out_scale, _PLAIN)
    _one(query, mtp)
    k, v = (
        _in_blocks(cache, kv_cache_layout, kv_cache_dtype, factor, query)
        for cache, factor in ((key_cache, k_scale), (value_cache, v_scale))
    )
    table, lengths = table_of(kv_indptr, kv_page_indices, kv_last_page_lens, k.shape[1])
    split(
        query, k, v, table, lengths, out, softmax_scale=scale, alibi_slopes=alibi_slopes,
        softcap=logits_soft_cap or None,
    )  # fmt: skip
