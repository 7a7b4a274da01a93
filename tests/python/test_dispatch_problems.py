# SPDX-License-Identifier: MIT
"""The dispatcher's problems, builders and keys: every setter, every refusal, every field of a key in its id."""

from __future__ import annotations

from typing import Any

import pytest
import tilekiln as tk
from tilekiln.dispatcher import GemmProblemBuilder, Key, Problem, ProblemBuilder
from tilekiln.dispatcher.words import value_of

pytestmark = pytest.mark.usefixtures("binding")


def attention(hdim_q: int = 64, hdim_v: int = 64, seqlen_q: int = 128) -> ProblemBuilder:
    return ProblemBuilder().data_type("bf16").dims(hdim_q, hdim_v, 2, seqlen_q, 256).nheads(8, 4)


def call(builder: Any, setter: str) -> None:
    """`dims 64 64 1 1 1`: a setter and its arguments, which are numbers, yes, no or words."""
    name, *words = setter.split()
    getattr(builder, name)(*({"yes": True, "no": False}.get(word, value_of(word)) for word in words))


def told(calls: str, **others: Any) -> list[str]:
    """Words that setters refuse, and the problem that comes of the others; `attention`, `empty` or `gemm` begins it."""
    kind, *setters = calls.split("; ")
    builder = ({"attention": attention, "empty": ProblemBuilder, "gemm": GemmProblemBuilder} | others)[kind]()
    lines = []
    for setter in setters:
        try:
            call(builder, setter)
        except tk.ArgumentError as refused:
            lines.append(str(refused))
    try:
        built = builder.build()
    except tk.ArgumentError as refused:
        return [*lines, str(refused)]
    lengths = f"{built.effective_max_seqlen_q} {built.effective_max_seqlen_k} {int(built.has_variable_seqlen_k)}"
    return [*lines, str(built), f"{built.family} {built.canonical_key()} {built.num_ops} {lengths}"]


WRONG = {
    "api_family: was fw, must be fwd, fwd_pagedkv, fwd_splitkv, fwd_appendkv, batch_prefill or bwd; "
    "did you mean fwd?": "api_family fw",
    "hdim_q: was 0, must be at least 1": "dims 0 64 1 1 1",
    "hdim_v: was -1, must be at least 1": "dims 64 -1 1 1 1",
    "batch: was 0, must be at least 1": "dims 64 64 0 1 1",
    "seqlen_q: was -1, must be at least 0": "dims 64 64 1 -1 1",
    "nhead_k: was 0, must be at least 1": "nheads 8 0",
    "nhead_q: was 8, must be a multiple of nhead_k, 3": "nheads 8 3",
    "bias_type: was slopes, must be no_bias, none, no, elementwise, elementwise_bias or alibi": "bias_type slopes",
    "page_size: was 0, must be at least 1": "kv_cache linear vllm 0",
    "lookup: was hash, must be vllm, vllm_block_table_2d, sglang or sglang_page_table_1d": "kv_cache linear hash 1",
    "window_left: was -2, must be at least -1": "window -2 0",
    "sink_size: was -1, must be at least 0": "sink_size -1",
    "num_splits: was 0, must be at least 1": "num_splits 0",
    "lse: was no, must be yes for bwd, which reads what the forward wrote": "api_family bwd",
    "max_seqlen_q: was 0, must be at least 1 in group mode": "group_mode yes",
    "dbias: was yes, must be no without an elementwise bias": "bwd_flags yes no no",
    "nhead_k: was not given, must be at least 1": "set nhead_k 0",  # and nothing is divided by it
    "store_randval: was yes, must be no without dropout": "bwd_flags no yes no",
}
PRODUCTS_WRONG = {
    "m: was not given, must be at least 1": "batch 1",
    "n: was 0, must be at least 1": "dimensions 1 0 1",
    "k: was 31 rows of b, must be 30, the columns of a": "from_ab 100 30 31 50",
    "m: was 99 rows of out, must be 100, the rows of a": "from_shapes 100 30 30 50 99 50",
    "n: was 51 columns of out, must be 50, those of b": "from_shapes 100 30 30 50 100 51",
    "dtype: was fp64, must be fp32, fp16, bf16, int8, fp8 or bf8; did you mean fp16?": "dtypes fp64",
    "out_dtype: was fp64, must be fp32, fp16, bf16 or int32; did you mean fp16?": "dtypes bf16 fp64",
    "layouts: was rc, must be three letters of r and c, as in rcr": "layouts rc",
    "layout_b: was x, must be r or c": "layouts rxr",
    "stride_b: was -1, must be at least 0": "strides 0 -1 0",
    "stride_a: was 20, must be at least 30": "dimensions 10 10 30; strides 20 0 0",
}
MISSING = {
    "data_type: was not given, must be a dtype such as bf16": "empty",
    "hdim_q: was not given, must be at least 1": "empty; data_type fp16",
}
EVERY_SETTER = (
    "api_family batch_prefill; gfx_arch gfx942; mask_type top_left; bias_type elementwise_bias; lse yes; dropout yes; "
    "qscale_type kv_blockscale; rope_type half_rotated; logits_soft_cap yes; v_rowmajor no; group_mode yes; "
    "paged_kv yes; fp8_static_quant yes; skip_min_seqlen_q yes; kv_cache vectorized sglang 16; window 7 3; "
    "sink_size 4; max_seqlen 300 400; num_splits 8; bwd_flags no yes yes"
)
CHANGES = [
    "set hdim_q 32", "set hdim_v 32", "lse yes", "dropout yes", "mask_type top_left", "mask_type bottom_right",
    "bias_type alibi", "logits_soft_cap yes", "v_rowmajor no", "gfx_arch gfx942", "sink yes", "window 5 0",
    "paged_kv yes", "kv_cache linear vllm 16", "kv_cache linear sglang 16", "set has_block_table yes",
    "api_family fwd_splitkv", "qscale_type pertensor", "rope_type half", "fp8_static_quant yes",
    "skip_min_seqlen_q yes", "set rotary_dim 16", "set min_seqlen_q 4", "set has_cache_batch_idx yes",
    "data_type fp16", "set has_rotary yes", "set is_gappy yes", "set deterministic yes",
]  # fmt: skip
"""Each makes another canonical key."""
PAGES = {1: 1, 2: 16, 63: 16, 64: 1024, 4096: 1024}
"""Pages of a prefill are of classes, which its operator's host code knows."""
CALLS = [
    *(f"attention; {one}" for one in [*WRONG.values(), *CHANGES, EVERY_SETTER]),
    *(f"gemm; {one}" for one in PRODUCTS_WRONG.values()),
    *(f"attention; api_family batch_prefill; kv_cache linear vllm {page}" for page in PAGES),
    *(f"attention; set {name} yes" for name in ("has_seqstart_k", "has_seqlen_k", "has_cu_seqlens_k")),
    *MISSING.values(),
    "attention; dims 32 32 1 1 -1; kv_cache linear vllm 0",
    "attention; api_family fwd_splitkv; kv_cache linear vllm 32",
    "attention; api_family fmha_bwd; lse yes; dropout yes; bwd_flags no yes no",
    "attention; api_family bwd; lse yes; kernel_family bwd_dot_do_o",
    "attention; kernel_family bwd_dot_do_o; api_family bwd; lse yes",
    "attention; lse no; mask_type no_mask; max_seqlen 500 600",
    "attention; dims 64 32 2 0 256",
    "gemm; from_ab 100 30 30 50; dtypes int8; layouts rcc",
    "gemm; dimensions 10 10 30; strides 40 0 0; activation relu; bias yes; c yes; scaled yes; batch 4; split_k 2",
    "gemm; dimensions 10 10 30; workspace_budget 9; persistent yes",
]
"""Calls of C++'s builders too (tests/dispatcher/test_twins.py)."""


