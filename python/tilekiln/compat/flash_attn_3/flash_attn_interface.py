# SPDX-License-Identifier: MIT
"""The functions of FlashAttention 3's flash_attn_interface.

q (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k, headdim_v),
nheads a multiple of nheads_k; the varlen forms (total, nheads, headdim) with int32 cu_seqlens (batch + 1). fp16, bf16,
fp32 (not on a GPU), and e4m3, whose out is bf16. Masks are bottom-right aligned.

Common arguments:
softmax_scale: None is 1 / sqrt(headdim).
causal, window_size: row i sees keys [i + seqlen_k - seqlen_q - left, i + seqlen_k - seqlen_q + right]; a negative
    side is unbounded, causal means right = 0. A row that sees no key gives 0, its lse is -inf.
attention_chunk: a query at position p sees keys of positions p // attention_chunk x attention_chunk and on alone, up to
    the next multiple; 0 is off. The last query stands at the last key.
softcap: scores become softcap tanh(scores / softcap); 0 is off.
q_descale, k_descale, v_descale: fp32 (batch, nheads_k), by which fp8 q (with the head of its keys), k and v are
    multiplied; None is 1.
num_splits, pack_gqa, sm_margin, scheduler_metadata: change no result; num_splits is heard over caches alone.
qv: must be None.
deterministic: the backward gives the same bits every time.
return_attn_probs, return_softmax_lse: also give softmax_lse, fp32 (batch, nheads, seqlen_q), varlen (nheads, total_q).

Wrong arguments raise an error that is a ValueError and a RuntimeError, a problem without a kernel one that is a
LookupError and a RuntimeError.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...torch import calls
from .. import _absent
from .._modules import FaceArgumentError, errors_as_upstream
from ..flash_attn._arguments import UNBOUNDED, in_vectors, last_dense, narrowed, packed_at, plainly, scale_of
from ..flash_attn._combine import combined
from ..flash_attn._kvcache import _check_append, _check_rotary_dim, quickly
from ..flash_attn._packed import apart
from ..flash_attn._packed import forward as forward_packed
from ..flash_attn._sequences import attend, chosen_splits, chunked, packed_lengths, starts_of
from ..flash_attn.flash_attn_interface import maybe_contiguous, round_multiple
from . import _cache
from ._options import (
    Descales,
    blocks_of,
    check_chunk,
    check_hints,
    check_metadata,
    scales,
    window_of,
)

__all__ = [
    "FlashAttnFunc",
    "FlashAttnQKVPackedFunc",
    "FlashAttnVarlenFunc",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
    "maybe_contiguous",
    "round_multiple",
    "round_up_headdim",
]

__getattr__ = _absent.sentences(__name__)
HEAD_DIMS = (64, 96, 128, 192, 256)


def round_up_headdim(head_size: int) -> int:
    """The head dim of the kernel that upstream would take: the next of 64, 96, 128, 192 and 256, which is the
    largest.
    """
    return next((one for one in HEAD_DIMS if head_size <= one), HEAD_DIMS[-1])


def _batched(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None, causal: bool, descales: Descales, window_size: Any,
    attention_chunk: int, softcap: float, deterministic: bool, return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    window = window_of(window_size)
    more: dict[str, Any] = {"deterministic": deterministic, "return_lse": return_lse}
    if not attention_chunk:
        if q.dtype is torch.float8_e4m3fn or descales != (None, None, None):
            blocks = blocks_of(q.shape[1]), blocks_of(k.shape[1])
            more["scales"] = scales(q, k, q.shape[0], descales, *blocks)
        return attend(q, k, v, {}, softmax_scale, causal, window, softcap, **more)
    out, lse = _packed(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), starts_of(q), starts_of(k), None, None, q.shape[1],
        k.shape[1], softmax_scale, causal, descales, window_size, attention_chunk, softcap, deterministic, return_lse,
    )  # fmt: skip
    out = out.unflatten(0, q.shape[:2])
    return out, None if lse is None else lse.unflatten(1, q.shape[:2]).transpose(0, 1).contiguous()


def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seqused_q: Tensor | None,
    seqused_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None, causal: bool,
    descales: Descales, window_size: Any, attention_chunk: int, softcap: float, deterministic: bool, return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    more: dict[str, Any] = {"deterministic": deterministic, "return_lse": return_lse}
    starts = cu_seqlens_q, cu_seqlens_k
    if q.dtype is torch.float8_e4m3fn or descales != (None, None, None):
        blocks = [blocks_of(one.diff().long()) for one in starts]
        made = scales(q, k, len(cu_seqlens_q) - 1, descales, *blocks)
        if attention_chunk and "block_scale_seqstart_q" in made:
            raise FaceArgumentError(
                "attention_chunk: was given with a descale of several numbers, must be 0: give scales of one number"
            )
        more["scales"] = made
    if attention_chunk:
        lengths = [
            start.diff() if used is None else used for start, used in zip(starts, (seqused_q, seqused_k), strict=True)
        ]
        most = (
            int(lengths[1].max()) if lengths[1].is_cpu and lengths[1].numel() and calls.untouched(lengths[1])
            else int(max_seqlen_k)
        )  # fmt: skip
        sequences = chunked(attention_chunk, starts[0], lengths[0], starts[1], lengths[1], max_seqlen_q, most)
    else:
        sequences = packed_lengths(*starts, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k)
    return attend(q, k, v, sequences, softmax_scale, causal, window_of(window_size), softcap, **more)


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _attended(
    q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None, q_descale: Tensor | None, k_descale: Tensor | None,
    v_descale: Tensor | None, softmax_scale: float | None, causal: bool, hints: tuple[int, bool | None, int],
    *given: Any,
) -> Any:  # fmt: skip
    """hints: num_splits, pack_gqa, sm_margin; given: as `_batched` takes them behind its descales."""
    check_hints(*hints, qv)
    check_chunk(given[1])
    out, lse = _batched(q, k, v, softmax_scale, causal, (q_descale, k_descale, v_descale), *given)
    return (out, lse) if given[-1] else out


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, qv: Tensor | None = None,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    window_size: Any = UNBOUNDED, attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
    pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of q over k and v; arguments as the module says. Differentiable in q, k and v.

    Returns out (batch, seqlen_q, nheads, headdim_v), or (out, softmax_lse) with return_attn_probs.
    """
    if (
        num_splits == 1 and qv is q_descale is k_descale is v_descale is None and pack_gqa is None
        and window_size is not None and not (attention_chunk or sm_margin)
    ):  # fmt: skip
        given = {} if window_size is UNBOUNDED else {"window": window_size}
        made = plainly(q, k, v, softmax_scale, causal, UNBOUNDED, softcap, None, return_attn_probs, given)
        if made is not None:
            return made
    return _attended(
        q, k, v, qv, q_descale, k_descale, v_descale, softmax_scale, causal, (num_splits, pack_gqa, sm_margin),
        window_size, attention_chunk, softcap, deterministic, return_attn_probs,
    )  # fmt: skip


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _attended_packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, qv: Tensor | None,
    hints: tuple[int, bool | None, int], attention_chunk: int, *given: Any,
) -> Any:  # fmt: skip
    """hints: num_splits, pack_gqa, sm_margin; given: further arguments of `_packed`."""
    check_hints(*hints, qv)
    check_chunk(attention_chunk)
    out, lse = _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, *given)
    return (out, lse) if given[-1] else out


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Tensor | None = None, seqused_k: Tensor | None = None, softmax_scale: float | None = None,
    causal: bool = False, qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, window_size: Any = UNBOUNDED, attention_chunk: int = 0, softcap: float = 0.0,
    num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention over sequences packed one after another. Differentiable in q, k and v.

    q (total_q, nheads, headdim), k (total_k, nheads_k, headdim), v alike. cu_seqlens_q, cu_seqlens_k: int32 (batch +
    1), cumulative lengths. seqused_q, seqused_k: int32 (batch), how much of each sequence is in use, from its start.
    What is not in use is 0 in out. max_seqlen_q, max_seqlen_k: no sequence is longer; on a device the lengths stay
    there. Returns out (total_q, nheads, headdim_v), or (out, softmax_lse) with return_attn_probs.
    """
    if (
        num_splits == 1 and qv is q_descale is k_descale is v_descale is seqused_q is seqused_k is None
        and pack_gqa is None and type(cu_seqlens_q) is type(cu_seqlens_k) is Tensor
        and window_size is not None and not (attention_chunk or sm_margin)
    ):  # fmt: skip
        lengths = packed_at(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        if window_size is not UNBOUNDED:
            lengths["window"] = window_size
        made = plainly(q, k, v, softmax_scale, causal, UNBOUNDED, softcap, None, return_attn_probs, lengths, 3)
        if made is not None:
            return made
    return _attended_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, qv, (num_splits, pack_gqa, sm_margin), attention_chunk, seqused_q,
        seqused_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, (q_descale, k_descale, v_descale), window_size,
        attention_chunk, softcap, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor, softmax_scale: float | None = None, causal: bool = False, q_descale: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None, window_size: Any = UNBOUNDED,
    attention_chunk: int = 0, softcap: float = 0.0, deterministic: bool = False, num_heads_q: int | None = None,
    sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_func with q, k and v in one tensor, whose gradient is one tensor too.

    qkv (batch, seqlen, 3, nheads, headdim), or with num_heads_q (batch, seqlen, num_heads_q + 2 nheads_k, headdim).
    """
    plain = q_descale is k_descale is v_descale is None and not (attention_chunk or sm_margin)
    if plain and window_size is not None and apart(qkv, 5, 3):
        q, k, v = qkv.unbind(2)
        given = {} if window_size is UNBOUNDED else {"window": window_size}
        made = plainly(q, k, v, softmax_scale, causal, UNBOUNDED, softcap, None, return_attn_probs, given)
        if made is not None:
            return made
    return _attended_qkv(
        qkv, softmax_scale, causal, (q_descale, k_descale, v_descale), window_size, attention_chunk, softcap,
        deterministic, num_heads_q, sm_margin, return_attn_probs,
    )  # fmt: skip


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _attended_qkv(
    qkv: Tensor, softmax_scale: float | None, causal: bool, descales: Descales, window_size: Any, attention_chunk: int,
    softcap: float, deterministic: bool, num_heads_q: int | None, sm_margin: int, return_attn_probs: bool,
) -> Any:  # fmt: skip
    """flash_attn_qkvpacked_func, the longer way."""
    check_hints(1, None, sm_margin, None)
    check_chunk(attention_chunk)
    plain = not attention_chunk and descales == (None, None, None) and qkv.dtype is not torch.float8_e4m3fn
    if qkv.dim() == 5 and qkv.shape[2] == 3 and plain:
        [wide] = in_vectors(*last_dense(qkv))
        arguments = {
            "softmax_scale": scale_of(softmax_scale, qkv, wide), "causal": bool(causal),
            "window": window_of(window_size), "softcap": softcap,
        }  # fmt: skip
        out, lse, _, _ = forward_packed((wide,), arguments, deterministic, return_attn_probs, False)
        out = narrowed(out, qkv.shape[-1])
    else:
        q, k, v = _split(qkv, num_heads_q)
        more = window_size, attention_chunk, softcap, deterministic, return_attn_probs
        out, lse = _batched(q, k, v, softmax_scale, causal, descales, *more)
    return (out, lse) if return_attn_probs else out


