# SPDX-License-Identifier: MIT
"""Bad input to the KV-cache families: refused before any kernel runs, by the argument's name; nothing is written."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import problems
from tilekiln.reference.kv_problems import i32

ROOT = pathlib.Path(__file__).resolve().parents[2]


def f32(*shape: int) -> np.ndarray:
    return np.full(shape, 0.5, np.float32)


def f16(*shape: int) -> np.ndarray:
    return np.full(shape, 0.5, np.float16)


def contiguous() -> dict:
    """A good call of split-KV: 2 of 3 rows of a cache of 20 keys."""
    return {
        "family": "fmha_fwd_splitkv",
        "q": f32(2, 3, 4, 64),
        "k": f32(3, 20, 2, 64),
        "v": f32(3, 20, 2, 64),
        "seqlen_k": i32([20, 7]),
        "cache_batch_idx": i32([2, 0]),
        "out": problems.poisoned(f32(2, 3, 4, 64)),
        "lse": problems.poisoned(f32(2, 4, 3)),
    }


def splitkv() -> dict:
    """The same over 5 pages of 16."""
    return {
        "family": "fmha_fwd_splitkv",
        "q": f32(2, 3, 4, 64),
        "k": f32(5, 16, 2, 64),
        "v": f32(5, 16, 2, 64),
        "block_table": i32([[4, 0], [2, -1]]),
        "seqlen_k": i32([20, 7]),
        "out": problems.poisoned(f32(2, 3, 4, 64)),
        "lse": problems.poisoned(f32(2, 4, 3)),
    }


def pagedkv() -> dict:
    good = splitkv()
    del good["lse"]
    return {**good, "family": "fmha_fwd_pagedkv"}


def appendkv() -> dict:
    """Two new keys each."""
    good = splitkv()
    return {
        **good,
        "family": "fmha_fwd_appendkv",
        "knew": f32(2, 2, 2, 64),
        "vnew": f32(2, 2, 2, 64),
        "k": problems.poisoned(f32(5, 16, 2, 64)),
        "v": problems.poisoned(f32(5, 16, 2, 64)),
        "rotary_cos": f32(30, 16),
        "rotary_sin": f32(30, 16),
    }


def sglang() -> dict:
    """A good call of batch prefill: 3 and 2 queries, 20 and 7 keys."""
    return {
        "family": "fmha_batch_prefill",
        "q": f16(5, 4, 128),
        "k": f16(5, 16, 2, 128),
        "v": f16(5, 16, 2, 128),
        "cu_seqlens_q": i32([0, 3, 5]),
        "kv_indptr": i32([0, 2, 3]),
        "kv_page_indices": i32([4, 0, 2]),
        "kv_last_page_lens": i32([4, 7]),
        "out": problems.poisoned(f16(5, 4, 128)),
        "lse": problems.poisoned(f32(4, 5)),
    }


def vllm() -> dict:
    good = sglang()
    for name in ("kv_indptr", "kv_page_indices", "kv_last_page_lens"):
        del good[name]
    return {**good, "block_table": i32([[4, 0], [2, -1]]), "seqlen_k": i32([20, 7])}


FP8 = NUMPY["fp8"]

# id: (good call, the argument that the text must name, what to change)
CASES = {
    # page tables
    "a page past the pool": (splitkv, "block_table", {"block_table": i32([[5, 0], [2, -1]])}),
    "a negative page": (splitkv, "block_table", {"block_table": i32([[4, -1], [2, -1]])}),
    "a table too short": (splitkv, "block_table", {"seqlen_k": i32([33, 7])}),
    "a table of another batch": (splitkv, "block_table", {"block_table": i32([[4, 0]])}),
    "a table of 1 dimension": (splitkv, "block_table", {"block_table": i32([4, 0])}),
    "a table of int64": (splitkv, "block_table", {"block_table": np.array([[4, 0], [2, 0]])}),
    "a table as a list": (splitkv, "block_table", {"block_table": [[4, 0], [2, 0]]}),
    "pages past the pool, paged": (pagedkv, "block_table", {"block_table": i32([[4, 9], [2, 0]])}),
    "no table": (pagedkv, "block_table", {"block_table": None}),
    "a negative page in the window": (
        splitkv, "block_table", {"block_table": i32([[4, -1], [2, -1]]), "window": (2, 0)},
    ),
    "a negative page of the sink": (
        splitkv, "block_table", {"block_table": i32([[-1, 0], [2, -1]]), "window": (2, 0), "sink_size": 1},
    ),
    "pages of 8": (pagedkv, "k", {"k": f32(5, 8, 2, 64), "v": f32(5, 8, 2, 64), "seqlen_k": i32([9, 7])}),
    "v of another page size": (splitkv, "v", {"v": f32(5, 32, 2, 64)}),
    "v of fewer pages": (splitkv, "v", {"v": f32(4, 16, 2, 64)}),
    "a pool of 3 dimensions": (splitkv, "k", {"k": f32(80, 2, 64)}),
    "vectorized pages, append": (appendkv, "k", {"k": f32(5, 2, 16, 16, 4), "v": f32(5, 2, 4, 64, 4)}),
    "a page past the pool, append": (appendkv, "block_table", {"block_table": i32([[4, 7], [2, -1]])}),
    "one page for two sequences": (appendkv, "block_table", {"block_table": i32([[4, 2], [2, -1]])}),
    "no page for the new keys": (appendkv, "block_table", {"seqlen_k": i32([31, 7])}),
    "a page past the pool, sglang": (sglang, "kv_page_indices", {"kv_page_indices": i32([4, 5, 2])}),
    "a negative page, sglang": (sglang, "kv_page_indices", {"kv_page_indices": i32([4, 0, -2])}),
    "indptr past the pages": (sglang, "kv_indptr", {"kv_indptr": i32([0, 2, 4])}),
    "indptr that falls": (sglang, "kv_indptr", {"kv_indptr": i32([0, 3, 2])}),
    "indptr of another batch": (sglang, "kv_indptr", {"kv_indptr": i32([0, 3])}),
    "no page indices": (sglang, "kv_page_indices", {"kv_page_indices": None}),
    "no last lengths": (sglang, "kv_last_page_lens", {"kv_last_page_lens": None}),
    "a last page of no key": (sglang, "kv_last_page_lens", {"kv_last_page_lens": i32([0, 7])}),
    "a last page too long": (sglang, "kv_last_page_lens", {"kv_last_page_lens": i32([4, 17])}),
    "both lookups": (sglang, "kv_indptr", {"block_table": i32([[4, 0], [2, 0]]), "seqlen_k": i32([20, 7])}),
    "no lookup": (sglang, "kv_indptr", {"kv_indptr": None, "kv_page_indices": None, "kv_last_page_lens": None}),
    "lengths of both lookups": (sglang, "seqlen_k", {"seqlen_k": i32([20, 7])}),
    "a page past the pool, vllm": (vllm, "block_table", {"block_table": i32([[4, 5], [2, 0]])}),
    "a table too short, vllm": (vllm, "block_table", {"seqlen_k": i32([20, 40])}),
    "no lengths, vllm": (vllm, "seqlen_k", {"seqlen_k": None}),
    "pages of 24": (vllm, "k", {"k": f16(5, 24, 2, 128), "v": f16(5, 24, 2, 128)}),
    # lengths and rows
    "a negative length": (splitkv, "seqlen_k", {"seqlen_k": i32([20, -1])}),
    "longer than the cache": (contiguous, "seqlen_k", {"seqlen_k": i32([21, 7])}),
    "lengths of another batch": (splitkv, "seqlen_k", {"seqlen_k": i32([20])}),
    "lengths of int64": (splitkv, "seqlen_k", {"seqlen_k": np.array([20, 7])}),
    "two kinds of lengths": (splitkv, "seqlen_k", {"cu_seqlens_k": i32([0, 20, 27])}),
    "a row past the cache": (contiguous, "cache_batch_idx", {"cache_batch_idx": i32([3, 0])}),
    "a negative row": (contiguous, "cache_batch_idx", {"cache_batch_idx": i32([2, -1])}),
    "rows without idx": (contiguous, "k", {"cache_batch_idx": None}),
    "padding past the keys": (splitkv, "cache_leftpad", {"cache_leftpad": i32([3, 8])}),
    "negative padding": (splitkv, "cache_leftpad", {"cache_leftpad": i32([-1, 0])}),
    "gaps in batch mode": (splitkv, "is_gappy", {"is_gappy": True}),
    "one row for two appends": (
        appendkv, "cache_batch_idx",
        {"block_table": None, "k": f32(2, 40, 2, 64), "v": f32(2, 40, 2, 64), "cache_batch_idx": i32([1, 1])},
    ),
    "no room to append": (
        appendkv, "seqlen_k", {"block_table": None, "k": f32(2, 21, 2, 64), "v": f32(2, 21, 2, 64)},
    ),
    "append without lengths": (appendkv, "seqlen_k", {"seqlen_k": None}),
    "prefill without cu_seqlens_q": (sglang, "cu_seqlens_q", {"cu_seqlens_q": None}),
    "queries past q": (sglang, "cu_seqlens_q", {"cu_seqlens_q": i32([0, 3, 6])}),
    # rotation
    "cos without sin": (appendkv, "rotary_sin", {"rotary_sin": None}),
    "sin without cos": (appendkv, "rotary_cos", {"rotary_cos": None}),
    "sin of another shape": (appendkv, "rotary_sin", {"rotary_sin": f32(30, 15)}),
    "cos wider than the head": (appendkv, "rotary_cos", {"rotary_cos": f32(30, 33), "rotary_sin": f32(30, 33)}),
    "cos of too few positions": (appendkv, "rotary_cos", {"rotary_cos": f32(21, 16), "rotary_sin": f32(21, 16)}),
    "cos of too few positions for the queries": (
        appendkv, "rotary_cos", {"rotary_cos": f32(22, 16), "rotary_sin": f32(22, 16), "causal": True},
    ),
    "cos of another dtype": (appendkv, "rotary_cos", {"rotary_cos": f16(30, 16), "rotary_sin": f16(30, 16)}),
    "cos of 1 dimension": (appendkv, "rotary_cos", {"rotary_cos": f32(16), "rotary_sin": f32(16)}),
    # shapes, dtypes, numbers
    "knew of another dtype": (appendkv, "knew", {"knew": f16(2, 2, 2, 64)}),
    "knew of other heads": (appendkv, "knew", {"knew": f32(2, 2, 4, 64)}),
    "vnew of another count": (appendkv, "vnew", {"vnew": f32(2, 3, 2, 64)}),
    "k of another dtype": (splitkv, "k", {"k": f16(5, 16, 2, 64)}),
    "heads that do not divide": (splitkv, "k", {"k": f32(5, 16, 3, 64), "v": f32(5, 16, 3, 64)}),
    "out of another shape": (splitkv, "out", {"out": problems.poisoned(f32(2, 3, 4, 63))}),
    "out overlaps k": (splitkv, "out", {"out": "k"}),
    "lse of another order": (splitkv, "lse", {"lse": problems.poisoned(f32(2, 3, 4))}),
    "129 splits": (splitkv, "num_splits", {"num_splits": 129}),
    "negative splits": (splitkv, "num_splits", {"num_splits": -1}),
    "splits by word": (splitkv, "num_splits", {"num_splits": "auto"}),
    "scales without fp8": (splitkv, "k_descale", {"k_descale": f32(1)}),
    "an out_scale without fp8": (splitkv, "out_scale", {"out_scale": f32(1)}),
    "an fp8 cache under fp16": (vllm, "k", {"k": f16(5, 16, 2, 128).astype(FP8), "v": f16(5, 16, 2, 128).astype(FP8)}),
    "scales per page without fp8": (vllm, "kv_block_descale", {"kv_block_descale": f32(5, 2, 2)}),
    "q of 4 dimensions, prefill": (sglang, "q", {"q": f16(1, 5, 4, 128)}),
    "vectors of another length": (sglang, "k", {"k": f16(5, 2, 8, 16, 16), "v": f16(5, 2, 2, 128, 8)}),
    "dropout_p 1": (sglang, "dropout_p", {"dropout_p": 1.0}),
    "softcap NaN": (splitkv, "softcap", {"softcap": float("nan")}),
    "window of 3": (splitkv, "window", {"window": (1, 2, 3)}),
    "no queries to attend with": (appendkv, "q", {"q": None, "out": None, "lse": None, "attend": True}),
    "out without attention": (appendkv, "out", {"attend": False}),
    "stream a number": (pagedkv, "stream", {"stream": 1}),
    "layout by number": (pagedkv, "layout", {"layout": 1}),
}  # fmt: skip


@pytest.mark.parametrize("good", [contiguous, splitkv, pagedkv, appendkv, sglang, vllm])
def test_the_good_calls_are_good(flash, good):
    call = good()
    for name in ("k", "v"):
        call[name][...] = 1
    getattr(flash, call.pop("family"))(**call)
    assert np.all(call["out"] == 1) or "knew" in call


@pytest.mark.parametrize("case", CASES)
def test_refused(flash, case):
    good, argument, changes = CASES[case]
    call = good() | changes
    if isinstance(call["out"], str):
        call["out"] = call[call["out"]].ravel()[: call["q"].size].reshape(call["q"].shape)
    arrays = {name: call.get(name) for name in ("q", "k", "v", "out", "lse")}
    watched = {name: array.tobytes() for name, array in arrays.items() if isinstance(array, np.ndarray)}
    with pytest.raises(tk.ArgumentError, match=rf"^{argument}: "):
        getattr(flash, call.pop("family"))(**call)
    for name, before in watched.items():
        assert call[name].tobytes() == before, f"{name} was written"


def test_docstring_and_header_ask_for_the_same_pages(flash):
    """Scales per page need pages of a multiple of 128 tokens."""
    header = (ROOT / "include/tilekiln/operators/fmha_batch_prefill.h").read_text()
    for text in (header.partition("kv_block_descale; ")[2], flash.fmha_batch_prefill.__doc__):
        text = " ".join(text.partition("(pages, nhead_k, 2)")[2].partition("cu_seqlens_q")[0].split())
        assert "page_size a multiple of 128" in text


def test_there_are_enough_cases():
    assert len(CASES) >= 40