@pytest.mark.parametrize("sentence", WRONG)
def test_refusals_name_the_field(sentence: str) -> None:
    assert told(f"attention; {WRONG[sentence]}")[0] == sentence


@pytest.mark.parametrize("sentence", MISSING)
def test_what_is_missing_is_named(sentence: str) -> None:
    assert told(MISSING[sentence]) == [sentence]


def test_what_is_no_number_is_refused() -> None:
    for sentence, refused in {
        "hdim_v: was 'wide', must be an integer of at least 1": lambda b: b.dims(64, "wide", 1, 1, 1),
        "batch: was True, must be an integer of at least 1": lambda b: b.dims(64, 64, True, 1, 1),
        "value: was 1.5, must be a number, yes, no or another word": lambda b: b.set("hdim_q", 1.5),
    }.items():
        with pytest.raises(tk.ArgumentError, match=f"^{sentence}"):
            refused(attention())


def test_a_refused_setter_sets_nothing() -> None:
    said = ["seqlen_k: was -1, must be at least 0", "page_size: was 0, must be at least 1"]
    assert told("attention; dims 32 32 1 1 -1; kv_cache linear vllm 0") == [*said, *told("attention")]


def test_every_setter_reaches_its_field() -> None:
    problem = attention()
    for setter in EVERY_SETTER.split("; "):
        call(problem, setter)
    assert str(problem.build()) == (
        "fmha_batch_prefill batch=2 bias=elementwise dbias=no deterministic=yes dropout=yes dtype=bf16 "
        "fp8_static_quant=yes hdim_q=64 hdim_v=64 kv_dtype=same layout=vectorized lookup=sglang lse=yes mask=window "
        "mask_origin=top_left max_seqlen_k=400 max_seqlen_q=300 mode=group nhead_k=4 nhead_q=8 num_splits=8 "
        "page_size=16 page_tokens=16 paged=yes qscale=kv_blockscale rope=half seqlen_k=256 seqlen_q=128 sink=yes "
        "sink_size=4 skip_min_seqlen_q=yes softcap=yes store_randval=yes "
        "target=gfx942 v_layout=column window_left=7 window_right=3"
    )
    for tokens, of_class in PAGES.items():
        pages = attention().api_family("batch_prefill").kv_cache("linear", "vllm", tokens).build()
        assert (pages["page_size"], pages["page_tokens"]) == (of_class, tokens)
    assert attention().api_family("fwd_splitkv").kv_cache("linear", "vllm", 32).build()["page_size"] == 32
    backward = attention().api_family("fmha_bwd").lse().dropout().bwd_flags(False, True, False).build()
    assert (backward["dropout"], backward.family) == ("store", "fmha_bwd_dq_dk_dv")
    for order in (("api_family", "kernel_family"), ("kernel_family", "api_family")):
        builder = attention().lse()
        for setter in order:
            getattr(builder, setter)("bwd" if setter == "api_family" else "bwd_dot_do_o")
        assert builder.build().family == "fmha_bwd_dot_do_o"


