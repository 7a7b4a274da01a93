# SPDX-License-Identifier: MIT
"""Arithmetic of a call, for those that arithmetic bounds: products of matrices and attention."""

from __future__ import annotations

import numpy as np

from .settings import Settings

ATTENTION = ("fmha_fwd", "fmha_bwd", "fmha_fwd_splitkv")
PRODUCTS = ("gemm", "gemm_multi_d", "gemm_quant", "batched_gemm", "flatmm", "flatmm_quant")


def operations(settings: Settings) -> float | None:
    """Multiplications and additions of a call, without those of hidden scores; None where nothing counts them."""
    of = {word: settings.lengths[letter] for word, letter in settings.letters.items()}
    if settings.operator in PRODUCTS and {"m", "n", "k"} <= of.keys():
        return 2.0 * of["m"] * of["n"] * of["k"] * of.get("batch", 1)
    masks = ("causal", "window", "mask_origin", "sink_size")
    appends = settings.operator == "fmha_fwd_appendkv" and settings.arguments.get("attend")
    if settings.operator not in ATTENTION and not appends:
        return None
    every = _sequences(settings, of)
    if every is None:
        return None
    given = {name: value for name, value in settings.arguments.items() if name in masks}
    pairs = 0.0
    for both in every:
        if given:
            from ..reference import visible

            pairs += float(visible(*both, **given).sum())
        else:
            pairs += float(both[0]) * both[1]
    q, v = (3, 2) if settings.operator == "fmha_bwd" else (1, 1)
    return 2.0 * of["nhead_q"] * pairs * (q * of["hdim_q"] + v * of["hdim_v"]) * of["batch"] / len(every)


def _sequences(settings: Settings, of: dict[str, int]) -> list[tuple[int, int]] | None:
    """(queries, keys) of the sequences of attention: of one where they are alike, else of each; None where neither."""
    starts, used = (settings.indices.get(name) for name in ("seqstart_q", "seqlen_k"))
    if starts is not None:
        keys = np.diff(settings.indices["seqstart_k"]) if used is None else used
        return [(int(q), int(k)) for q, k in zip(np.diff(starts), keys, strict=True)]
    one = _one_sequence(settings, of)
    return None if one is None else [one]


def _one_sequence(settings: Settings, of: dict[str, int]) -> tuple[int, int] | None:
    """(queries, keys) of each sequence of attention; None where they differ or lie in arrays of lengths."""
    if "seqlen_new" in of:  # sequences fill what there is once they have the new keys
        return of["seqlen_q"], settings.keys
    lengths = {"seqlen_q", "seqlen_k", "cu_seqlens_q", "cu_seqlens_k"} & settings.wanted
    if settings.form.mode == "batch":
        full = lengths == {"seqlen_k"} and settings.paged  # sequences fill their pages
        return None if lengths and not full else (of["seqlen_q"], settings.keys)
    batch, queries, keys = of["batch"], of["total_q"], settings.keys if settings.paged else of["total_k"]
    if not batch or lengths - ({"seqlen_k"} if settings.paged else set()) or queries % batch:
        return None
    if settings.paged:
        return queries // batch, keys
    return None if keys % batch else (queries // batch, keys // batch)
