# SPDX-License-Identifier: MIT
"""Caches as FmhaRunner makes them of dense keys and values: pages with their tables, linear or vectorized pools."""

from __future__ import annotations

from typing import Any

import numpy as np

BYTES = 16  # of a vector of a vectorized pool
ARGUMENTS = {
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