def test_sizes_and_keys_of_problems() -> None:
    problem = attention(64, 32).build()
    assert problem.num_ops == 2 * 2 * 8 * 128 * 256 * (64 + 32)
    assert attention(64, 32, 0).build().num_ops == 0
    longer = attention(64, 32).max_seqlen(500, 600).build()
    assert (longer.effective_max_seqlen_q, longer.effective_max_seqlen_k) == (500, 600)
    assert (problem.effective_max_seqlen_q, problem.has_variable_seqlen_k) == (128, False)
    for name in ("has_seqstart_k", "has_seqlen_k", "has_cu_seqlens_k", "is_gappy"):
        assert attention().set(name, True).build().has_variable_seqlen_k
    # Sizes are not in the canonical key; every other field that says something is.
    assert problem.canonical_key() == attention(64, 32, 7).build().canonical_key()
    assert problem.canonical_key() == attention(64, 32).lse(False).mask_type("no_mask").build().canonical_key()
    keys = {attention().build().canonical_key()}
    for change in CHANGES:
        builder = attention()
        call(builder, change)
        keys.add(builder.build().canonical_key())
    assert len(keys) == 1 + len(CHANGES)


def test_products() -> None:
    problem = GemmProblemBuilder().from_ab(100, 30, 30, 50).dtypes("int8").layouts("rcc").build()
    assert str(problem) == (
        "gemm dtype=int8 k=30 layout_a=row layout_b=column layout_out=column m=100 n=50 out_dtype=int32 stride_a=30 "
        "stride_b=30 stride_out=100"
    )
    assert problem.num_ops == 2 * 100 * 50 * 30
    assert GemmProblemBuilder().dimensions(10, 10, 30).strides(40, 0, 0).build().number("stride_a") == 40


@pytest.mark.parametrize("sentence", PRODUCTS_WRONG)
def test_refusals_of_products(sentence: str) -> None:
    assert told(f"gemm; {PRODUCTS_WRONG[sentence]}")[0] == sentence


def test_values_mean_what_they_say() -> None:
    problem = Problem("fmha_fwd", lse=True, sink="no", hdim_q="64", page_size=16, dtype="")
    assert [problem[name] for name in ("lse", "sink", "hdim_q", "page_size", "dtype", "other")] == [
        "yes", "no", 64, 16, None, None
    ]  # fmt: skip
    assert problem == Problem("fmha_fwd", page_size="16", hdim_q=64, sink=False, lse="yes")
    assert problem != problem.copy().set("lse", False)


def test_every_field_of_a_key_is_in_its_id() -> None:
    """Each field alone, those among them that upstream forgets (facts 1.5 and gemm.md 4.1)."""
    words = ("softcap", "lse", "wave_m2", "wave_n2", "wave_k2", "warp_m2", "warp_n2", "warp_k2", "constraint",
             "dtype_b", "dtype_acc", "transpose_c", "grouped", "block_size", "double_buffer",
             "num_wave_groups")  # fmt: skip
    signature = {"dtype": "bf16", "hdim_q": 64, "hdim_v": 64, "mode": "batch", "mask": "none"}
    algorithm = {"pipeline": "qr", "tile_m0": 128, **dict.fromkeys(words, 1)}
    ids = {Key("fmha_fwd", signature, algorithm, "cpu-generic").id}
    changed = [
        Key("fmha_bwd", signature, algorithm, "cpu-generic"),
        Key("fmha_fwd", signature, algorithm, "gfx942"),
        Key("fmha_fwd", signature, algorithm, "cpu-generic", "flash"),
        *(Key("fmha_fwd", {**signature, name: 77}, algorithm, "cpu-generic") for name in (*signature, *words)),
        *(Key("fmha_fwd", signature, {**algorithm, name: 77}, "cpu-generic") for name in algorithm),
        Key("fmha_fwd", {**signature, "pipeline": "qr"}, algorithm, "cpu-generic"),
    ]
    ids |= {key.id for key in changed}
    assert len(ids) == 1 + len(changed) > 40
    turned = Key("fmha_fwd", dict(reversed(signature.items())), dict(reversed(algorithm.items())), "cpu-generic")
    assert turned == Key("fmha_fwd", signature, algorithm, "cpu-generic")
    assert turned.id in ids
    assert turned.id.startswith("fmha_fwd-bf16-64x64-")
