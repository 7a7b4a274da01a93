"""brute.py for the families over a KV cache: what facts/receipts.md and issue 4 say, written out by hand.

The counts, from the facts (section 2 with "As meant", the tables of gfx942):

split-KV
    16 bits: 5 head dims (32, 64, 96, 128, 256; 96x128 is a tile), 2 modes, 2 masks, 4 of bias and soft cap (none
    without and with a cap, an array, alibi), 2 paged, 2 sink: 5 * 2 * 2 * 4 * 2 * 2 = 320 a dtype.
    fp8: 2 head dims, 2 modes, 2 masks, 4: 32. All: 2 * 320 + 32 = 672.
    flash: no bias or alibi, no cap, no sink: 5 * 2 * 2 * 2 * 2 = 80 a dtype, and fp32 as an addition: 240.
    pytorch: batch, 3 of bias and cap, no sink: 2 * 5 * 2 * 3 * 2 = 120.
combine
    16 bits: 5 head dims, 2 modes, LSE or not: 20 a dtype. fp8: 2 head dims, 2 modes: 4. All: 44.
paged KV
    16 bits: 1 head dim, 2 modes, 2 masks, 4, 2 sink: 32 a dtype. fp8: 3 head dims, 2, 2, 4: 48. All: 112.
    flash: 3 of bias and cap, no sink: 2 * 2 * 3 = 12 a dtype and head dim, with additions 3 of each: 108.
append KV
    16 bits: 4 head dims, 3 rope, 2 paged: 24 a dtype. fp8: 3 head dims. All: 51. flash: 3 dtypes of 24: 72.
batch prefill
    Pages: of 1 linear, of 16 and 1024 in 2 layouts, all found in 2 ways: 10.
    16 bits: 2 head dims, 10, 2 masks, 4, LSE, dropout, sink: 2 * 10 * 2 * 4 * 8 = 1280 a dtype.
    fp8bf16: 2 head dims, 10 with a scale each, 4 with scales per page (1024), 2 masks, 2 caps: 2 * 14 * 2 * 2 = 112.
    All: 2 * 1280 + 112 = 2672.
    flash, pytorch, ck_test: 3 of bias and cap: 2 * 960 = 1920.
    An fp8 cache under bf16, an addition: of flash 2 * 14 * 2 * 3 * 8 = 1344 (3264), of aiter with 4 1792 (4464).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.codegen.brute import Mask, Space

_BOOL = ["no", "yes"]
_MASK = ["none", "window"]
_BIAS = ["none", "elementwise", "alibi"]
_MODE = ["batch", "group"]

SPLITKV = Space(
    {
        "dtype": ["fp32", "fp16", "bf16", "fp8"],
        "hdim_q": ["32", "64", "96", "128", "256"],
        "hdim_v": ["32", "64", "96", "128", "256"],
        "mode": _MODE,
        "mask": _MASK,
        "bias": _BIAS,
        "softcap": _BOOL,
        "paged": _BOOL,
        "sink": _BOOL,
        "lse": _BOOL,
        "qscale": ["none", "pertensor"],
    }
)
PAGEDKV = Space(
    {
        "dtype": ["fp32", "fp16", "bf16", "fp8"],
        "hdim_q": ["64", "128", "256"],
        "hdim_v": ["64", "128", "256"],
        "mode": _MODE,
        "mask": _MASK,
        "bias": _BIAS,
        "softcap": _BOOL,
        "sink": _BOOL,
        "lse": _BOOL,
        "skip_min_seqlen_q": _BOOL,
        "qscale": ["none", "pertensor"],
    }
)
APPENDKV = Space(
    {
        "dtype": ["fp32", "fp16", "bf16", "fp8"],
        "hdim_q": ["32", "64", "128", "256"],
        "hdim_v": ["32", "64", "128", "256"],
        "rope": ["none", "interleaved", "half"],
        "paged": _BOOL,
    }
)
PREFILL = Space(
    {
        "dtype": ["fp16", "bf16", "fp8bf16"],
        "kv_dtype": ["same", "fp8"],
        "hdim_q": ["128", "256"],
        "hdim_v": ["128", "256"],
        "mode": ["group"],
        "page_size": ["1", "16", "1024"],
        "layout": ["linear", "vectorized"],
        "lookup": ["sglang", "vllm"],
        "mask": _MASK,
        "bias": _BIAS,
        "softcap": _BOOL,
        "lse": _BOOL,
        "dropout": _BOOL,
        "sink": _BOOL,
        "qscale": ["none", "pertensor", "kv_blockscale"],
    }
)
COMBINE = ["dtype", "hdim_v", "mode", "qscale", "lse"]
FAMILIES = {
    "fmha_batch_prefill": PREFILL,
    "fmha_fwd_appendkv": APPENDKV,
    "fmha_fwd_pagedkv": PAGEDKV,
    "fmha_fwd_splitkv": SPLITKV,
}


def _square(space: Space, hdims: str, fp8: str) -> Mask:
    wide = {(int(hdim), int(hdim)) for hdim in hdims.split()}
    narrow = {(int(hdim), int(hdim)) for hdim in fp8.split()}
    dtypes = space.axes["dtype"]
    return space.pairs({dtype: narrow if dtype.startswith("fp8") else wide for dtype in dtypes})


def _uncapped(space: Space) -> Mask:
    return space.has("softcap", "no") | space.has("bias", "none")


def _scaled(space: Space, fp8: Mask) -> Mask:
    """Scales exactly where there is fp8."""
    return fp8 == ~space.has("qscale", "none")


def _make_legal() -> None:
    for space, hdims, fp8 in ((SPLITKV, "32 64 96 128 256", "64 128"), (PAGEDKV, "64 128 256", "64 128 256")):
        is_fp8 = space.has("dtype", "fp8")
        space.legal = _square(space, hdims, fp8) & _uncapped(space) & _scaled(space, is_fp8)
        space.legal &= ~(is_fp8 & space.has("sink", "yes"))
    SPLITKV.legal &= SPLITKV.has("lse", "yes") & ~(SPLITKV.has("dtype", "fp8") & SPLITKV.has("paged", "yes"))
    PAGEDKV.legal &= PAGEDKV.has("lse", "no") & PAGEDKV.has("skip_min_seqlen_q", "no")
    is_fp8 = APPENDKV.has("dtype", "fp8")
    APPENDKV.legal = _square(APPENDKV, "32 64 128 256", "64 128 256")
    APPENDKV.legal &= ~is_fp8 | APPENDKV.has("rope", "none") & APPENDKV.has("paged", "no")
    is_fp8, cache_fp8 = PREFILL.has("dtype", "fp8bf16"), PREFILL.has("kv_dtype", "fp8")
    plain = PREFILL.has("bias", "none") & PREFILL.has("lse", "no") & PREFILL.has("dropout", "no")
    PREFILL.legal = _square(PREFILL, "128 256", "128 256") & _uncapped(PREFILL) & _scaled(PREFILL, is_fp8 | cache_fp8)
    PREFILL.legal &= ~is_fp8 | plain & PREFILL.has("sink", "no")
    PREFILL.legal &= ~cache_fp8 | PREFILL.has("dtype", "bf16")
    PREFILL.legal &= PREFILL.has("page_size", "16", "1024") | PREFILL.has("layout", "linear")
    PREFILL.legal &= PREFILL.has("page_size", "1024") | ~PREFILL.has("qscale", "kv_blockscale")


_make_legal()


def _split(dtypes: str, rest: str = "") -> Mask:
    """Without the additions: fp32 is one."""
    return SPLITKV.selected(f"dtype={dtypes} {rest}")


def _paged(dtypes: str, rest: str = "") -> Mask:
    base = PAGEDKV.has("dtype", "fp8") | PAGEDKV.has("hdim_q", "128")
    return PAGEDKV.selected(f"dtype={dtypes} {rest}") & base


def _append(dtypes: str) -> Mask:
    return APPENDKV.selected(f"dtype={dtypes}")


def _prefill(dtypes: str, rest: str = "") -> Mask:
    return PREFILL.selected(f"dtype={dtypes} kv_dtype=same {rest}")


def _prefill_aiter() -> Mask:
    return PREFILL.selected("dtype=fp16,bf16,fp8bf16")


def _all() -> dict[str, tuple[int, Callable[[], Mask]]]:
    return {
        "fmha_batch_prefill": (2672, lambda: _prefill("fp16,bf16,fp8bf16")),
        "fmha_fwd_appendkv": (51, lambda: _append("fp16,bf16,fp8")),
        "fmha_fwd_pagedkv": (112, lambda: _paged("fp16,bf16,fp8")),
        "fmha_fwd_splitkv": (672, lambda: _split("fp16,bf16,fp8")),
    }


# Of each receipt: by family the count of signatures and their meaning, and the count of combine signatures.
RECEIPTS: dict[str, tuple[dict[str, tuple[int, Callable[[], Mask]]], int]] = {
    "ck_default": (_all(), 44),
    "ck_extended": (_all(), 44),
    "flash": (
        {
            "fmha_batch_prefill": (
                3264,
                lambda: PREFILL.selected("dtype=fp16,bf16 bias=none,alibi"),
            ),
            "fmha_fwd_appendkv": (72, lambda: _append("fp32,fp16,bf16")),
            "fmha_fwd_pagedkv": (108, lambda: PAGEDKV.selected("dtype!=fp8 bias=none,alibi sink=no")),
            "fmha_fwd_splitkv": (240, lambda: _split("fp32,fp16,bf16", "bias=none,alibi softcap=no sink=no")),
        },
        60,
    ),
    "ck_test": (
        {
            "fmha_batch_prefill": (1920, lambda: _prefill("fp16,bf16", "bias=none,alibi")),
            "fmha_fwd_appendkv": (51, lambda: _append("fp16,bf16,fp8")),
            "fmha_fwd_pagedkv": (24, lambda: _paged("fp16,bf16", "bias=none,alibi sink=no")),
            "fmha_fwd_splitkv": (672, lambda: _split("fp16,bf16,fp8")),
        },
        44,
    ),
    "pytorch": (
        {
            "fmha_batch_prefill": (1920, lambda: _prefill("fp16,bf16", "bias=none,elementwise")),
            "fmha_fwd_appendkv": (48, lambda: _append("fp16,bf16")),
            "fmha_fwd_pagedkv": (24, lambda: _paged("fp16,bf16", "bias=none,elementwise sink=no")),
            "fmha_fwd_splitkv": (120, lambda: _split("fp16,bf16", "bias=none,elementwise mode=batch sink=no")),
        },
        20,
    ),
    "aiter_batch": (
        {
            "fmha_fwd_appendkv": (51, lambda: _append("fp16,bf16,fp8")),
            "fmha_fwd_pagedkv": (32, lambda: _paged("fp16,bf16", "mode=batch")),
            "fmha_fwd_splitkv": (320, lambda: _split("fp16,bf16", "mode=batch")),
        },
        20,
    ),
    "aiter_group": (
        {
            "fmha_batch_prefill": (4464, _prefill_aiter),
            "fmha_fwd_appendkv": (51, lambda: _append("fp16,bf16,fp8")),
            "fmha_fwd_pagedkv": (32, lambda: _paged("fp16,bf16", "mode=group")),
            "fmha_fwd_splitkv": (320, lambda: _split("fp16,bf16", "mode=group")),
        },
        20,
    ),
    "aiter": (
        {
            "fmha_batch_prefill": (4464, _prefill_aiter),
            "fmha_fwd_appendkv": (51, lambda: _append("fp16,bf16,fp8")),
            "fmha_fwd_pagedkv": (64, lambda: _paged("fp16,bf16")),
            "fmha_fwd_splitkv": (640, lambda: _split("fp16,bf16")),
        },
        40,
    ),
    "transformer_engine": (
        {
            "fmha_batch_prefill": (2672, lambda: _prefill("fp16,bf16,fp8bf16")),
            "fmha_fwd_appendkv": (51, lambda: _append("fp16,bf16,fp8")),
        },
        0,
    ),
    "fp8": (
        {
            "fmha_batch_prefill": (112, lambda: _prefill("fp8bf16")),
            "fmha_fwd_appendkv": (3, lambda: _append("fp8")),
            "fmha_fwd_pagedkv": (48, lambda: _paged("fp8")),
            "fmha_fwd_splitkv": (32, lambda: _split("fp8")),
        },
        4,
    ),
    "aiter_bwd_batch": ({}, 0),
    "aiter_bwd_group": ({}, 0),
    "fp32": ({}, 0),
    "fp32_min": ({}, 0),
}


def combined(main: list[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The combine signatures that split-KV signatures need: both of LSE, fp8 without."""
    at = [list(SPLITKV.axes).index(axis) for axis in COMBINE[:-1]]
    needed = {tuple(signature[position] for position in at) for signature in main}
    return {(*one, lse) for one, lse in itertools.product(needed, _BOOL) if not (one[0] == "fp8" and lse == "yes")}
