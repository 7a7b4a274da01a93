# SPDX-License-Identifier: MIT
"""Attention as FlashAttention 3 and 4 say it: windows to the letter, lengths in use, chunks, keys that lie in a
cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...api.operators import at_hand
from ...torch import calls
from .._modules import FaceNoKernelError, longest
from ._arguments import check_dimensions, in_vectors, keys_of_sequences, last_dense, narrowed, scale_of
from ._kvcache import _copied

Window = tuple[int, int]
"""Keys to the left and to the right of a row's own; -1 is unbounded."""


def packed_lengths(
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seqused_q: Tensor | None, seqused_k: Tensor | None, max_seqlen_q: int,
    max_seqlen_k: int,
) -> dict[str, Any]:  # fmt: skip
    """Arguments that say where packed sequences lie, and how much of each is in use."""
    queries = (
        {"cu_seqlens_q": cu_seqlens_q} if seqused_q is None else {"seqstart_q": cu_seqlens_q, "seqlen_q": seqused_q}
    )
    return {
        **queries,
        **keys_of_sequences(cu_seqlens_k, seqused_k, None),
        **longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q),
    }


def attend(
    q: Tensor, k: Tensor, v: Tensor, sequences: dict[str, Any], softmax_scale: float | None, causal: bool,
    window: Window, softcap: float, *, sink: Tensor | None = None, deterministic: bool = False,
    return_lse: bool = False, scales: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out, lse or None), differentiable in q, k, v and sink. sequences: of packed ones, as `packed_lengths` gives
    them.
    """
    check_dimensions((q, k, v), q.ndim == 3)
    packed = in_vectors(*last_dense(q, k, v))
    arguments = {
        "softmax_scale": scale_of(softmax_scale, q, packed[0]), "causal": bool(causal), "window": window,
        "softcap": softcap, **sequences,
    }  # fmt: skip
    if sink is not None:
        arguments["sink"] = sink.float()
    if scales:
        arguments |= scales
    out, lse, _, _ = calls.forward(*packed, **arguments, deterministic=deterministic or None, return_lse=return_lse)
    return narrowed(out, v.shape[-1]), lse


def starts_of(x: Tensor) -> Tensor:
    """int32 (batch + 1): where the sequences of x (batch, seqlen, ...) begin when they are packed."""
    return torch.arange(x.shape[0] + 1, dtype=torch.int32, device=x.device) * x.shape[1]


def chunked(
    chunk: int, starts_q: Tensor, lengths_q: Tensor, starts_k: Tensor, lengths_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int,
) -> dict[str, Any]:  # fmt: skip
    """Arguments of packed sequences whose query at position p sees keys of p's chunk: p // chunk is the key's, too.

    Positions are those of keys, and the last query stands at the last key. Queries before the first key are a chunk of
    their own, which has none. starts (batch + 1), lengths (batch), int32.
    """
    most = -(-max(max_seqlen_k, 1) // chunk)
    first = torch.arange(-1, most, dtype=torch.int32, device=starts_q.device) * chunk
    first[0] = torch.iinfo(torch.int32).min // 2
    last = torch.cat((first[1:], first[-1:] + chunk))
    shift = (lengths_k - lengths_q)[:, None]
    zero = torch.zeros_like(shift)

    def between(edge: Tensor, lengths: Tensor, by: Tensor) -> Tensor:
        return torch.minimum((edge[None] - by).clamp(min=0), lengths[:, None]).to(torch.int32)

    begin_q, end_q = between(first, lengths_q, shift), between(last, lengths_q, shift)
    begin_k, end_k = between(first, lengths_k, zero), between(last, lengths_k, zero)
    return {
        "seqstart_q": torch.cat(((starts_q[:-1, None] + begin_q).flatten(), starts_q[-1:])),
        "seqlen_q": (end_q - begin_q).flatten().contiguous(),
        "seqstart_k": torch.cat(((starts_k[:-1, None] + begin_k).flatten(), starts_k[-1:])),
        "seqlen_k": (end_k - begin_k).flatten().contiguous(),
        **longest(max_seqlen_q, min(max_seqlen_k, chunk), starts_q),
    }


def over_cache(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, lengths: Tensor, table: Tensor, first: Tensor | None,
    max_seqlen_q: int, softmax_scale: float | None, causal: bool, window: Window, softcap: float, num_splits: int, *,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) of packed queries over a cache; no result has a gradient.

    k, v: pages (pages, page, nheads_k, headdim). table: int32 (batch, pages of a sequence). lengths: int32 (batch), the
    keys of each sequence; first: int32 (batch), its first key that is attended to, from which masks count.
    """
    headdim_v, room = v.shape[-1], k.shape[1] * table.shape[1]
    with torch.no_grad():
        dense, wide_k, wide_v = in_vectors(*last_dense(q), k, v)
        arguments: dict[str, Any] = {
            "softmax_scale": scale_of(softmax_scale, q, dense), "causal": bool(causal), "window": window,
            "cu_seqlens_q": starts_q, **longest(max_seqlen_q, room, starts_q),
        }  # fmt: skip
        if sink is not None:
            arguments["sink"] = sink.float()
        if softcap:
            keys, values, used = _copied(wide_k, wide_v, table, lengths, first)
            out, lse, _, _ = calls.forward(
                dense, keys.flatten(0, 1), values.flatten(0, 1), softcap=softcap, seqlen_k=used,
                seqstart_k=starts_of(keys), **arguments,
            )  # fmt: skip
            assert lse is not None
            return narrowed(out, headdim_v), lse
        if first is not None:
            arguments |= {"is_gappy": True, "seqstart_k": first, "seqlen_k": lengths - first}
        else:
            arguments["seqlen_k"] = lengths
        out, lse = calls.splitkv(
            dense, wide_k, wide_v, block_table=table, num_splits=num_splits, return_lse=True, **arguments
        )
        return narrowed(out, headdim_v), lse


def chosen_splits(
    q: tuple[int, ...], k: tuple[int, ...], headdim_v: int, where: dict[str, Any], num_splits: int
) -> int:
    """The parts into which a call over a cache cuts the keys of a sequence; it is asked, and computes nothing.

    q (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim): shapes. where: dtype and device.
    num_splits: what the caller wants, 0 for a choice.
    """
    made = [torch.empty(shape[-1], **where).expand(shape) for shape in (q, k, (*k[:-1], headdim_v))]
    wrong: Exception | None = None
    for library in at_hand():
        try:
            chosen: int = library.fmha_fwd_splitkv_num_splits(*made, num_splits=num_splits)
        except (AttributeError, LookupError) as error:
            wrong = error
            continue
        return chosen
    raise FaceNoKernelError(str(wrong)) from wrong
