# SPDX-License-Identifier: MIT
"""brute.py for the families over a KV cache: what receipts mean, written out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.codegen.brute import Mask, Space, head_dims, sizes, without_capped_alibi

_BOOL = ["no", "yes"]
_MASK = ["none", "window"]
_BIAS = ["none", "elementwise", "alibi"]
_MODE = ["batch", "group"]


def _hdims(family: str) -> dict[str, list[str]]:
    """The two axes of a family whose values are its head dims."""
    pairs = head_dims(family)
    return {"hdim_q": sizes(pairs, 0), "hdim_v": sizes(pairs, 1)}


SPLITKV = Space(
    {
        "dtype": ["fp32", "fp16", "bf16", "fp8"],
        **_hdims("fmha_fwd_splitkv"),
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
        **_hdims("fmha_fwd_pagedkv"),
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
        **_hdims("fmha_fwd_appendkv"),
        "rope": ["none", "interleaved", "half"],
        "paged": _BOOL,
    }
)
PREFILL = Space(
    {
        "dtype": ["fp16", "bf16", "fp8bf16"],
        "kv_dtype": ["same", "fp8", "bf8"],
        **_hdims("fmha_batch_prefill"),
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


def _uncapped(space: Space) -> Mask:
    return space.has("softcap", "no") | ~space.has("bias", "elementwise")


def _scaled(space: Space, fp8: Mask) -> Mask:
    """Scales exactly where there is fp8."""
    return fp8 == ~space.has("qscale", "none")


def _make_legal() -> None:
    for family, space in FAMILIES.items():
        space.legal = space.pairs(head_dims(family))
    for space in (SPLITKV, PAGEDKV):
        is_fp8 = space.has("dtype", "fp8")
        space.legal &= _uncapped(space) & _scaled(space, is_fp8) & ~(is_fp8 & space.has("sink", "yes"))
    SPLITKV.legal &= SPLITKV.has("lse", "yes") & ~(SPLITKV.has("dtype", "fp8") & SPLITKV.has("paged", "yes"))
    PAGEDKV.legal &= PAGEDKV.has("lse", "no") & PAGEDKV.has("skip_min_seqlen_q", "no")
    is_fp8 = APPENDKV.has("dtype", "fp8")
    APPENDKV.legal &= ~is_fp8 | APPENDKV.has("rope", "none") & APPENDKV.has("paged", "no")
    is_fp8, cache_fp8 = PREFILL.has("dtype", "fp8bf16"), PREFILL.has("kv_dtype", "fp8", "bf8")
    plain = PREFILL.has("bias", "none") & PREFILL.has("lse", "no") & PREFILL.has("dropout", "no")
    PREFILL.legal &= _uncapped(PREFILL) & _scaled(PREFILL, is_fp8 | cache_fp8)
    PREFILL.legal &= ~is_fp8 | plain & PREFILL.has("sink", "no")
    PREFILL.legal &= ~cache_fp8 | PREFILL.has("dtype", "bf16")
    PREFILL.legal &= PREFILL.has("page_size", "16", "1024") | PREFILL.has("layout", "linear")
    by_page = PREFILL.has("qscale", "kv_blockscale")
    PREFILL.legal &= ~by_page | PREFILL.has("page_size", "1024") & ~PREFILL.has("kv_dtype", "bf8")


_make_legal()


def _split(dtypes: str, rest: str = "") -> Mask:
    """Without the additions: fp32 is one."""
    return SPLITKV.selected(f"dtype={dtypes} hdim_q!=512 {rest}") & without_capped_alibi(SPLITKV)


def _paged(dtypes: str, rest: str = "") -> Mask:
    base = PAGEDKV.has("dtype", "fp8") | PAGEDKV.has("hdim_q", "128")
    return PAGEDKV.selected(f"dtype={dtypes} {rest}") & base & without_capped_alibi(PAGEDKV)


def _append(dtypes: str) -> Mask:
    return APPENDKV.selected(f"dtype={dtypes} hdim_q!=512")


def _prefill(dtypes: str, rest: str = "") -> Mask:
    return PREFILL.selected(f"dtype={dtypes} kv_dtype=same {rest}") & without_capped_alibi(PREFILL)


def _prefill_aiter() -> Mask:
    return PREFILL.selected("dtype=fp16,bf16,fp8bf16") & without_capped_alibi(PREFILL)


def _all() -> dict[str, Callable[[], Mask]]:
    return {
        "fmha_batch_prefill": lambda: _prefill("fp16,bf16,fp8bf16"),
        "fmha_fwd_appendkv": lambda: _append("fp16,bf16,fp8"),
        "fmha_fwd_pagedkv": lambda: _paged("fp16,bf16,fp8"),
        "fmha_fwd_splitkv": lambda: _split("fp16,bf16,fp8"),
    }


# Receipt -> by family what its signatures are.
RECEIPTS: dict[str, dict[str, Callable[[], Mask]]] = {
    "ck_default": _all(),
    "ck_extended": _all(),
    "flash": {
        "fmha_batch_prefill": lambda: (
            PREFILL.selected("dtype=fp16,bf16 kv_dtype!=bf8 bias=none,alibi") & without_capped_alibi(PREFILL)
        ),
        "fmha_fwd_appendkv": lambda: APPENDKV.selected("dtype!=fp8"),
        "fmha_fwd_pagedkv": lambda: PAGEDKV.selected(
            "dtype!=fp8 hdim_q=64,128,256 bias=none,alibi sink=no or dtype!=fp8 hdim_q=512 bias=none softcap=no sink=no"
        ),
        "fmha_fwd_splitkv": lambda: (
            _split("fp32,fp16,bf16", "bias=none,alibi softcap=no sink=no")
            | SPLITKV.selected("dtype!=fp8 hdim_q=512 bias=none softcap=no sink=no")
        ),
    },
    "ck_test": {
        "fmha_batch_prefill": lambda: _prefill("fp16,bf16", "bias=none,alibi"),
        "fmha_fwd_appendkv": lambda: _append("fp16,bf16,fp8"),
        "fmha_fwd_pagedkv": lambda: _paged("fp16,bf16", "bias=none,alibi sink=no"),
        "fmha_fwd_splitkv": lambda: _split("fp16,bf16,fp8"),
    },
    "pytorch": {
        "fmha_batch_prefill": lambda: _prefill("fp16,bf16", "bias=none,elementwise"),
        "fmha_fwd_appendkv": lambda: _append("fp16,bf16"),
        "fmha_fwd_pagedkv": lambda: _paged("fp16,bf16", "bias=none,elementwise sink=no"),
        "fmha_fwd_splitkv": lambda: _split("fp16,bf16", "bias=none,elementwise mode=batch sink=no"),
    },
    "aiter_batch": {
        "fmha_fwd_appendkv": lambda: _append("fp16,bf16,fp8"),
        "fmha_fwd_pagedkv": lambda: _paged("fp16,bf16", "mode=batch"),
        "fmha_fwd_splitkv": lambda: _split("fp16,bf16", "mode=batch"),
    },
    "aiter_group": {
        "fmha_batch_prefill": _prefill_aiter,
        "fmha_fwd_appendkv": lambda: _append("fp16,bf16,fp8"),
        "fmha_fwd_pagedkv": lambda: _paged("fp16,bf16", "mode=group"),
        "fmha_fwd_splitkv": lambda: _split("fp16,bf16", "mode=group"),
    },
    "aiter": {
        "fmha_batch_prefill": _prefill_aiter,
        "fmha_fwd_appendkv": lambda: _append("fp16,bf16,fp8"),
        "fmha_fwd_pagedkv": lambda: _paged("fp16,bf16"),
        "fmha_fwd_splitkv": lambda: _split("fp16,bf16"),
    },
    "transformer_engine": {
        "fmha_batch_prefill": lambda: _prefill("fp16,bf16,fp8bf16"),
        "fmha_fwd_appendkv": lambda: _append("fp16,bf16,fp8"),
    },
    "fp8": {
        "fmha_batch_prefill": lambda: _prefill("fp8bf16"),
        "fmha_fwd_appendkv": lambda: _append("fp8"),
        "fmha_fwd_pagedkv": lambda: _paged("fp8"),
        "fmha_fwd_splitkv": lambda: _split("fp8"),
    },
    "aiter_bwd_batch": {},
    "ck_bwd_fp16": {},
    "aiter_bwd_group": {},
    "fp32": {},
    "fp32_min": {},
}


def combined(main: list[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The combine signatures that split-KV signatures need: both of LSE, fp8 without."""
    at = [list(SPLITKV.axes).index(axis) for axis in COMBINE[:-1]]
    needed = {tuple(signature[position] for position in at) for signature in main}
    return {(*one, lse) for one, lse in itertools.product(needed, _BOOL) if not (one[0] == "fp8" and lse == "yes")}
