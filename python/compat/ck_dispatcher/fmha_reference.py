# SPDX-License-Identifier: MIT
"""Attention in float32 by NumPy, with its gradients, the comparison of results, and keys and values in pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference import visible


def wrong(name: str, was: object, must: str) -> tk.ArgumentError:
    """The error of an argument."""
    return tk.ArgumentError(f"{name}: was {was!r}, must be {must}")


def _heads(array: Any, nhead_q: int) -> Any:
    return np.repeat(np.asarray(array, np.float32), nhead_q // array.shape[1], axis=1)


def _probabilities(q: Any, k: Any, scale: float, mask_type: int) -> Any:
    if mask_type not in (0, 1, 2):
        raise wrong("mask_type", mask_type, "0 (none), 1 (top left) or 2 (bottom right)")
    scores = np.float32(scale) * np.asarray(q, np.float32) @ k.swapaxes(-1, -2)
    if mask_type:
        seen = visible(*scores.shape[-2:], causal=True, mask_origin=("top_left", "bottom_right")[mask_type - 1])
        scores = np.where(seen, scores, np.float32(-1e9))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def cpu_attention_fwd(Q: Any, K: Any, V: Any, scale: float, mask_type: int = 0) -> Any:  # noqa: N803 upstream's names
    """Attention in float32, BHSD; K and V are repeated for grouped queries."""
    return _probabilities(Q, _heads(K, Q.shape[1]), scale, mask_type) @ _heads(V, Q.shape[1])


def cpu_attention_fwd_with_intermediates(Q: Any, K: Any, V: Any, scale: float) -> tuple[Any, Any]:  # noqa: N803
    """The same without a mask, and the probabilities."""
    weights = _probabilities(Q, _heads(K, Q.shape[1]), scale, 0)
    return weights @ _heads(V, Q.shape[1]), weights


def cpu_attention_bwd(Q: Any, K: Any, V: Any, out: Any, dO: Any, P: Any, scale: float) -> tuple[Any, Any, Any]:  # noqa: N803
    """dQ, dK and dV in float32, of as many heads as Q: grouped queries are not summed."""
    q, k, v, o, d_out, p = (np.asarray(array, np.float32) for array in (Q, K, V, out, dO, P))
    if k.shape[1] != q.shape[1]:
        raise wrong("K", f"{k.shape[1]} heads", f"{q.shape[1]}, those of Q: repeat them")
    d_scores = p * (d_out @ v.swapaxes(-1, -2) - (d_out * o).sum(axis=-1, keepdims=True))
    return scale * d_scores @ k, scale * d_scores.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_out


class FmhaValidator:
    """Results against expected ones."""

    def __init__(self, rtol: float = 1e-2, atol: float = 1e-2) -> None:
        self.rtol, self.atol = rtol, atol

    def check(self, output: Any, reference: Any) -> tuple[bool, float, float]:
        """(close, largest difference, largest relative difference)."""
        got, want = np.asarray(output, np.float32), np.asarray(reference, np.float32)
        if got.shape != want.shape:
            raise wrong("output", got.shape, f"{want.shape}, the shape of reference")
        difference = np.abs(got - want)
        relative = difference / (np.abs(want) + 1e-6)
        return bool(np.allclose(got, want, self.rtol, self.atol)), float(difference.max()), float(relative.max())


VECTOR_BYTES = 16  # of a vector of a vectorized pool
CACHE_ARGUMENTS = {
    "splitkv": ("paged_kv", "page_size"),
    "pagedkv": ("page_size",),
    "batch_prefill": ("page_size", "kv_layout", "kv_lookup"),
    "appendkv": ("seqlen_knew", "rope_type", "rotary_cos", "rotary_sin", "paged_kv", "page_size"),
}
"""Further arguments of a run over a cache, by the kind of run."""


def paged(array: Any, page_size: int) -> tuple[Any, Any]:
    """(batch, seqlen, nhead, hdim) as a pool (pages, page_size, nhead, hdim) and the table (batch, pages) of its pages.

    The pages of a sequence are not in order, so that who ignores the table is seen. What is past a sequence is 0.
    """
    batch, seqlen, nhead, hdim = array.shape
    each = max(1, -(-seqlen // page_size))
    padded = np.zeros((batch, each * page_size, nhead, hdim), array.dtype)
    padded[:, :seqlen] = array
    table = np.arange(batch * each, dtype=np.int32)[::-1].reshape(batch, each).copy()
    pool = np.empty((batch * each, page_size, nhead, hdim), array.dtype)
    pool[table.reshape(-1)] = padded.reshape(batch * each, page_size, nhead, hdim)
    return pool, table


def lists(table: Any, seqlen: int, page_size: int) -> dict[str, Any]:
    """The table as SGLang keeps it: indptr, page numbers and the keys of each last page."""
    batch, each = table.shape
    last = seqlen - (each - 1) * page_size
    return {
        "kv_indptr": np.arange(batch + 1, dtype=np.int32) * np.int32(each),
        "kv_page_indices": np.ascontiguousarray(table.reshape(-1)),
        "kv_last_page_lens": np.full(batch, last, np.int32),
    }
