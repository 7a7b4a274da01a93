"""Arithmetic of a call, for those that arithmetic bounds: products of matrices and attention."""

from __future__ import annotations

from .settings import Settings

PRODUCTS = ("gemm", "gemm_multi_d", "gemm_quant", "batched_gemm", "flatmm", "flatmm_quant")


def operations(settings: Settings) -> float | None:
    """Multiplications and additions of a call, those of hidden scores left out; None where nothing counts them."""
    of = {word: settings.lengths[letter] for word, letter in settings.letters.items()}
    if settings.operator in PRODUCTS and {"m", "n", "k"} <= of.keys():
        return 2.0 * of["m"] * of["n"] * of["k"] * of.get("batch", 1)
    masks = ("causal", "window", "mask_origin", "sink_size")
    lengths = {"seqlen_q", "seqlen_k", "cu_seqlens_q", "cu_seqlens_k"} & settings.wanted
    if settings.operator not in ("fmha_fwd", "fmha_bwd") or settings.form.mode != "batch" or lengths:
        return None
    given = {name: value for name, value in settings.arguments.items() if name in masks}
    pairs = float(of["seqlen_q"]) * of["seqlen_k"]
    if given:
        from ..reference import visible

        pairs = float(visible(of["seqlen_q"], of["seqlen_k"], **given).sum())
    q, v = (3, 2) if settings.operator == "fmha_bwd" else (1, 1)
    return 2.0 * of["batch"] * of["nhead_q"] * pairs * (q * of["hdim_q"] + v * of["hdim_v"])
