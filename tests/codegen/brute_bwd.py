# SPDX-License-Identifier: MIT
"""brute.py for the backward families: what receipts mean, written out by hand.

Companions are not filtered but counted off the main signatures: what a receipt's main instances need, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.codegen.brute import Mask, Space, head_dims, sizes, without_capped_alibi

MAIN = "fmha_bwd_dq_dk_dv"
COMPANIONS = {
    "fmha_bwd_dot_do_o": ["dtype", "hdim_v", "mode"],
    "fmha_bwd_convert_dq": ["dtype", "hdim_q", "mode", "deterministic"],
}
PAIRS = head_dims(MAIN)
AXES: dict[str, list[str]] = {
    "dtype": ["fp32", "fp16", "bf16"],
    "hdim_q": sizes(PAIRS, 0),
    "hdim_v": sizes(PAIRS, 1),
    "mode": ["batch", "group"],
    "mask": ["none", "window"],
    "bias": ["none", "elementwise", "alibi"],
    "dbias": ["no", "yes"],
    "dropout": ["none", "apply", "store"],
    "softcap": ["no", "yes"],
    "sink": ["no", "yes"],
    "deterministic": ["no", "yes"],
}
BWD = Space(AXES)
has, signatures, selected = BWD.has, BWD.signatures, BWD.selected

# Soft cap only without an elementwise bias, the gradient of a bias only where there is one.
BWD.legal = BWD.pairs(PAIRS)
BWD.legal &= ~(has("softcap", "yes") & has("bias", "elementwise")) & ~(
    has("dbias", "yes") & ~has("bias", "elementwise")
)


def _upstream() -> Mask:
    """The head dims that upstream has."""
    wide = has("dtype", "fp16", "bf16") & has("hdim_q", "32", "64", "96", "128", "256")
    return wide | has("dtype", "fp32") & has("hdim_q", "32", "64", "128")


def _base() -> Mask:
    """Upstream's signatures."""
    return _upstream() & has("softcap", "no") & has("sink", "no")


def _sixteen() -> Mask:
    return _base() & has("dtype", "fp16", "bf16")


def _applied(mode: str) -> Mask:
    return _sixteen() & has("mode", mode) & has("dropout", "none", "apply")


def _everything() -> Mask:
    """The base and every addition: soft cap, sinks, fp32, and the head dims that the forward has."""
    return has("hdim_q", "32", "48", "64", "80", "96", "128", "192", "256")


def _wide() -> Mask:
    """Heads of 512, which no base has, as flash adds them."""
    return has("hdim_q", "512") & has("bias", "none") & has("dropout", "none") & has("softcap", "no")


RECEIPTS: dict[str, Callable[[], Mask]] = {
    # widened by soft cap and sinks, multiplied out
    "ck_default": lambda: _upstream() & has("dtype", "fp16", "bf16") & without_capped_alibi(BWD),
    "ck_extended": lambda: _upstream() & has("dtype", "fp16", "bf16") & without_capped_alibi(BWD),
    # widened by soft cap, sinks, fp32 and all head dims
    "flash": lambda: (_everything() | _wide()) & has("bias", "none", "alibi") & has("dropout", "none", "apply"),
    "ck_test": lambda: _sixteen() & has("bias", "none", "alibi") & has("deterministic", "no"),
    "pytorch": lambda: (
        _sixteen() & has("bias", "none", "elementwise") & has("dropout", "none", "apply") & has("deterministic", "no")
    ),
    "ck_bwd_fp16": lambda: _base() & has("dtype", "fp16") & has("bias", "none") & has("dropout", "none") & BWD.square(),
    "aiter_bwd_batch": lambda: _applied("batch"),
    "aiter_bwd_group": lambda: _applied("group"),
    # widened as flash is, but for alibi with a soft cap
    "aiter": lambda: _everything() & without_capped_alibi(BWD),
    "transformer_engine": _sixteen,
    "fp32": lambda: _base() & has("dtype", "fp32"),
    "fp32_min": lambda: (
        _base()
        & has("dtype", "fp32")
        & has("hdim_q", "64", "128")
        & has("mode", "batch")
        & has("mask", "none")
        & has("bias", "none")
        & has("dropout", "none")
        & has("deterministic", "no")
    ),
}
NUMBERS = {"aiter_bwd_batch": 300, "aiter_bwd_group": 400}  # of those without a forward; brute.py has the others


def projected(main: list[tuple[str, ...]], family: str) -> set[tuple[str, ...]]:
    """Signatures of a companion that main signatures need."""
    at = [list(AXES).index(axis) for axis in COMPANIONS[family]]
    return {tuple(signature[position] for position in at) for signature in main}
