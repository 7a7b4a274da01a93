# SPDX-License-Identifier: MIT
"""Calls of every operator that together give each of its arrays: for tests that change how an array lies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from tilekiln._core.dtypes import NUMPY

from codegen.emit.operators.cases import Drawn
from tests.python.drawn import LENGTHS, LENGTHS_OF, OPERATORS, receipt

I32, F32 = np.int32, np.float32
FP8 = "fp8"


@dataclasses.dataclass(frozen=True)
class Call:
    """Arguments of a right call."""

    operator: str
    given: str = ""  # arrays beside the required ones, drawn from the declaration
    form: str = ""  # the first, unless it is said
    dtype: str = "fp16"
    lengths: dict[str, int] = dataclasses.field(default_factory=dict)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)  # of arrays and scalars; a shape and dtype: random
    of: str = ""  # the receipt whose library answers it, unless errors name that one

    @property
    def receipt(self) -> str:
        """The receipt whose library answers it."""
        return self.of or ("aiter" if self.operator.startswith("fmha") else receipt(self.operator))

    def __str__(self) -> str:
        return " ".join([self.operator, self.form, self.given or ",".join(self.values)]).strip()

    @property
    def arrays(self) -> set[str]:
        """The names of its arrays."""
        return {name for name, value in self.arguments().items() if isinstance(value, np.ndarray)}

    def arguments(self) -> dict[str, Any]:
        """By name; arrays contiguous, with random values, results too."""
        operator = OPERATORS[self.operator]
        form = next((one for one in operator.forms if one.name == self.form), operator.forms[0])
        others = [letter for letter in operator.symbols if letter not in LENGTHS]
        lengths = LENGTHS | {one: 40 + i for i, one in enumerate(others)} | LENGTHS_OF.get(self.operator, {})
        drawn = Drawn(operator, form, lengths | self.lengths, self.dtype)
        random = np.random.default_rng(0)
        made: dict[str, Any] = {}
        for a in operator.arrays:
            wanted = a.name in self.given.split() or a.required
            if wanted and a.name not in self.values and (array := drawn.array(a)) is not None:
                made[a.name] = values(random, array.shape, array.dtype)
        for name, value in self.values.items():
            shaped = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple)
            made[name] = values(random, *value) if shaped else value
        return made


def values(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers around 1; integers, which may be indices, are 0, and bytes anything."""
    if dtype == "uint8":
        return random.integers(0, 256, shape).astype(np.uint8)
    if dtype == "int8":
        return random.integers(-8, 8, shape).astype(np.int8)
    if dtype.startswith(("int", "uint")):
        return np.zeros(shape, NUMPY[dtype])
    return np.asarray(random.standard_normal(shape), F32).astype(NUMPY[dtype])


def numbers(*of: Any, dtype: Any = I32) -> np.ndarray:
    return np.array(of, dtype)


def draws(shape: tuple[int, ...], end: int, dtype: Any = I32) -> np.ndarray:
    return np.random.default_rng(1).integers(0, end, shape).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(0.5, 2, shape).astype(F32)


ONE = positive(1)
DROPPED = {"dropout_p": 0.3, "rng": (7, 9)}
GROUP = {"seqstart_q": numbers(0, 3, 7), "seqstart_k": numbers(0, 9, 16)}
PACKED = {"cu_seqlens_q": numbers(0, 3, 7), "cu_seqlens_k": numbers(0, 9, 16)}
LENGTHS_Q_K = {"seqlen_q": numbers(4, 2), "seqlen_k": numbers(16, 9)}
TK = {"Tk": 16, "B1": 3}
TABLE = {"block_table": numbers([1, 2], [3, 0])}
PAGES = {**TABLE, "seqlen_k": numbers(30, 9)}
PLACES = {"cache_batch_idx": numbers(1, 0), "cache_leftpad": numbers(2, 5)}
FP8_KV = {"q_descale": ONE, "k_descale": ONE + 1, "v_descale": ONE + 2}
LIST = np.array([[3, 5, 8, 0, 8, 0, 8, 0, 5, 0], [2, 5, 8, 24, 8, 40, 8, 15, 5, 5]], np.int64)
WINDOW = {"C": 6, "G": 6, "X": 9, "Fx": 3}
CHOSEN = draws((40, 3), 41)

