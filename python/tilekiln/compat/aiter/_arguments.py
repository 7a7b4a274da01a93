# SPDX-License-Identifier: MIT
"""aiter's arguments in Tilekiln's words, and its results in aiter's order."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ...torch import calls
from .._modules import longest
from ..flash_attn._arguments import Lengths, mask

SOFTSIGN = "CK_TILE_ATTENTION_LOGITS_SOFT_CAP_DEFAULT"
"""1 when aiter's kernels are to be compiled with the other form of the soft cap."""


def unbounded(window_size: Any) -> bool:
    """Tells that of nearly every call, without a window and sink tokens."""
    return type(window_size) is tuple and window_size in ((-1, -1, 0), (-1, -1))


def masks(causal: bool, window_size: Any, seqlen_k: int, lengths: Lengths | None = None) -> dict[str, Any]:
    """causal, window and sink_size. window_size: left, right and, when there are three, sink tokens. Others: `mask`."""
    if unbounded(window_size):
        return {"causal": bool(causal)}
    try:
        sizes = [int(size) for size in window_size]
        if len(sizes) not in (2, 3):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"window_size: was {window_size!r}, must be (left, right) or (left, right, sink tokens), integers"
        ) from error
    return {**mask(causal, sizes[:2], seqlen_k, lengths), "sink_size": sizes[2] if len(sizes) == 3 else 0}


def keys_of(cu_seqlens_k: Tensor | None) -> Lengths | None:
    """The keys of each sequence; None where nothing says so."""
    return None if cu_seqlens_k is None else cu_seqlens_k.diff


def keys_of_pages(k: Tensor, kv_indptr: Tensor | None, kv_last_page_lens: Tensor | None) -> Tensor | None:
    """The keys of each sequence, (batch), whose pages are listed; None where lengths are missing or k is no cache."""
    if kv_indptr is None or k.dim() not in (3, 4, 5) or (k.dim() > 3 and kv_last_page_lens is None):
        return None
    pages = kv_indptr.diff()
    if k.dim() == 3 or kv_last_page_lens is None:
        return pages
    return ((pages - 1) * k.shape[1 if k.dim() == 4 else 3] + kv_last_page_lens).where(pages > 0, 0)


def softsign() -> bool:
    """Tells whether the form of the soft cap is asked for that there are no kernels for."""
    return os.environ.get(SOFTSIGN, "0") == "1"


def softcap(logits_soft_cap: float) -> float:
    """The soft cap, of the form that there are kernels for."""
    if logits_soft_cap > 0 and softsign():
        raise ArgumentError(
            f"logits_soft_cap: was {logits_soft_cap}, must be 0 while {SOFTSIGN}=1: that asks for s / (1 + |s / cap|), "
            f"and Tilekiln's kernels compute cap tanh(s / cap). Unset {SOFTSIGN} for the latter"
        )
    return logits_soft_cap


def heads_of_bias(bias: Tensor | None, leading: int) -> Tensor | None:
    """bias (queries, keys) with so many dimensions of length 1 before."""
    if bias is not None and bias.dim() != 2:
        raise ArgumentError(f"bias: was of shape {tuple(bias.shape)}, must be (queries, keys), the same for all heads")
    return bias if bias is None else bias[(None,) * leading]


def logits(sink_ptr: Tensor | None) -> Tensor | None:
    """sink_ptr (nheads) in fp32, in which the kernels read it."""
    return None if sink_ptr is None else sink_ptr.float()


def sequences(
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, padded_q: Tensor | None, padded_k: Tensor | None,
    max_seqlen_q: int, max_seqlen_k: int,
) -> dict[str, Any]:  # fmt: skip
    """Starts and lengths of packed sequences as arguments of `fmha_fwd`; padded arrays are the starts."""
    return {
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqstart_q": padded_q, "seqstart_k": padded_k,
        **longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q),
    }  # fmt: skip


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without those that are None or off."""
    return {name: value for name, value in arguments.items() if value is not None and value is not False}


def s_dmask(randval: Tensor | None, max_seqlen_k: int | None = None) -> Tensor:
    """The random bytes of dropout, as wide as max_seqlen_k; empty without."""
    if randval is None:
        return torch.empty(0, dtype=torch.uint8)
    missing = 0 if max_seqlen_k is None else max_seqlen_k - randval.shape[-1]
    return torch.nn.functional.pad(randval, (0, missing)) if missing > 0 else randval


def in_order(out: Tensor, lse: Tensor | None, bits: Tensor, return_lse: bool, return_attn_probs: bool) -> Any:
    """out, then lse, then S_dmask, each of the last two if it is wanted: a tuple if there is more than out."""
    results = (out, *((lse,) if return_lse else ()), *((bits,) if return_attn_probs else ()))
    return out if len(results) == 1 else results


def attend(
    q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any], deterministic: bool, return_lse: bool,
    return_attn_probs: bool, max_seqlen_k: int | None = None,
) -> Any:  # fmt: skip
    """`calls.forward` with its results in aiter's order."""
    wants_bits = return_attn_probs and bool(arguments.get("dropout_p"))
    out, lse, randval, _ = calls.forward(
        q, k, v, **given(arguments), deterministic=deterministic or None, return_lse=return_lse,
        return_randval=wants_bits,
    )  # fmt: skip
    if not return_lse and not return_attn_probs:
        return out
    return in_order(out, lse, s_dmask(randval, max_seqlen_k), return_lse, return_attn_probs)