def _split(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, Tensor, Tensor]:
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        q, k, v = qkv.unbind(2)
        return q, k, v
    if qkv.dim() != 4:
        raise FaceArgumentError(
            f"qkv: shape was {tuple(qkv.shape)}, must be (batch, seqlen, 3, nheads, headdim), or (batch, seqlen, "
            "num_heads_q + 2 nheads_k, headdim)"
        )
    if num_heads_q is None or num_heads_q < 1 or (qkv.shape[2] - num_heads_q) % 2 or qkv.shape[2] <= num_heads_q:
        raise FaceArgumentError(
            f"num_heads_q: was {num_heads_q}, must be given with qkv of 4 dimensions: {qkv.shape[2]} heads are "
            "num_heads_q of queries, and as many of keys as of values"
        )
    nheads_k = (qkv.shape[2] - num_heads_q) // 2
    q, k, v = qkv.split([num_heads_q, nheads_k, nheads_k], 2)
    return q, k, v


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse) of attention over all keys from those over parts of them, computed in fp32 by PyTorch.

    out_partial: (num_splits, batch, seqlen, nheads, headdim), lse_partial: fp32 (num_splits, batch, seqlen, nheads),
    -inf where a part sees no key. out (batch, seqlen, nheads, headdim): where to write, of out_dtype; None is the dtype
    of out_partial. softmax_lse: fp32 (batch, seqlen, nheads).
    """
    if out_partial.ndim != 5:
        raise FaceArgumentError(
            f"out_partial: had {out_partial.ndim} dimensions, must have 5: (num_splits, batch, seqlen, nheads, headdim)"
        )
    return combined(out_partial, lse_partial, out, out_dtype)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    qv: Tensor | None = None, rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None, page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | None = None, rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Any = UNBOUNDED, attention_chunk: int = 0,
    softcap: float = 0.0, rotary_interleaved: bool = True, scheduler_metadata: Tensor | None = None,
    num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention of q over a KV cache, to which k and v are appended first. No autograd.

    q (batch, seqlen_q, nheads, headdim), or with cu_seqlens_q, int32 (batch + 1), packed (total_q, nheads, headdim);
    max_seqlen_q: no sequence of these has more queries. k_cache, v_cache (batch_cache, seqlen_cache, nheads_k,
    headdim), or with page_table, int32 (batch, max_pages), pages (pages, page, nheads_k, headdim).
    k, v (batch, seqlen_new, nheads_k, headdim), or with cu_seqlens_k_new, int32 (batch + 1), packed: written to the
    cache at cache_seqlens, in place. cache_seqlens: an int, or int32 (batch): the keys in the cache before the append;
    None without k: all there is room for. cache_batch_idx: int32 (batch): the row of the cache of each sequence.
    cache_leftpad: int32 (batch): the first key of each sequence that is attended to.
    rotary_cos, rotary_sin (positions, rotary_dim / 2), with k and v: new key t is rotated for position cache_seqlens
    + t, so is query t if causal or window_size is given, else every query for cache_seqlens; rotary_seqlens, int32
    (batch), is in place of cache_seqlens there. rotary_interleaved: pairs (2i, 2i + 1), else (i, i + rotary_dim / 2).
    attention_chunk: over one query a sequence. fp8 caches: pages, or rows, of a power of two of keys, and descales of
    one number each. num_splits: parts the keys are cut into, 1 to 128; 0 chooses. The others as the module says.
    Returns out, shape of q, or (out, softmax_lse, out_accum, softmax_lse_accum) with return_softmax_lse; the last two
    are empty: parts of keys are put together inside.
    """
    plain = qv is rotary_cos is rotary_sin is cu_seqlens_q is cu_seqlens_k_new is rotary_seqlens is None
    if (
        plain and q_descale is k_descale is v_descale is scheduler_metadata is None and pack_gqa is None
        and type(window_size) is tuple and window_size == UNBOUNDED and not (attention_chunk or softcap or sm_margin)
    ):  # fmt: skip
        made = quickly(
            q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, cache_leftpad, page_table, softmax_scale,
            causal, UNBOUNDED, None, num_splits, return_softmax_lse,
        )  # fmt: skip
        if made is not None:
            return _with_parts(*made) if return_softmax_lse else made
    return _attended_cache(
        q, k_cache, v_cache, k, v, qv, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
        page_table, cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q, rotary_seqlens, q_descale, k_descale, v_descale,
        softmax_scale, causal, window_size, attention_chunk, softcap, rotary_interleaved, scheduler_metadata,
        num_splits, (pack_gqa, sm_margin), return_softmax_lse,
    )  # fmt: skip


