# SPDX-License-Identifier: MIT
"""Attention over a KV cache, with new keys, of sequences of one length or packed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...torch import calls
from .._modules import FaceArgumentError, longest
from ..flash_attn import _kvcache
from ..flash_attn._sequences import Window, over_cache, starts_of
from ..flash_attn.layers.rotary import apply_rotary_emb
from ._options import Descales, one_of_each


class Rotary(NamedTuple):
    """cos and sin (positions, rotary_dim / 2), pairs, and the position of each sequence's first new key."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    offsets: Tensor


class Tokens(NamedTuple):
    """Packed tokens: where sequences begin, int32 (batch + 1), and of each token its sequence and place in it,
    int64.
    """

    starts: Tensor
    sequence: Tensor
    place: Tensor

    @classmethod
    def of(cls, starts: Tensor, total: int) -> Tokens:
        counts = starts.diff().long()
        sequence = torch.repeat_interleave(torch.arange(len(counts), device=starts.device), counts, output_size=total)
        return cls(starts, sequence, torch.arange(total, device=starts.device) - starts[:-1].long()[sequence])


def packed(x: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens one after another, and where sequences begin. x (batch, seqlen, ...), or packed with its starts."""
    return (x, starts) if starts is not None else (x.flatten(0, 1), starts_of(x))


def rotated(x: Tensor, tokens: Tokens, rotary: Rotary, moving: bool) -> Tensor:
    """Packed x, each token by its own position: that of its sequence, and with moving its place in it more."""
    position = rotary.offsets.long()[tokens.sequence] + (tokens.place if moving else 0)
    made: Tensor = apply_rotary_emb(
        x[:, None], rotary.cos, rotary.sin, rotary.interleaved, seqlen_offsets=position.to(torch.int32)
    )
    return made[:, 0]


def check_room(name: str, longest_now: Tensor, room: int) -> None:
    """On the CPU: does every sequence fit? A device says so itself."""
    if longest_now.is_cpu and longest_now.numel() and int(longest_now.max()) > room:
        at = int(longest_now.argmax())
        raise FaceArgumentError(
            f"{name}: has room for {room} keys a sequence, must have {int(longest_now[at])}: sequence {at} is that long"
        )


def append(cache: Tensor, new: Tensor, tokens: Tokens, lengths: Tensor, table: Tensor) -> None:
    """Write packed new rows behind the keys that the sequences have. cache: pages."""
    position = lengths.long()[tokens.sequence] + tokens.place
    page = table.long()[tokens.sequence, position // cache.shape[1]]
    eight_bits = cache.dtype is torch.float8_e4m3fn
    to, rows = (cache.view(torch.uint8), new.view(torch.uint8)) if eight_bits else (cache, new.to(cache.dtype))
    to[page, position % cache.shape[1]] = rows


def attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, rotary: Rotary | None,
    lengths: Tensor, rows: Tensor | None, leftpad: Tensor | None, page_table: Tensor | None, starts_q: Tensor | None,
    starts_new: Tensor | None, max_seqlen_q: int | None, descales: Descales, softmax_scale: float | None, causal: bool,
    window: Window, chunk: int, softcap: float, num_splits: int, return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out, lse) of queries of any form, lse None where it was not asked for; arguments as flash_attn_with_kvcache
    says. Appends with PyTorch.
    """
    flat, starts = packed(q, starts_q)
    batch = len(starts) - 1
    most = q.shape[1] if starts_q is None else max_seqlen_q if max_seqlen_q is not None else len(flat)
    table = _table(page_table, rows, batch, q)
    if table.shape[0] != batch or lengths.shape != (batch,):
        name, had = ("page_table", table.shape[0]) if table.shape[0] != batch else ("cache_seqlens", len(lengths))
        raise FaceArgumentError(f"{name}: had {had} entries, must have {batch}, one a sequence of q")
    room = k_cache.shape[1] * table.shape[1]
    where = "k_cache" if page_table is None else "page_table"
    grown = lengths
    if k is not None:
        assert v is not None
        new, starts_k = packed(k, starts_new)
        tokens = Tokens.of(starts_k, len(new))
        grown = lengths + starts_k.diff()
        check_room(where, grown, room)
        if rotary is not None:
            new = rotated(new, tokens, rotary, True)
            flat = rotated(flat, Tokens.of(starts, len(flat)), rotary, causal or window != (-1, -1))
        append(k_cache, new, tokens, lengths, table)
        append(v_cache, packed(v, starts_new)[0], tokens, lengths, table)
    check_room(where, grown, room)
    if chunk:
        if most != 1:
            raise FaceArgumentError(
                f"attention_chunk: was {chunk} with {most} queries a sequence, must be 0 over a cache with more than "
                "one: call once a query, or flash_attn_varlen_func"
            )
        if leftpad is not None:
            raise FaceArgumentError("cache_leftpad: was given, must be None with attention_chunk")
        leftpad = ((grown - 1).clamp(min=0) // chunk * chunk).to(torch.int32)
    if q.dtype is torch.float8_e4m3fn:
        lse: Tensor | None
        out, lse = _eight_bits(
            flat, k_cache, v_cache, starts, grown, table, leftpad, most, descales, softmax_scale, causal, window,
            softcap, return_lse,
        )  # fmt: skip
    else:
        out, lse = over_cache(
            flat, k_cache, v_cache, starts, grown, table, leftpad, most, softmax_scale, causal, window, softcap,
            num_splits,
        )  # fmt: skip
    if starts_q is not None:
        return out, lse
    batched = None if lse is None else lse.unflatten(1, q.shape[:2]).transpose(0, 1).contiguous()
    return out.unflatten(0, q.shape[:2]), batched


def _table(page_table: Tensor | None, rows: Tensor | None, batch: int, q: Tensor) -> Tensor:
    """The pages of each sequence; a row of a cache without pages is one."""
    if page_table is None:
        rows = torch.arange(batch, dtype=torch.int32, device=q.device) if rows is None else rows
        return rows[:, None]
    return page_table if rows is None else page_table[rows.long()]


def _eight_bits(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, lengths: Tensor, table: Tensor, leftpad: Tensor | None,
    max_seqlen_q: int, descales: Descales, softmax_scale: float | None, causal: bool, window: Window, softcap: float,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out in bf16, lse or None) over a cache of fp8, by the kernels of batch prefill."""
    if leftpad is not None:
        raise FaceArgumentError("cache_leftpad: was given, must be None with fp8")
    scales = one_of_each(q, descales)
    if scales is None:
        raise FaceArgumentError(
            "k_descale: had numbers of its own for sequences or heads, must be one number over a cache: "
            "descale.expand(batch, nheads_k), or tilekiln.fmha_batch_prefill, which takes a scale a page and head"
        )
    made = calls.batch_prefill(
        q, k, v, cu_seqlens_q=starts_q, block_table=table, seqlen_k=lengths, softmax_scale=softmax_scale,
        causal=bool(causal), window=window, softcap=softcap, return_lse=return_lse, **scales,
        **longest(max_seqlen_q, k.shape[1] * table.shape[1], starts_q),
    )  # fmt: skip
    return made if return_lse else (made, None)


def dense(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, rotary: tuple[Any, Any, bool],
    cache_seqlens: int | Tensor | None, rows: Tensor | None, leftpad: Tensor | None, page_table: Tensor | None,
    softmax_scale: float | None, causal: bool, window: Window, softcap: float, num_splits: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) of queries of one length: one call appends, rotates and attends, as FlashAttention 2's does."""
    made: tuple[Tensor, Tensor] = _kvcache.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, rotary[0], rotary[1], cache_seqlens, rows, leftpad, page_table, softmax_scale,
        causal, window, softcap, rotary[2], None, num_splits, True,
    )  # fmt: skip
    return made