CALLS = [
    Call("batched_gemm", "bias c", values={"beta": 0.5}),
    Call(
        "batched_contraction",
        values={name: (shape, "fp16") for name, shape in (("a", (2, 7, 5)), ("b", (2, 6, 5)), ("out", (2, 7, 6)))}
        | {"batch_dims": 1},
    ),
    Call("batched_transpose", values={"y": ((5, 7, 6), "fp16")}),
    Call("copy", values={"y": ((5, 6, 7), "fp16")}),
    Call("cross_entropy", "lse", values={"labels": draws((40,), 41)}),
    Call("cross_entropy", "precomputed_lse", values={"labels": draws((40,), 41, np.int64)}),
    Call("cross_entropy_bwd", values={"labels": draws((40,), 41)}),
    Call("flatmm", "bias c", values={"beta": 0.5}),
    Call("flatmm_quant", "bias c", values={"beta": 0.5}),
    Call("flatmm_quant", "a_scale", dtype="int8"),
    Call("flatmm_quant", "b_zero", values={"b_scale": ((4, 1, 64), "fp16")}, of="four_bits"),
    Call("fmha_fwd", "lse bias sink randval", values=DROPPED),
    Call("fmha_fwd", "lse alibi_slopes", values=LENGTHS_Q_K),
    Call("fmha_fwd", "alibi_slopes", values={**PACKED, "alibi_slopes": positive(2, 6)}),
    Call("fmha_fwd", "lse bias randval", form="group", lengths=TK | {"K": 9}, values=GROUP | DROPPED),
    Call(
        "fmha_fwd",
        "lse",
        form="group",
        lengths=TK,
        values={**GROUP, **LENGTHS_Q_K, "seqlen_q": numbers(3, 2), "seqlen_k": numbers(9, 5)},
    ),
    Call("fmha_fwd", "lse", form="group", lengths=TK, values=PACKED),
    Call(
        "fmha_fwd",
        dtype=FP8,
        lengths={"Sq": 130, "Sk": 300, "D": 128, "Dv": 128},
        values={"q_descale": positive(2, 6, 2), "k_descale": positive(2, 3, 3), "v_descale": positive(2, 3, 3)},
    ),
    Call(
        "fmha_fwd",
        form="group",
        dtype=FP8,
        lengths={"Tq": 137, "Tk": 309, "B1": 3, "D": 128, "Dv": 128},
        values={
            "q_descale": positive(6, 3),
            "k_descale": positive(3, 4),
            "v_descale": positive(3, 4),
            "block_scale_seqstart_q": numbers(0, 1, 3),
            "block_scale_seqstart_k": numbers(0, 1, 4),
            "seqstart_q": numbers(0, 7, 137),
            "seqstart_k": numbers(0, 9, 309),
        },
    ),
    Call("fmha_fwd", dtype=FP8, lengths={"D": 128, "Dv": 128}, values=FP8_KV),
    Call("fmha_bwd", "dbias bias sink d_sink randval", values={**DROPPED, "delta": ((2, 6, 5), "fp32")}),
    Call(
        "fmha_bwd",
        "alibi_slopes",
        values={**LENGTHS_Q_K, "deterministic": True, "workspace": np.zeros(1 << 22, np.uint8)},
    ),
    Call("fmha_bwd", values={**PACKED, "alibi_slopes": positive(2, 6), "deterministic": True}),
    Call(
        "fmha_bwd",
        "bias dbias",
        form="group",
        lengths=TK | {"K": 9},
        values={**GROUP, **DROPPED, "deterministic": True},
    ),
    Call("fmha_bwd", form="group", lengths=TK, values=PACKED | {"deterministic": True}),
    Call(
        "fmha_bwd",
        form="group",
        lengths=TK,
        values={**GROUP, "seqlen_q": numbers(3, 2), "seqlen_k": numbers(9, 5), "deterministic": True},
    ),
    Call("fmha_fwd_splitkv", "lse bias sink", values={"num_splits": 2}),
    Call(
        "fmha_fwd_splitkv",
        "lse alibi_slopes",
        lengths={"Bc": 3},
        values={"seqlen_k": numbers(14, 9), **PLACES, "num_splits": 1},
    ),
    Call("fmha_fwd_splitkv", "lse", form="batch_paged", values={**PAGES, "num_splits": 2}),
    Call(
        "fmha_fwd_splitkv",
        "lse",
        form="group_paged",
        values={**PAGES, "seqstart_q": numbers(0, 3, 7), "seqlen_q": numbers(3, 2)},
    ),
    Call(
        "fmha_fwd_splitkv",
        "lse",
        form="group",
        lengths=TK,
        values={"seqstart_q": numbers(0, 3, 7), "seqstart_k": numbers(0, 9, 16)},
    ),
    Call("fmha_fwd_splitkv", "lse", form="group", lengths=TK, values=PACKED),
    Call(
        "fmha_fwd_pagedkv",
        "bias sink",
        values={**PAGES, "cache_batch_idx": numbers(1, 0), "cache_leftpad": numbers(0, 3)},
        lengths={"K": 32},
    ),
    Call(
        "fmha_fwd_pagedkv",
        "alibi_slopes",
        form="group",
        values={**PAGES, "seqstart_q": numbers(0, 3, 7), "seqlen_q": numbers(3, 2)},
    ),
    Call(
        "fmha_fwd_pagedkv",
        form="group",
        values={**TABLE, "cu_seqlens_q": numbers(0, 3, 7), "cu_seqlens_k": numbers(0, 9, 16)},
    ),
    Call(
        "fmha_batch_prefill",
        "lse bias sink randval",
        lengths={"K": 30},
        values={**PAGES, "cu_seqlens_q": numbers(0, 3, 7), **DROPPED},
    ),
    Call(
        "fmha_batch_prefill",
        "lse alibi_slopes",
        values={
            "cu_seqlens_q": numbers(0, 3, 7),
            "kv_indptr": numbers(0, 2, 3),
            "kv_page_indices": numbers(3, 0, 1),
            "kv_last_page_lens": numbers(5, 16),
        },
    ),
    Call(
        "fmha_batch_prefill",
        dtype="bf16",
        values={
            **PAGES,
            "cu_seqlens_q": numbers(0, 3, 7),
            **FP8_KV,
            "q": ((7, 6, 32), FP8),
            "k": ((4, 16, 3, 32), FP8),
            "v": ((4, 16, 3, 64), FP8),
            "out": ((7, 6, 64), "bf16"),
        },
    ),
    Call(
        "fmha_batch_prefill",
        dtype=FP8,
        lengths={"Ps": 128, "D": 128, "Dv": 128},
        values={
            "block_table": numbers([1, 2], [3, 0]),
            "seqlen_k": numbers(200, 9),
            "cu_seqlens_q": numbers(0, 3, 7),
            "kv_block_descale": positive(4, 3, 2),
            "q_descale": ONE,
        },
    ),
    Call(
        "fmha_fwd_appendkv",
        "q rotary_cos rotary_sin q_gamma k_gamma",
        lengths={"R": 20, "Rd": 8},
        values={"seqlen_k": numbers(3, 15)},
    ),
    Call("fmha_fwd_appendkv", "q out lse bias sink", values={"seqlen_k": numbers(3, 15)}),
    Call(
        "fmha_fwd_appendkv", "q out lse alibi_slopes", lengths={"Bc": 3}, values={"seqlen_k": numbers(5, 15), **PLACES}
    ),
    Call("fmha_fwd_appendkv", form="paged", values={"seqlen_k": numbers(3, 15), **TABLE}),
    Call("fmha_mla_decode", "lse", values={"seqlen_k": numbers(16, 9), "out": ((2, 5, 6, 32), "fp16")}),
    Call("fmha_mla_decode", "lse", form="paged", values={**PAGES, "out": ((2, 5, 6, 32), "fp16"), "num_splits": 3}),
    Call("fmha_fwd_splitkv", dtype=FP8, of="fp8", values={**FP8_KV, "out_scale": ONE, "num_splits": 2}),
    Call("fmha_fwd_pagedkv", dtype=FP8, of="fp8", values={**PAGES, **FP8_KV, "out_scale": ONE}),
    Call(
        "fmha_fwd_pagedkv",
        form="group",
        values={**PAGES, "seqstart_q": numbers(0, 3, 7), "seqstart_k": numbers(0, 30, 39)},
    ),
    Call(
        "fmha_fwd_appendkv",
        "q out",
        dtype=FP8,
        of="fp8",
        values={"seqlen_k": numbers(3, 15), **FP8_KV, "out_scale": ONE},
    ),
    Call(
        "fused_moe",
        form="packed",
        lengths={"H": 64},
        values={
            "topk_ids": draws((40, 2), 5),
            "topk_weights": positive(40, 2),
            "gate_up": ((5, 2, 16, 64, 4), "int8"),
            "down": ((5, 1, 16, 64, 4), "int8"),
            "gate_up_scale": positive(5, 2, 2, 64),
            "down_scale": positive(5, 1, 2, 64),
            "smooth_scale": positive(5, 64),
            "down_smooth_scale": positive(5, 64),
        },
    ),
    Call(
        "fused_moe",
        lengths={"H": 64, "E": 5},
        values={
            "topk_ids": draws((40, 2), 5),
            "topk_weights": positive(40, 2),
            "gate_up_bias": positive(5, 32),
            "down_bias": positive(5, 64),
        },
    ),
    Call(
        "fused_moe",
        lengths={"H": 64, "E": 5},
        values={
            "topk_ids": draws((40, 2), 9),
            "topk_weights": positive(40, 2),
            "expert_mask": numbers(1, 0, 1, 1, 0, 1, 0, 0, 1),
            "local_tokens": numbers(33),
        },
    ),
    Call("gemm", "c bias", values={"beta": 0.5}),
    Call(
        "gemm",
        "bias row_scale column_scale",
        dtype="int8",
        of="gemm_linear",
        values={"b": draws((41, 16), 8, np.int8).T, "out": ((40, 41), "fp16")},
    ),
    Call(
        "gemm",
        dtype=FP8,
        of="gemm_fp8",
        lengths={"M": 5, "N": 140, "K": 300},
        values={"a_scale": ((5, 3), "fp32"), "b_scale": ((2, 3), "fp32"), "out": ((5, 140), "bf16")},
    ),
    Call(
        "gemm_list",
        values={
            "a": ((40,), "fp16"),
            "b": ((80,), "fp16"),
            "problems": LIST,
            "out": ((25,), "fp16"),
            "bias": positive(10),
            "layout_b": "column",
        },
    ),
    Call("gemm_multi_d", "d1 a1 b1"),
    Call("gemm_quant", "bias row_scale column_scale", dtype="int8"),
    Call("gemm_quant", "bias"),
    Call(
        "grouped_gemm",
        "bias c",
        lengths={"G": 3, "T": 42},
        values={"starts": numbers(0, 7, 30, 42), "counts": numbers(7, 0, 5), "beta": 0.5},
    ),
    Call(
        "grouped_gemm",
        "row_scale column_scale",
        dtype="int8",
        lengths={"G": 2, "T": 9, "N": 16, "K": 40},
        values={
            "b": np.arange(2 * 16 * 40).astype(np.int8).reshape(2, 16, 40).transpose(0, 2, 1),
            "starts": numbers(0, 7, 9),
            "out": ((9, 16), "bf16"),
        },
    ),
    Call(
        "grouped_gemm",
        dtype=FP8,
        of="gemm_fp8",
        lengths={"G": 2, "T": 9, "N": 16, "K": 140},
        values={
            "b": positive(2, 16, 140).astype(NUMPY[FP8]).transpose(0, 2, 1),
            "starts": numbers(0, 7, 9),
            "a_scale": ((9, 2), "fp32"),
            "b_scale": ((2, 1, 2), "fp32"),
            "out": ((9, 16), "bf16"),
        },
    ),
    Call(
        "fused_moe",
        lengths={"H": 128, "E": 5},
        values={
            "topk_ids": draws((40, 2), 5),
            "topk_weights": positive(40, 2),
            "gate_up": ((5, 256, 128), FP8),
            "down": ((5, 128, 128), FP8),
            "gate_up_scale": positive(5, 2, 1),
            "down_scale": positive(5, 1, 1),
        },
    ),
    Call(
        "group_norm",
        "gamma beta",
        lengths={"C": 64},
        values={"activation": "silu", **dict.fromkeys(("mean", "inv_std"), ((2, 32), "fp32"))},
    ),
    Call(
        "img2col",
        lengths={"B": 2, "Y": 5, "X": 6, "C": 7},
        values={"y": ((1, 2 * 4 * 5, 2 * 2 * 7), "fp16"), "filter": (2, 2)},
    ),
    Call("layernorm2d", "beta residual residual_out mean inv_std"),
    Call("layernorm2d_bwd", "dbeta"),
    Call("layernorm2d_rdquant", "beta smooth_scale residual residual_out unquantised"),
    Call("moe_smoothquant", values={"topk_ids": draws((40, 16), 42)}),
    Call(
        "moe_sorting",
        "out",
        values={
            "topk_ids": CHOSEN,
            "topk_weights": positive(40, 3),
            "experts": 41,
            "unit": 4,
            "expert_mask": numbers(*[1, 0, 1] * 13, 1, 1),
            "local_tokens": numbers(33),
            "sorted_token_ids": ((40 * 3 + 41 * 4 - 3,), "int32"),
            "sorted_weights": ((40 * 3 + 41 * 4 - 3,), "fp32"),
            "sorted_expert_ids": (((40 * 3 + 41 * 4 - 3 + 3) // 4,), "int32"),
            "total_tokens_post_pad": ((2,), "int32"),
        },
    ),
    Call("causal_conv1d", "bias", values={"initial_state": ((2, 41, 3), "fp16"), "final_state": ((2, 41, 3), "fp16")}),
    Call(
        "causal_conv1d_bwd",
        "bias dbias",
        values=dict.fromkeys(("initial_state", "dfinal_state", "dinitial_state"), ((2, 41, 3), "fp16")),
    ),
    *(
        Call(name, lengths={"B": 1, "S": 42}, values={"cu_seqlens": numbers(0, 20, 42)})
        for name in ("causal_conv1d", "causal_conv1d_bwd", "gated_delta_rule", "gated_delta_rule_bwd")
    ),
    Call(
        "gated_delta_rule",
        values=dict.fromkeys(("initial_state", "final_state"), ((2, 6, 32, 64), "fp32")) | {"qk_l2norm": True},
    ),
    Call("gated_delta_rule", form="channel", values={"qk_l2norm": True}),
    Call(
        "gated_delta_rule_bwd",
        values=dict.fromkeys(("initial_state", "dfinal_state", "dinitial_state"), ((2, 6, 32, 64), "fp32"))
        | {"qk_l2norm": True},
    ),
    Call("conv_fwd", "bias", lengths=WINDOW, values=dict.fromkeys(("residual", "y"), ((2, 16, 7), "fp16"))),
    Call("conv_fwd", "scale", lengths=WINDOW, dtype="int8", values={"y": ((2, 16, 7), "fp32")}),
    Call("conv_bwd_data", lengths={"G": 6, "X": 9, "Fx": 3}, values={"dx": ((2, 6, 11), "fp16")}),
    Call("conv_bwd_weight", lengths={"C": 6, "X": 9, "Ox": 7}, values={"dweight": ((16, 6, 3), "fp16")}),
    Call("elementwise", values={"y": ((5, 6, 7), "fp16"), "operation": "silu"}),
    Call("elementwise", values=dict.fromkeys(("x1", "x2", "x3", "y"), ((5, 6, 7), "fp16"))),
    Call(
        "pooling",
        "indices",
        values={name: ((5, 3, 3, 7), dtype) for name, dtype in (("y", "fp16"), ("indices", "int32"))}
        | {"x": ((5, 6, 7, 7), "fp16"), "window": (2,)},
    ),
    Call(
        "pooling_bwd",
        "indices",
        values={name: ((5, 3, 3, 7), dtype) for name, dtype in (("dy", "fp16"), ("indices", "int32"))}
        | dict.fromkeys(("x", "dx"), ((5, 6, 7, 7), "fp16"))
        | {"window": (2,)},
    ),
    Call("permute", values={"y": ((7, 5, 6), "fp16"), "axes": (2, 0, 1)}),
    Call("reduce", values={"y": ((5, 7), "fp16"), "axes": (1,)}),
    Call("reshape_and_cache", lengths={"T": 9, "P": 3, "Ps": 4}, values={"slot_mapping": np.arange(9)}),
    Call(
        "reshape_and_cache",
        dtype="fp8",
        lengths={"T": 9, "P": 3, "Ps": 4},
        values={"slot_mapping": np.arange(9)[::-1].copy(), "k_scale": np.full(1, 0.5, F32), "v_scale": np.ones(1, F32)},
    ),
    Call("rmsnorm2d", "residual residual_out inv_rms"),
    Call("rmsnorm2d_bwd"),
    Call("rmsnorm2d_rdquant", "smooth_scale residual residual_out unquantised"),
    Call("rotary", values={"positions": draws((2, 42), 64)}),
    Call("rotary", form="axes", values={"positions": draws((3, 2, 42), 64), "axes": draws((16,), 3)}),
    Call(
        "sample",
        "prompt generated temperatures top_ks top_ps min_ps repetition_penalties presence_penalties"
        " frequency_penalties seeds offsets logprobs",
        values={"prompt": draws((40, 3), 9), "generated": draws((40, 3), 9)}
        | {"temperatures": np.full(40, 0.7, F32), "top_ps": np.full(40, 0.9, F32), "min_ps": np.zeros(40, F32)}
        | {"repetition_penalties": np.full(40, 1.2, F32)},
    ),
    Call("gelu_and_mul"),
    Call("gelu_and_mul_bwd"),
    Call("silu_and_mul"),
    Call("silu_and_mul_bwd"),
    Call("smoothquant", "smooth_scale"),
    Call("softmax"),
    Call("merge", "lse"),
    Call("topk_softmax", values={"topk": 3, "weights": ((40, 3), "fp32"), "indices": ((40, 3), "int32")}),
    Call("topk_gating", "bias", values={"topk": 3, "weights": ((40, 3), "fp32"), "indices": ((40, 3), "int32")}),
    Call("transpose"),
]