def _with_parts(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of return_softmax_lse, whose last two are of parts of keys."""
    empty = out.new_empty(0, dtype=torch.float32)
    return out, lse, empty, empty


@errors_as_upstream(
    k="k_cache", v="v_cache", knew="k", vnew="v", seqlen_k="cache_seqlens", window="window_size",
    block_table="page_table", seqstart_k="cache_leftpad",
)  # fmt: skip
def _attended_cache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, qv: Tensor | None,
    rotary_cos: Tensor | None, rotary_sin: Tensor | None, cache_seqlens: int | Tensor | None,
    cache_batch_idx: Tensor | None, cache_leftpad: Tensor | None, page_table: Tensor | None,
    cu_seqlens_q: Tensor | None, cu_seqlens_k_new: Tensor | None, max_seqlen_q: int | None,
    rotary_seqlens: Tensor | None, q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None,
    softmax_scale: float | None, causal: bool, window_size: Any, attention_chunk: int, softcap: float,
    rotary_interleaved: bool, scheduler_metadata: Tensor | None, num_splits: int, hints: tuple[bool | None, int],
    return_softmax_lse: bool,
) -> Any:  # fmt: skip
    """flash_attn_with_kvcache; hints: pack_gqa and sm_margin."""
    check_hints(num_splits, *hints, qv)
    check_chunk(attention_chunk)
    check_metadata(scheduler_metadata)
    window = window_of(window_size)
    _check_append(k, v, rotary_cos, rotary_sin, cache_seqlens)
    _check_rotary_dim(rotary_cos, q.shape[-1])
    if cu_seqlens_k_new is not None and k is None:
        raise FaceArgumentError("cu_seqlens_k_new: was given, must be None without k and v")
    if rotary_seqlens is not None and rotary_cos is None:
        raise FaceArgumentError("rotary_seqlens: was given, must be None without rotary_cos and rotary_sin")
    capacity = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
    special = any(one is not None for one in (cu_seqlens_q, cu_seqlens_k_new, rotary_seqlens)) or (
        attention_chunk or q.dtype is torch.float8_e4m3fn or max(window) >= capacity
    )
    lse: Tensor | None
    if not special:
        if (q_descale, k_descale, v_descale) != (None, None, None):
            scales(q, k_cache, q.shape[0], (q_descale, k_descale, v_descale), 1, 1)
        out, lse = _cache.dense(
            q, k_cache, v_cache, k, v, (rotary_cos, rotary_sin, rotary_interleaved), cache_seqlens, cache_batch_idx,
            cache_leftpad, page_table, softmax_scale, causal, window, softcap, num_splits,
        )  # fmt: skip
    else:
        batch = q.shape[0] if cu_seqlens_q is None else len(cu_seqlens_q) - 1
        lengths = cache_seqlens
        if not isinstance(lengths, Tensor):
            number = capacity if lengths is None else int(lengths)
            lengths = torch.full((batch,), number, dtype=torch.int32, device=q.device)
        rotary = None
        if rotary_cos is not None and rotary_sin is not None:
            offsets = lengths if rotary_seqlens is None else rotary_seqlens
            rotary = _cache.Rotary(rotary_cos, rotary_sin, rotary_interleaved, offsets)
        with torch.no_grad():
            out, lse = _cache.attention(
                q, k_cache, v_cache, k, v, rotary, lengths, cache_batch_idx, cache_leftpad, page_table, cu_seqlens_q,
                cu_seqlens_k_new, max_seqlen_q, (q_descale, k_descale, v_descale), softmax_scale, causal, window,
                attention_chunk, softcap, num_splits, return_softmax_lse,
            )  # fmt: skip
    return _with_parts(out, lse) if return_softmax_lse and lse is not None else out


@errors_as_upstream(seqlen_k="cache_seqlens", window="window_size")
def get_scheduler_metadata(
    batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int, headdim: int,
    cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16, headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_k_new: Tensor | None = None, cache_leftpad: Tensor | None = None,
    page_size: int | None = None, max_seqlen_k_new: int = 0, causal: bool = False, window_size: Any = UNBOUNDED,
    attention_chunk: int = 0, has_softcap: bool = False, num_splits: int = 0, pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:  # fmt: skip
    """int32 (1), on the device of cache_seqlens: the parts into which flash_attn_with_kvcache cuts the keys of a
    sequence.

    That function chooses the same when it is called, so its results are the same with this and without.
    """
    check_hints(num_splits, pack_gqa, sm_margin, None)
    check_chunk(attention_chunk)
    window_of(window_size)
    if has_softcap:  # its kernels cut no keys
        return torch.ones(1, dtype=torch.int32, device=cache_seqlens.device)
    where: dict[str, Any] = {"dtype": qkv_dtype, "device": cache_seqlens.device}
    shapes = (
        (batch_size, max_seqlen_q, num_heads_q, headdim),
        (batch_size, max_seqlen_k + max_seqlen_k_new, num_heads_kv, headdim),
    )
    chosen = chosen_splits(*shapes, headdim_v or headdim, where, num_splits)
    return torch.full((1,), chosen, dtype=torch.int32, device=cache_seqlens.device)


class FlashAttnFunc:
    """flash_attn_func for callers of upstream's autograd function: `FlashAttnFunc.apply`, with the same arguments."""

    apply = staticmethod(flash_attn_func)


class FlashAttnQKVPackedFunc:
    """flash_attn_qkvpacked_func for callers of upstream's autograd function."""

    apply = staticmethod(flash_attn_qkvpacked_func)


class FlashAttnVarlenFunc:
    """flash_attn_varlen_func for callers of upstream's autograd function, which has the lengths in another order."""

    @staticmethod
    def apply(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seqused_q: Tensor | None,
        seqused_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, *options: Any,
    ) -> Any:  # fmt: skip
        """options: what flash_attn_varlen_func has from softmax_scale on, in its order."""
        lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k
        return flash_attn_varlen_func(q, k, v, *lengths, *options)
