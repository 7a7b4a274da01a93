"""brute.py for the backward families: what facts/receipts.md and issue 3 say, written out by hand.

Companions are not filtered but counted off the main signatures: what a receipt's main instances need, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.codegen.brute import PAIRS, Mask, Space

MAIN = "fmha_bwd_dq_dk_dv"
COMPANIONS = {
    "fmha_bwd_dot_do_o": ["dtype", "hdim_v", "mode"],
    "fmha_bwd_convert_dq": ["dtype", "hdim_q", "mode", "deterministic"],
}
AXES: dict[str, list[str]] = {
    "dtype": ["fp32", "fp16", "bf16"],
    "hdim_q": ["32", "48", "64", "80", "96", "128", "192", "256"],
    "hdim_v": ["32", "48", "64", "80", "96", "128", "192", "256"],
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
_SQUARE = {(hdim, hdim) for hdim in (32, 64, 96, 128, 256)}
_BASE = {"fp32": {(32, 32), (64, 64), (128, 128)}, "fp16": _SQUARE, "bf16": _SQUARE}

# The head dims of the forward, soft cap only without a bias, the gradient of a bias only where there is one.
BWD.legal = BWD.pairs({dtype: PAIRS[dtype] for dtype in AXES["dtype"]})
BWD.legal &= ~(has("softcap", "yes") & ~has("bias", "none")) & ~(has("dbias", "yes") & ~has("bias", "elementwise"))


def _base() -> Mask:
    """What upstream has."""
    return BWD.pairs(_BASE) & has("softcap", "no") & has("sink", "no")


def _sixteen() -> Mask:
    return _base() & has("dtype", "fp16", "bf16")


def _applied(mode: str) -> Mask:
    return _sixteen() & has("mode", mode) & has("dropout", "none", "apply")


def _everything() -> Mask:
    """The base and every addition: all that is legal."""
    return BWD.legal


RECEIPTS: dict[str, tuple[int, Callable[[], Mask]]] = {  # main count on one target, meaning
    # widened by soft cap and sinks, multiplied out
    "ck_default": (2400, lambda: BWD.pairs(_BASE) & has("dtype", "fp16", "bf16")),
    "ck_extended": (2400, lambda: BWD.pairs(_BASE) & has("dtype", "fp16", "bf16")),
    # widened by soft cap, sinks, fp32 and all head dims
    "flash": (2208, lambda: _everything() & has("bias", "none", "alibi") & has("dropout", "none", "apply")),
    "ck_test": (240, lambda: _sixteen() & has("bias", "none", "alibi") & has("deterministic", "no")),
    "pytorch": (
        240,
        lambda: (
            _sixteen()
            & has("bias", "none", "elementwise")
            & has("dropout", "none", "apply")
            & has("deterministic", "no")
        ),
    ),
    "aiter_bwd_batch": (320, lambda: _applied("batch")),
    "aiter_bwd_group": (320, lambda: _applied("group")),
    "aiter": (5520, _everything),  # widened as flash is
    "transformer_engine": (960, _sixteen),
    "fp32": (288, lambda: _base() & has("dtype", "fp32")),
    "fp32_min": (
        2,
        lambda: (
            _base()
            & has("dtype", "fp32")
            & has("hdim_q", "64", "128")
            & has("mode", "batch")
            & has("mask", "none")
            & has("bias", "none")
            & has("dropout", "none")
            & has("deterministic", "no")
        ),
    ),
}
NUMBERS = {"aiter_bwd_batch": 300, "aiter_bwd_group": 400}  # of those without a forward; brute.py has the others


def projected(main: list[tuple[str, ...]], family: str) -> set[tuple[str, ...]]:
    """What main signatures need of a companion."""
    at = [list(AXES).index(axis) for axis in COMPANIONS[family]]
    return {tuple(signature[position] for position in at) for signature in main}
