# SPDX-License-Identifier: MIT
"""flash_attn.utils.testing: random padding, packed arguments and a plain attention, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._modules import FaceArgumentError
from ..bert_padding import pad_input, unpad_input

__all__ = [
    "attention_ref",
    "construct_chunk_mask",
    "construct_local_mask",
    "generate_qkv",
    "generate_random_padding_mask",
]

_FAR = 2**32
"""A position beyond every key."""


def generate_random_padding_mask(
    max_seqlen: int, batch_size: int, device: Any, mode: str = "random", zero_lengths: bool = False
) -> Tensor:
    """bool (batch_size, max_seqlen), True: a token; mode "full", "random": up to 20 fewer, "third": from a third on.

    zero_lengths: every fifth sequence and the last one have none.
    """
    least = {"full": max_seqlen, "random": max(0 if zero_lengths else 1, max_seqlen - 20), "third": max_seqlen // 3}
    if mode not in least:
        raise FaceArgumentError(f"mode: was {mode!r}, must be one of {', '.join(least)}")
    lengths = torch.randint(least[mode], max_seqlen + 1, (batch_size, 1), device=device)
    if zero_lengths:
        lengths[::5] = 0
        lengths[-1] = 0
    return torch.arange(max_seqlen, device=device) < lengths


def _packed(x: Tensor, mask: Tensor | None, unused: Tensor | None) -> tuple[Any, ...]:
    """(rows, cu_seqlens, seqused, max_seqlen, the function that pads rows)."""
    batch, seqlen = x.shape[:2]
    if mask is None:
        starts = torch.arange(0, (batch + 1) * seqlen, seqlen or 1, dtype=torch.int32, device=x.device)[: batch + 1]
        return x.flatten(0, 1), starts, None, seqlen, lambda rows: rows.unflatten(0, (batch, seqlen))
    rows, indices, starts, longest, used = unpad_input(x, mask, unused)
    return rows, starts, used, longest, lambda rows: pad_input(rows, indices, batch, seqlen)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def generate_qkv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_padding_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    qv: Tensor | None = None,
    kvpacked: bool = False,
    qkvpacked: bool = False,
    query_unused_mask: Tensor | None = None,
    key_unused_mask: Tensor | None = None,
) -> tuple[Any, ...]:
    """Arguments of the varlen functions, padded ones, and functions that pad results and gradients.

    q (batch, seqlen_q, nheads, d), k, v (batch, seqlen_k, nheads_k, ..), masks bool (batch, seqlen). Plain: (q, k, v,
    qv, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, q, k, v, qv, pads out, pads dq,
    pads dk). kvpacked: (q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, q, kv, three functions).
    qkvpacked: (qkv, cu_seqlens, max_seqlen, qkv, two functions).
    """
    if kvpacked and qkvpacked:
        raise FaceArgumentError("kvpacked: was True, must be False with qkvpacked")
    if (kvpacked or qkvpacked) and not (query_unused_mask is None and key_unused_mask is None):
        raise FaceArgumentError(
            "query_unused_mask: was given, or key_unused_mask, must be absent with packed arguments"
        )
    rows, starts, used, longest, pads = _packed(q, query_padding_mask, query_unused_mask)
    keys, starts_k, used_k, longest_k, pads_k = _packed(k, key_padding_mask, key_unused_mask)
    values = _packed(v, key_padding_mask, key_unused_mask)[0]
    if qkvpacked:
        qkv: tuple[Tensor, ...] = torch.stack([rows, keys, values], 1), torch.stack([q, k, v], 2)
        return _leaf(qkv[0]), starts, longest, _leaf(qkv[1]), pads, pads
    if kvpacked:
        kv = torch.stack([keys, values], 1), torch.stack([k, v], 2)
        lengths = starts, starts_k, longest, longest_k
        return _leaf(rows), _leaf(kv[0]), *lengths, _leaf(q), _leaf(kv[1]), pads, pads, pads_k
    more = None if qv is None else _packed(qv, query_padding_mask, query_unused_mask)[0].detach()
    whole = _leaf(q), _leaf(k), _leaf(v), None if qv is None else qv.detach()
    return (
        _leaf(rows),
        _leaf(keys),
        _leaf(values),
        more,
        starts,
        starts_k,
        used,
        used_k,
        longest,
        longest_k,
        *whole,
        pads,
        pads,
        pads_k,
    )


def _places(
    seqlen_q: int, seqlen_k: int, query_padding_mask: Tensor | None, key_padding_mask: Tensor | None,
    key_leftpad: Tensor | None, device: Any,
) -> tuple[Tensor, Tensor, Any]:  # fmt: skip
    """(place of each query among the keys, of each key, number of keys), which broadcast with the scores."""
    columns = torch.arange(seqlen_k, device=device)
    if key_leftpad is not None:
        before = key_leftpad[:, None, None, None]
        columns = torch.where(columns >= before, columns - before, _FAR)

    def count(mask: Tensor | None, whole: int) -> Any:
        return whole if mask is None else mask.sum(-1)[:, None, None, None]

    keys = count(key_padding_mask, seqlen_k)
    rows = torch.arange(seqlen_q, device=device)[:, None] + keys - count(query_padding_mask, seqlen_q)
    return rows, columns, keys


def construct_local_mask(
    seqlen_q: int,
    seqlen_k: int,
    window_size: tuple[int | None, int | None] = (None, None),
    sink_token_length: int = 0,
    query_padding_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    key_leftpad: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """bool, True where a query may not see a key: beyond window_size (left, right), None and left alone: no bound.

    The last query stands beside the last key. sink_token_length: so many first keys the left side leaves in.
    """
    masks = query_padding_mask, key_padding_mask, key_leftpad
    rows, columns, keys = _places(seqlen_q, seqlen_k, *masks, device)
    left, right = window_size
    last = rows + (_FAR if right is None else right)
    if left is None:
        return columns > last
    after = columns > torch.minimum(last, torch.as_tensor(keys, device=last.device))
    return after | ((columns < rows - left) & (columns >= sink_token_length))


def construct_chunk_mask(
    seqlen_q: int,
    seqlen_k: int,
    attention_chunk: int,
    query_padding_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    key_leftpad: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """bool, True where a key is of another chunk of attention_chunk keys than the query's place."""
    masks = query_padding_mask, key_padding_mask, key_leftpad
    rows, columns, _ = _places(seqlen_q, seqlen_k, *masks, device)
    first = rows - rows % attention_chunk
    return (columns < first) | (columns >= first + attention_chunk)


def attention_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_padding_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    key_leftpad: Tensor | None = None,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_mask: Tensor | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int | None, int | None] = (None, None),
    attention_chunk: int = 0,
    sink_token_length: int = 0,
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    upcast: bool = True,
    reorder_ops: bool = False,
    intermediate_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """(out (batch, seqlen_q, nheads, d_v), probabilities (batch, nheads, seqlen_q, seqlen_k)), of q's dtype.

    By PyTorch, which holds every score: for small problems. Arguments as of the functions; masks bool (batch, seqlen),
    attn_bias and dropout_mask, what is kept, (batch, nheads, seqlen_q, seqlen_k). upcast: in fp32. reorder_ops: keys
    are scaled in place of queries. intermediate_dtype: probabilities are rounded to it.
    """
    dtype = q.dtype
    given: list[Any] = [None if one is None else one.float() if upcast else one for one in (q, k, v, qv)]
    q, k, v, qv = given
    heads = q.shape[2]

    def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
        """By a factor of each sequence and head of keys."""
        if scale is None:
            return x
        factor = scale.float().repeat_interleave(x.shape[2] // scale.shape[1], 1)
        return (x.float() * factor[:, None, :, None]).to(x.dtype)

    q, k, v = scaled(q, q_descale), scaled(k, k_descale), scaled(v, v_descale)
    k, v = (one.repeat_interleave(heads // one.shape[2], 2) for one in (k, v))
    scale = (q.shape[-1] + (v.shape[-1] if qv is not None else 0)) ** -0.5

    def products(queries: Tensor, keys: Tensor) -> Tensor:
        queries, keys = (queries, keys * scale) if reorder_ops else (queries * scale, keys)
        return torch.einsum("bqhd,bkhd->bhqk", queries, keys)

    scores = products(q, k)
    if qv is not None:
        scores = scores + products(scaled(qv, q_descale), v)
    if softcap > 0:
        scores = (scores / softcap).tanh() * softcap
    hidden = _hidden(scores, query_padding_mask, key_padding_mask, key_leftpad, causal, window_size, attention_chunk,
                     sink_token_length)  # fmt: skip
    scores = scores.masked_fill(hidden, float("-inf"))
    if attn_bias is not None:
        scores = scores + attn_bias
    if learnable_sink is not None:
        sink = learnable_sink.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        probabilities = torch.cat([scores, sink], -1).softmax(-1)[..., :-1].to(v.dtype)
    else:
        probabilities = scores.softmax(-1).to(v.dtype)
    probabilities = probabilities.masked_fill(hidden, 0.0)
    if query_padding_mask is not None:
        probabilities = probabilities.masked_fill(~query_padding_mask[:, None, :, None], 0.0)
    kept = probabilities if dropout_mask is None else probabilities.masked_fill(~dropout_mask, 0.0)
    if intermediate_dtype is not None:
        kept = kept.to(intermediate_dtype).to(kept.dtype)
    out = torch.einsum("bhqk,bkhd->bqhd", kept, v / (1 - dropout_p))
    return out.to(dtype), probabilities.to(dtype)


def _hidden(
    scores: Tensor, query_mask: Tensor | None, key_mask: Tensor | None, leftpad: Tensor | None, causal: bool,
    window: tuple[int | None, int | None], chunk: int, sink: int,
) -> Tensor:  # fmt: skip
    """bool, which broadcasts to scores: the keys that a query does not see."""
    queries, keys = scores.shape[-2:]
    window = (window[0], 0) if causal else window
    masks: dict[str, Any] = {"query_padding_mask": query_mask, "key_padding_mask": key_mask, "key_leftpad": leftpad}
    made = torch.zeros(1, 1, queries, keys, dtype=torch.bool, device=scores.device)
    found: list[Callable[[], Tensor]] = []
    if window != (None, None):
        found.append(lambda: construct_local_mask(queries, keys, window, sink, **masks, device=scores.device))
    if chunk > 0:
        found.append(lambda: construct_chunk_mask(queries, keys, chunk, **masks, device=scores.device))
    for one in found:
        made = made | one()
    return made if key_mask is None else made | ~key_mask[:, None, None, :]
