# SPDX-License-Identifier: MIT
"""Arguments of every operator past those by position, and the functions of a library, for type checkers.

A library has the functions of its own operators, `tilekiln` those of all; their docstrings describe each argument.
Made by `python -m codegen write` from the rooms' operator.yaml.
"""

from typing import Any, Literal, TypedDict, Unpack

from .._core.native import Stream

__all__ = ["batched_contraction", "batched_gemm", "batched_transpose", "causal_conv1d", "causal_conv1d_bwd", "conv_bwd_data", "conv_bwd_weight", "conv_fwd", "copy", "cross_entropy", "cross_entropy_bwd", "elementwise", "flatmm", "flatmm_quant", "fmha_batch_prefill", "fmha_bwd", "fmha_fwd", "fmha_fwd_appendkv", "fmha_fwd_pagedkv", "fmha_fwd_splitkv", "fmha_mla_decode", "fused_moe", "gated_delta_rule", "gated_delta_rule_bwd", "gelu_and_mul", "gelu_and_mul_bwd", "gemm", "gemm_list", "gemm_multi_d", "gemm_quant", "group_norm", "grouped_gemm", "img2col", "layernorm2d", "layernorm2d_bwd", "layernorm2d_rdquant", "merge", "moe_smoothquant", "moe_sorting", "permute", "pooling", "pooling_bwd", "reduce", "reshape_and_cache", "rmsnorm2d", "rmsnorm2d_bwd", "rmsnorm2d_rdquant", "rotary", "sample", "silu_and_mul", "silu_and_mul_bwd", "smoothquant", "softmax", "topk_gating", "topk_softmax", "transpose"]

Array = Any
"""A NumPy array, a torch tensor or any object with __dlpack__."""

class RunArguments(TypedDict, total=False):
    """Arguments of every call beside its arrays: threads, instance and stream."""

    num_threads: int
    instance: int | str
    stream: Stream | None

class BatchedContractionArguments(RunArguments, total=False):
    out: Array | None
    batch_dims: int
    k_dims: int
    alpha: float

class BatchedGemmArguments(RunArguments, total=False):
    out: Array | None
    bias: Array | None
    c: Array | None
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float

class BatchedTransposeArguments(RunArguments, total=False):
    y: Array | None
    layout: Literal["nchw", "nhwc"]

class CausalConv1dArguments(RunArguments, total=False):
    bias: Array | None
    initial_state: Array | None
    cu_seqlens: Array | None
    y: Array | None
    final_state: Array | None
    activation: Literal["none", "silu"]
    return_final_state: bool

class CausalConv1dBwdArguments(RunArguments, total=False):
    bias: Array | None
    initial_state: Array | None
    cu_seqlens: Array | None
    dfinal_state: Array | None
    dx: Array | None
    dweight: Array | None
    dbias: Array | None
    dinitial_state: Array | None
    activation: Literal["none", "silu"]
    return_dbias: bool
    return_dinitial_state: bool

class ConvBwdDataArguments(RunArguments, total=False):
    dx: Array | None
    stride: int | tuple[int, ...] | list[int]
    dilation: int | tuple[int, ...] | list[int]
    padding: int | tuple[int, ...] | list[int]
    groups: int
    lengths: int | tuple[int, ...] | list[int]

class ConvBwdWeightArguments(RunArguments, total=False):
    dweight: Array | None
    stride: int | tuple[int, ...] | list[int]
    dilation: int | tuple[int, ...] | list[int]
    padding: int | tuple[int, ...] | list[int]
    groups: int
    filter: int | tuple[int, ...] | list[int]
    out_dtype: Literal["fp16", "fp32", "bf16"] | None

class ConvFwdArguments(RunArguments, total=False):
    y: Array | None
    bias: Array | None
    residual: Array | None
    scale: Array | None
    stride: int | tuple[int, ...] | list[int]
    dilation: int | tuple[int, ...] | list[int]
    padding: int | tuple[int, ...] | list[int]
    groups: int
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    out_dtype: Literal["int32", "fp32", "fp16", "bf16"] | None

class CopyArguments(RunArguments, total=False):
    y: Array | None

class CrossEntropyArguments(RunArguments, total=False):
    precomputed_lse: Array | None
    loss: Array | None
    lse: Array | None
    label_smoothing: float
    logit_scale: float
    lse_square_scale: float
    ignore_index: int
    first_class: int
    total_classes: int
    return_lse: bool

class CrossEntropyBwdArguments(RunArguments, total=False):
    dlogits: Array | None
    label_smoothing: float
    logit_scale: float
    lse_square_scale: float
    ignore_index: int
    first_class: int
    total_classes: int

class ElementwiseArguments(RunArguments, total=False):
    y: Array | None
    operation: Literal["add", "sub", "mul", "div", "max", "min", "neg", "abs", "square", "sqrt", "rsqrt", "reciprocal", "exp", "tanh", "relu", "sigmoid", "silu", "gelu", "gelu_tanh"]

class FlatmmArguments(RunArguments, total=False):
    out: Array | None
    bias: Array | None
    c: Array | None
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float

class FlatmmQuantArguments(RunArguments, total=False):
    out: Array | None
    a_scale: Array | None
    bias: Array | None
    c: Array | None
    b_zero: Array | None
    a_norm: Array | None
    b_up: Array | None
    b_up_scale: Array | None
    group: int
    quantise_a: bool
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float
    norm_epsilon: float
    norm_rounding: Literal["pytorch", "transformers"]
    b_is_constant: bool
    b_factor: float
    out_dtype: Literal["fp16", "fp32", "bf16"] | None

class FmhaBatchPrefillArguments(RunArguments, total=False):
    out: Array | None
    lse: Array | None
    randval: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    kv_block_descale: Array | None
    cu_seqlens_q: Array | None
    kv_indptr: Array | None
    kv_page_indices: Array | None
    kv_last_page_lens: Array | None
    block_table: Array | None
    seqlen_k: Array | None
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    max_seqlen_q: int
    max_seqlen_k: int
    rng: tuple[int, int]
    dropout_p: float
    return_lse: bool

class FmhaBwdArguments(RunArguments, total=False):
    dq: Array | None
    dk: Array | None
    dv: Array | None
    dbias: Array | bool | None
    d_sink: Array | bool | None
    delta: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    seqstart_q: Array | None
    seqstart_k: Array | None
    seqlen_q: Array | None
    seqlen_k: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    randval: Array | None
    workspace: Array | None
    rng: tuple[int, int]
    dropout_p: float
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    max_seqlen_q: int
    max_seqlen_k: int
    layout: Literal["bshd", "bhsd"]
    deterministic: bool
    workers: int

class FmhaFwdArguments(RunArguments, total=False):
    out: Array | None
    lse: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    block_scale_seqstart_q: Array | None
    block_scale_seqstart_k: Array | None
    seqstart_q: Array | None
    seqstart_k: Array | None
    seqlen_q: Array | None
    seqlen_k: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    randval: Array | None
    rng: tuple[int, int]
    dropout_p: float
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    min_seqlen_q: int
    max_seqlen_q: int
    max_seqlen_k: int
    layout: Literal["bshd", "bhsd"]
    out_dtype: Literal["bf16", "fp32"] | None
    return_lse: bool

class FmhaFwdAppendkvArguments(RunArguments, total=False):
    out: Array | None
    lse: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    out_scale: Array | None
    seqlen_k: Array | None
    rotary_cos: Array | None
    rotary_sin: Array | None
    block_table: Array | None
    cache_batch_idx: Array | None
    cache_leftpad: Array | None
    q_gamma: Array | None
    k_gamma: Array | None
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    max_seqlen_k: int
    rotary_interleaved: bool
    norm_epsilon: float
    norm_rounding: Literal["pytorch", "transformers"]
    num_splits: int
    layout: Literal["bshd", "bhsd"]
    return_lse: bool
    attend: bool | None

class FmhaFwdPagedkvArguments(RunArguments, total=False):
    out: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    out_scale: Array | None
    seqstart_q: Array | None
    seqstart_k: Array | None
    seqlen_q: Array | None
    seqlen_k: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    block_table: Array | None
    cache_batch_idx: Array | None
    cache_leftpad: Array | None
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    max_seqlen_q: int
    max_seqlen_k: int
    is_gappy: bool
    layout: Literal["bshd", "bhsd"]

class FmhaFwdSplitkvArguments(RunArguments, total=False):
    out: Array | None
    lse: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    out_scale: Array | None
    seqstart_q: Array | None
    seqstart_k: Array | None
    seqlen_q: Array | None
    seqlen_k: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    block_table: Array | None
    cache_batch_idx: Array | None
    cache_leftpad: Array | None
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    max_seqlen_q: int
    max_seqlen_k: int
    is_gappy: bool
    num_splits: int
    layout: Literal["bshd", "bhsd"]
    return_lse: bool

class FmhaMlaDecodeArguments(RunArguments, total=False):
    out: Array | None
    lse: Array | None
    seqlen_k: Array | None
    block_table: Array | None
    softmax_scale: float | None
    causal: bool
    hdim_v: int
    num_splits: int
    return_lse: bool

class FusedMoeArguments(RunArguments, total=False):
    gate_up_scale: Array | None
    down_scale: Array | None
    smooth_scale: Array | None
    down_smooth_scale: Array | None
    expert_mask: Array | None
    gate_up_bias: Array | None
    down_bias: Array | None
    local_tokens: Array | None
    out: Array | None
    group: int
    quantise_x: bool
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "clamped_swiglu"]
    limit: float
    alpha: float

class GatedDeltaRuleArguments(RunArguments, total=False):
    initial_state: Array | None
    cu_seqlens: Array | None
    out: Array | None
    final_state: Array | None
    scale: float | None
    qk_l2norm: bool
    update: Literal["delta", "add"]
    return_final_state: bool

class GatedDeltaRuleBwdArguments(RunArguments, total=False):
    initial_state: Array | None
    cu_seqlens: Array | None
    dfinal_state: Array | None
    dq: Array | None
    dk: Array | None
    dv: Array | None
    dg: Array | None
    dbeta: Array | None
    dinitial_state: Array | None
    scale: float | None
    qk_l2norm: bool
    update: Literal["delta", "add"]
    return_dinitial_state: bool

class GeluAndMulArguments(RunArguments, total=False):
    y: Array | None
    approximate: Literal["none", "tanh"]

class GeluAndMulBwdArguments(RunArguments, total=False):
    dgate: Array | None
    dup: Array | None
    approximate: Literal["none", "tanh"]

class GemmArguments(RunArguments, total=False):
    out: Array | None
    c: Array | None
    bias: Array | None
    row_scale: Array | None
    column_scale: Array | None
    a_scale: Array | None
    b_scale: Array | None
    a_norm: Array | None
    b_up: Array | None
    alpha: float
    beta: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    precision: Literal["full", "bf16x3", "bf16x6"]
    norm_epsilon: float
    norm_rounding: Literal["pytorch", "transformers"]
    b_is_constant: bool
    out_dtype: Literal["fp16", "fp32", "bf16", "int32"] | None

class GemmListArguments(RunArguments, total=False):
    out: Array | None
    bias: Array | None
    out_length: int
    layout_a: Literal["row", "column"]
    layout_b: Literal["column", "row"]
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float

class GemmMultiDArguments(RunArguments, total=False):
    d1: Array | None
    out: Array | None
    a1: Array | None
    b1: Array | None
    elementwise: Literal["add", "multiply"]
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    a_elementwise: Literal["add", "multiply"]
    b_elementwise: Literal["add", "multiply"]

class GemmQuantArguments(RunArguments, total=False):
    out: Array | None
    out_scale: Array | None
    bias: Array | None
    row_scale: Array | None
    column_scale: Array | None
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    static_scale: float
    out_dtype: Literal["int8", "fp8"] | None

class GroupNormArguments(RunArguments, total=False):
    y: Array | None
    mean: Array | None
    inv_std: Array | None
    groups: int
    epsilon: float
    activation: Literal["none", "silu"]
    layout: Literal["nchw", "nhwc"]
    return_mean: bool
    return_inv_std: bool

class GroupedGemmArguments(RunArguments, total=False):
    counts: Array | None
    out: Array | None
    bias: Array | None
    c: Array | None
    a_scale: Array | None
    b_scale: Array | None
    row_scale: Array | None
    column_scale: Array | None
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float

class Img2colArguments(RunArguments, total=False):
    y: Array | None
    filter: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    groups: int

class Layernorm2dArguments(RunArguments, total=False):
    y: Array | None
    residual: Array | None
    residual_out: Array | None
    mean: Array | None
    inv_std: Array | None
    epsilon: float
    return_residual: bool
    return_mean: bool
    return_inv_std: bool

class Layernorm2dBwdArguments(RunArguments, total=False):
    dx: Array | None
    dgamma: Array | None
    dbeta: Array | None
    return_dbeta: bool

class Layernorm2dRdquantArguments(RunArguments, total=False):
    y: Array | None
    y_scale: Array | None
    smooth_scale: Array | None
    residual: Array | None
    residual_out: Array | None
    unquantised: Array | None
    epsilon: float
    return_residual: bool
    return_unquantised: bool
    y_dtype: Literal["int8", "fp8"] | None

class MergeArguments(RunArguments, total=False):
    out: Array | None
    lse: Array | None
    return_lse: bool

class MoeSmoothquantArguments(RunArguments, total=False):
    y: Array | None
    y_scale: Array | None
    y_dtype: Literal["int8", "fp8"] | None

class MoeSortingArguments(RunArguments, total=False):
    expert_mask: Array | None
    local_tokens: Array | None
    sorted_token_ids: Array | None
    sorted_weights: Array | None
    sorted_expert_ids: Array | None
    total_tokens_post_pad: Array | None
    out: Array | None
    experts: int
    unit: int
    skip_empty: bool

class PermuteArguments(RunArguments, total=False):
    y: Array | None
    axes: int | tuple[int, ...] | list[int]

class PoolingArguments(RunArguments, total=False):
    y: Array | None
    indices: Array | None
    window: int | tuple[int, ...] | list[int]
    operation: Literal["max", "mean"]
    stride: int | tuple[int, ...] | list[int]
    dilation: int | tuple[int, ...] | list[int]
    padding: int | tuple[int, ...] | list[int]
    ceil_mode: bool
    count_padding: bool
    layout: Literal["nhwc", "nchw"]
    return_indices: bool

class PoolingBwdArguments(RunArguments, total=False):
    indices: Array | None
    dx: Array | None
    window: int | tuple[int, ...] | list[int]
    operation: Literal["max", "mean"]
    stride: int | tuple[int, ...] | list[int]
    dilation: int | tuple[int, ...] | list[int]
    padding: int | tuple[int, ...] | list[int]
    ceil_mode: bool
    count_padding: bool
    layout: Literal["nhwc", "nchw"]

class ReduceArguments(RunArguments, total=False):
    y: Array | None
    axes: int | tuple[int, ...] | list[int]
    operation: Literal["sum", "mean", "max", "min"]
    keepdim: bool

class ReshapeAndCacheArguments(RunArguments, total=False):
    k_scale: Array | None
    v_scale: Array | None

class Rmsnorm2dArguments(RunArguments, total=False):
    y: Array | None
    residual: Array | None
    residual_out: Array | None
    inv_rms: Array | None
    epsilon: float
    rounding: Literal["pytorch", "transformers"]
    return_residual: bool
    return_inv_rms: bool

class Rmsnorm2dBwdArguments(RunArguments, total=False):
    dx: Array | None
    dgamma: Array | None

class Rmsnorm2dRdquantArguments(RunArguments, total=False):
    y: Array | None
    y_scale: Array | None
    smooth_scale: Array | None
    residual: Array | None
    residual_out: Array | None
    unquantised: Array | None
    epsilon: float
    rounding: Literal["pytorch", "transformers"]
    return_residual: bool
    return_unquantised: bool
    y_dtype: Literal["int8", "fp8"] | None

class RotaryArguments(RunArguments, total=False):
    positions: Array | None
    y: Array | None
    axes: Array | None
    start: int
    interleaved: bool
    conjugate: bool

class SampleArguments(RunArguments, total=False):
    prompt: Array | None
    generated: Array | None
    temperatures: Array | None
    top_ks: Array | None
    top_ps: Array | None
    min_ps: Array | None
    repetition_penalties: Array | None
    presence_penalties: Array | None
    frequency_penalties: Array | None
    seeds: Array | None
    offsets: Array | None
    tokens: Array | None
    logprobs: Array | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    rng: tuple[int, int]
    logprob_of: Literal["drawn", "logits"]
    return_logprobs: bool

class SiluAndMulArguments(RunArguments, total=False):
    y: Array | None

class SiluAndMulBwdArguments(RunArguments, total=False):
    dgate: Array | None
    dup: Array | None

class SmoothquantArguments(RunArguments, total=False):
    y: Array | None
    y_scale: Array | None
    y_dtype: Literal["int8", "fp8"] | None

class SoftmaxArguments(RunArguments, total=False):
    y: Array | None

class TopkGatingArguments(RunArguments, total=False):
    bias: Array | None
    weights: Array | None
    indices: Array | None
    topk: int
    score: Literal["softmax", "sigmoid", "sqrtsoftplus"]
    groups: int
    topk_groups: int
    group_score: Literal["two", "largest"]
    renormalise: bool
    scaling: float
    shared: int
    shared_weight: float

class TopkSoftmaxArguments(RunArguments, total=False):
    weights: Array | None
    indices: Array | None
    topk: int
    renormalise: bool

class TransposeArguments(RunArguments, total=False):
    y: Array | None

class Functions:
    def batched_contraction(self, a: Array, b: Array, **arguments: Unpack[BatchedContractionArguments]) -> Any: ...
    def batched_contraction_find(self, a: Array, b: Array, **arguments: Unpack[BatchedContractionArguments]) -> int: ...
    def batched_contraction_why(self, a: Array, b: Array, **arguments: Unpack[BatchedContractionArguments]) -> str: ...
    def batched_contraction_describe(self, a: Array, b: Array, **arguments: Unpack[BatchedContractionArguments]) -> str: ...
    def batched_gemm(self, a: Array, b: Array, **arguments: Unpack[BatchedGemmArguments]) -> Any: ...
    def batched_gemm_find(self, a: Array, b: Array, **arguments: Unpack[BatchedGemmArguments]) -> int: ...
    def batched_gemm_why(self, a: Array, b: Array, **arguments: Unpack[BatchedGemmArguments]) -> str: ...
    def batched_gemm_describe(self, a: Array, b: Array, **arguments: Unpack[BatchedGemmArguments]) -> str: ...
    def batched_transpose(self, x: Array, **arguments: Unpack[BatchedTransposeArguments]) -> Any: ...
    def batched_transpose_find(self, x: Array, **arguments: Unpack[BatchedTransposeArguments]) -> int: ...
    def batched_transpose_why(self, x: Array, **arguments: Unpack[BatchedTransposeArguments]) -> str: ...
    def batched_transpose_describe(self, x: Array, **arguments: Unpack[BatchedTransposeArguments]) -> str: ...
    def causal_conv1d(self, x: Array, weight: Array, **arguments: Unpack[CausalConv1dArguments]) -> Any: ...
    def causal_conv1d_find(self, x: Array, weight: Array, **arguments: Unpack[CausalConv1dArguments]) -> int: ...
    def causal_conv1d_why(self, x: Array, weight: Array, **arguments: Unpack[CausalConv1dArguments]) -> str: ...
    def causal_conv1d_describe(self, x: Array, weight: Array, **arguments: Unpack[CausalConv1dArguments]) -> str: ...
    def causal_conv1d_bwd(self, dy: Array, x: Array, weight: Array, **arguments: Unpack[CausalConv1dBwdArguments]) -> Any: ...
    def causal_conv1d_bwd_find(self, dy: Array, x: Array, weight: Array, **arguments: Unpack[CausalConv1dBwdArguments]) -> int: ...
    def causal_conv1d_bwd_why(self, dy: Array, x: Array, weight: Array, **arguments: Unpack[CausalConv1dBwdArguments]) -> str: ...
    def causal_conv1d_bwd_describe(self, dy: Array, x: Array, weight: Array, **arguments: Unpack[CausalConv1dBwdArguments]) -> str: ...
    def conv_bwd_data(self, dy: Array, weight: Array, **arguments: Unpack[ConvBwdDataArguments]) -> Any: ...
    def conv_bwd_data_find(self, dy: Array, weight: Array, **arguments: Unpack[ConvBwdDataArguments]) -> int: ...
    def conv_bwd_data_why(self, dy: Array, weight: Array, **arguments: Unpack[ConvBwdDataArguments]) -> str: ...
    def conv_bwd_data_describe(self, dy: Array, weight: Array, **arguments: Unpack[ConvBwdDataArguments]) -> str: ...
    def conv_bwd_weight(self, x: Array, dy: Array, **arguments: Unpack[ConvBwdWeightArguments]) -> Any: ...
    def conv_bwd_weight_find(self, x: Array, dy: Array, **arguments: Unpack[ConvBwdWeightArguments]) -> int: ...
    def conv_bwd_weight_why(self, x: Array, dy: Array, **arguments: Unpack[ConvBwdWeightArguments]) -> str: ...
    def conv_bwd_weight_describe(self, x: Array, dy: Array, **arguments: Unpack[ConvBwdWeightArguments]) -> str: ...
    def conv_fwd(self, x: Array, weight: Array, **arguments: Unpack[ConvFwdArguments]) -> Any: ...
    def conv_fwd_find(self, x: Array, weight: Array, **arguments: Unpack[ConvFwdArguments]) -> int: ...
    def conv_fwd_why(self, x: Array, weight: Array, **arguments: Unpack[ConvFwdArguments]) -> str: ...
    def conv_fwd_describe(self, x: Array, weight: Array, **arguments: Unpack[ConvFwdArguments]) -> str: ...
    def copy(self, x: Array, **arguments: Unpack[CopyArguments]) -> Any: ...
    def copy_find(self, x: Array, **arguments: Unpack[CopyArguments]) -> int: ...
    def copy_why(self, x: Array, **arguments: Unpack[CopyArguments]) -> str: ...
    def copy_describe(self, x: Array, **arguments: Unpack[CopyArguments]) -> str: ...
    def cross_entropy(self, logits: Array, labels: Array, **arguments: Unpack[CrossEntropyArguments]) -> Any: ...
    def cross_entropy_find(self, logits: Array, labels: Array, **arguments: Unpack[CrossEntropyArguments]) -> int: ...
    def cross_entropy_why(self, logits: Array, labels: Array, **arguments: Unpack[CrossEntropyArguments]) -> str: ...
    def cross_entropy_describe(self, logits: Array, labels: Array, **arguments: Unpack[CrossEntropyArguments]) -> str: ...
    def cross_entropy_bwd(self, dloss: Array, logits: Array, labels: Array, lse: Array, **arguments: Unpack[CrossEntropyBwdArguments]) -> Any: ...
    def cross_entropy_bwd_find(self, dloss: Array, logits: Array, labels: Array, lse: Array, **arguments: Unpack[CrossEntropyBwdArguments]) -> int: ...
    def cross_entropy_bwd_why(self, dloss: Array, logits: Array, labels: Array, lse: Array, **arguments: Unpack[CrossEntropyBwdArguments]) -> str: ...
    def cross_entropy_bwd_describe(self, dloss: Array, logits: Array, labels: Array, lse: Array, **arguments: Unpack[CrossEntropyBwdArguments]) -> str: ...
    def elementwise(self, x: Array, x1: Array | None, x2: Array | None, x3: Array | None, **arguments: Unpack[ElementwiseArguments]) -> Any: ...
    def elementwise_find(self, x: Array, x1: Array | None, x2: Array | None, x3: Array | None, **arguments: Unpack[ElementwiseArguments]) -> int: ...
    def elementwise_why(self, x: Array, x1: Array | None, x2: Array | None, x3: Array | None, **arguments: Unpack[ElementwiseArguments]) -> str: ...
    def elementwise_describe(self, x: Array, x1: Array | None, x2: Array | None, x3: Array | None, **arguments: Unpack[ElementwiseArguments]) -> str: ...
    def flatmm(self, a: Array, b: Array, **arguments: Unpack[FlatmmArguments]) -> Any: ...
    def flatmm_find(self, a: Array, b: Array, **arguments: Unpack[FlatmmArguments]) -> int: ...
    def flatmm_why(self, a: Array, b: Array, **arguments: Unpack[FlatmmArguments]) -> str: ...
    def flatmm_describe(self, a: Array, b: Array, **arguments: Unpack[FlatmmArguments]) -> str: ...
    def flatmm_quant(self, a: Array, b: Array, b_scale: Array, **arguments: Unpack[FlatmmQuantArguments]) -> Any: ...
    def flatmm_quant_find(self, a: Array, b: Array, b_scale: Array, **arguments: Unpack[FlatmmQuantArguments]) -> int: ...
    def flatmm_quant_why(self, a: Array, b: Array, b_scale: Array, **arguments: Unpack[FlatmmQuantArguments]) -> str: ...
    def flatmm_quant_describe(self, a: Array, b: Array, b_scale: Array, **arguments: Unpack[FlatmmQuantArguments]) -> str: ...
    def fmha_batch_prefill(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaBatchPrefillArguments]) -> Any: ...
    def fmha_batch_prefill_find(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaBatchPrefillArguments]) -> int: ...
    def fmha_batch_prefill_why(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaBatchPrefillArguments]) -> str: ...
    def fmha_batch_prefill_describe(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaBatchPrefillArguments]) -> str: ...
    def fmha_bwd(self, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **arguments: Unpack[FmhaBwdArguments]) -> Any: ...
    def fmha_bwd_find(self, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **arguments: Unpack[FmhaBwdArguments]) -> tuple[int, int, int]: ...
    def fmha_bwd_why(self, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **arguments: Unpack[FmhaBwdArguments]) -> str: ...
    def fmha_bwd_describe(self, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **arguments: Unpack[FmhaBwdArguments]) -> str: ...
    def fmha_bwd_workspace_size(self, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **arguments: Unpack[FmhaBwdArguments]) -> int: ...
    def fmha_fwd(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdArguments]) -> Any: ...
    def fmha_fwd_find(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdArguments]) -> int: ...
    def fmha_fwd_why(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdArguments]) -> str: ...
    def fmha_fwd_describe(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdArguments]) -> str: ...
    def fmha_fwd_appendkv(self, q: Array | None, k: Array, v: Array, knew: Array, vnew: Array, **arguments: Unpack[FmhaFwdAppendkvArguments]) -> Any: ...
    def fmha_fwd_appendkv_find(self, q: Array | None, k: Array, v: Array, knew: Array, vnew: Array, **arguments: Unpack[FmhaFwdAppendkvArguments]) -> tuple[int, int, int]: ...
    def fmha_fwd_appendkv_why(self, q: Array | None, k: Array, v: Array, knew: Array, vnew: Array, **arguments: Unpack[FmhaFwdAppendkvArguments]) -> str: ...
    def fmha_fwd_appendkv_describe(self, q: Array | None, k: Array, v: Array, knew: Array, vnew: Array, **arguments: Unpack[FmhaFwdAppendkvArguments]) -> str: ...
    def fmha_fwd_pagedkv(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdPagedkvArguments]) -> Any: ...
    def fmha_fwd_pagedkv_find(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdPagedkvArguments]) -> int: ...
    def fmha_fwd_pagedkv_why(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdPagedkvArguments]) -> str: ...
    def fmha_fwd_pagedkv_describe(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdPagedkvArguments]) -> str: ...
    def fmha_fwd_splitkv(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdSplitkvArguments]) -> Any: ...
    def fmha_fwd_splitkv_find(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdSplitkvArguments]) -> tuple[int, int]: ...
    def fmha_fwd_splitkv_why(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdSplitkvArguments]) -> str: ...
    def fmha_fwd_splitkv_describe(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdSplitkvArguments]) -> str: ...
    def fmha_fwd_splitkv_num_splits(self, q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdSplitkvArguments]) -> int: ...
    def fmha_mla_decode(self, q: Array, cache: Array, **arguments: Unpack[FmhaMlaDecodeArguments]) -> Any: ...
    def fmha_mla_decode_find(self, q: Array, cache: Array, **arguments: Unpack[FmhaMlaDecodeArguments]) -> int: ...
    def fmha_mla_decode_why(self, q: Array, cache: Array, **arguments: Unpack[FmhaMlaDecodeArguments]) -> str: ...
    def fmha_mla_decode_describe(self, q: Array, cache: Array, **arguments: Unpack[FmhaMlaDecodeArguments]) -> str: ...
    def fused_moe(self, x: Array, topk_ids: Array, topk_weights: Array, gate_up: Array, down: Array, **arguments: Unpack[FusedMoeArguments]) -> Any: ...
    def fused_moe_find(self, x: Array, topk_ids: Array, topk_weights: Array, gate_up: Array, down: Array, **arguments: Unpack[FusedMoeArguments]) -> int: ...
    def fused_moe_why(self, x: Array, topk_ids: Array, topk_weights: Array, gate_up: Array, down: Array, **arguments: Unpack[FusedMoeArguments]) -> str: ...
    def fused_moe_describe(self, x: Array, topk_ids: Array, topk_weights: Array, gate_up: Array, down: Array, **arguments: Unpack[FusedMoeArguments]) -> str: ...
    def gated_delta_rule(self, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleArguments]) -> Any: ...
    def gated_delta_rule_find(self, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleArguments]) -> int: ...
    def gated_delta_rule_why(self, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleArguments]) -> str: ...
    def gated_delta_rule_describe(self, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleArguments]) -> str: ...
    def gated_delta_rule_bwd(self, dout: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleBwdArguments]) -> Any: ...
    def gated_delta_rule_bwd_find(self, dout: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleBwdArguments]) -> int: ...
    def gated_delta_rule_bwd_why(self, dout: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleBwdArguments]) -> str: ...
    def gated_delta_rule_bwd_describe(self, dout: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleBwdArguments]) -> str: ...
    def gelu_and_mul(self, gate: Array, up: Array, **arguments: Unpack[GeluAndMulArguments]) -> Any: ...
    def gelu_and_mul_find(self, gate: Array, up: Array, **arguments: Unpack[GeluAndMulArguments]) -> int: ...
    def gelu_and_mul_why(self, gate: Array, up: Array, **arguments: Unpack[GeluAndMulArguments]) -> str: ...
    def gelu_and_mul_describe(self, gate: Array, up: Array, **arguments: Unpack[GeluAndMulArguments]) -> str: ...
    def gelu_and_mul_bwd(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[GeluAndMulBwdArguments]) -> Any: ...
    def gelu_and_mul_bwd_find(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[GeluAndMulBwdArguments]) -> int: ...
    def gelu_and_mul_bwd_why(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[GeluAndMulBwdArguments]) -> str: ...
    def gelu_and_mul_bwd_describe(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[GeluAndMulBwdArguments]) -> str: ...
    def gemm(self, a: Array, b: Array, **arguments: Unpack[GemmArguments]) -> Any: ...
    def gemm_find(self, a: Array, b: Array, **arguments: Unpack[GemmArguments]) -> int: ...
    def gemm_why(self, a: Array, b: Array, **arguments: Unpack[GemmArguments]) -> str: ...
    def gemm_describe(self, a: Array, b: Array, **arguments: Unpack[GemmArguments]) -> str: ...
    def gemm_list(self, a: Array, b: Array, problems: Array, **arguments: Unpack[GemmListArguments]) -> Any: ...
    def gemm_list_find(self, a: Array, b: Array, problems: Array, **arguments: Unpack[GemmListArguments]) -> int: ...
    def gemm_list_why(self, a: Array, b: Array, problems: Array, **arguments: Unpack[GemmListArguments]) -> str: ...
    def gemm_list_describe(self, a: Array, b: Array, problems: Array, **arguments: Unpack[GemmListArguments]) -> str: ...
    def gemm_multi_d(self, a: Array, b: Array, d0: Array, **arguments: Unpack[GemmMultiDArguments]) -> Any: ...
    def gemm_multi_d_find(self, a: Array, b: Array, d0: Array, **arguments: Unpack[GemmMultiDArguments]) -> int: ...
    def gemm_multi_d_why(self, a: Array, b: Array, d0: Array, **arguments: Unpack[GemmMultiDArguments]) -> str: ...
    def gemm_multi_d_describe(self, a: Array, b: Array, d0: Array, **arguments: Unpack[GemmMultiDArguments]) -> str: ...
    def gemm_quant(self, a: Array, b: Array, **arguments: Unpack[GemmQuantArguments]) -> Any: ...
    def gemm_quant_find(self, a: Array, b: Array, **arguments: Unpack[GemmQuantArguments]) -> int: ...
    def gemm_quant_why(self, a: Array, b: Array, **arguments: Unpack[GemmQuantArguments]) -> str: ...
    def gemm_quant_describe(self, a: Array, b: Array, **arguments: Unpack[GemmQuantArguments]) -> str: ...
    def group_norm(self, x: Array, gamma: Array | None, beta: Array | None, **arguments: Unpack[GroupNormArguments]) -> Any: ...
    def group_norm_find(self, x: Array, gamma: Array | None, beta: Array | None, **arguments: Unpack[GroupNormArguments]) -> int: ...
    def group_norm_why(self, x: Array, gamma: Array | None, beta: Array | None, **arguments: Unpack[GroupNormArguments]) -> str: ...
    def group_norm_describe(self, x: Array, gamma: Array | None, beta: Array | None, **arguments: Unpack[GroupNormArguments]) -> str: ...
    def grouped_gemm(self, a: Array, b: Array, starts: Array, **arguments: Unpack[GroupedGemmArguments]) -> Any: ...
    def grouped_gemm_find(self, a: Array, b: Array, starts: Array, **arguments: Unpack[GroupedGemmArguments]) -> int: ...
    def grouped_gemm_why(self, a: Array, b: Array, starts: Array, **arguments: Unpack[GroupedGemmArguments]) -> str: ...
    def grouped_gemm_describe(self, a: Array, b: Array, starts: Array, **arguments: Unpack[GroupedGemmArguments]) -> str: ...
    def img2col(self, x: Array, **arguments: Unpack[Img2colArguments]) -> Any: ...
    def img2col_find(self, x: Array, **arguments: Unpack[Img2colArguments]) -> int: ...
    def img2col_why(self, x: Array, **arguments: Unpack[Img2colArguments]) -> str: ...
    def img2col_describe(self, x: Array, **arguments: Unpack[Img2colArguments]) -> str: ...
    def layernorm2d(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dArguments]) -> Any: ...
    def layernorm2d_find(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dArguments]) -> int: ...
    def layernorm2d_why(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dArguments]) -> str: ...
    def layernorm2d_describe(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dArguments]) -> str: ...
    def layernorm2d_bwd(self, dy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, **arguments: Unpack[Layernorm2dBwdArguments]) -> Any: ...
    def layernorm2d_bwd_find(self, dy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, **arguments: Unpack[Layernorm2dBwdArguments]) -> int: ...
    def layernorm2d_bwd_why(self, dy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, **arguments: Unpack[Layernorm2dBwdArguments]) -> str: ...
    def layernorm2d_bwd_describe(self, dy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, **arguments: Unpack[Layernorm2dBwdArguments]) -> str: ...
    def layernorm2d_rdquant(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dRdquantArguments]) -> Any: ...
    def layernorm2d_rdquant_find(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dRdquantArguments]) -> int: ...
    def layernorm2d_rdquant_why(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dRdquantArguments]) -> str: ...
    def layernorm2d_rdquant_describe(self, x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dRdquantArguments]) -> str: ...
    def merge(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, **arguments: Unpack[MergeArguments]) -> Any: ...
    def merge_find(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, **arguments: Unpack[MergeArguments]) -> int: ...
    def merge_why(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, **arguments: Unpack[MergeArguments]) -> str: ...
    def merge_describe(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, **arguments: Unpack[MergeArguments]) -> str: ...
    def moe_smoothquant(self, x: Array, smooth_scale: Array, topk_ids: Array, **arguments: Unpack[MoeSmoothquantArguments]) -> Any: ...
    def moe_smoothquant_find(self, x: Array, smooth_scale: Array, topk_ids: Array, **arguments: Unpack[MoeSmoothquantArguments]) -> int: ...
    def moe_smoothquant_why(self, x: Array, smooth_scale: Array, topk_ids: Array, **arguments: Unpack[MoeSmoothquantArguments]) -> str: ...
    def moe_smoothquant_describe(self, x: Array, smooth_scale: Array, topk_ids: Array, **arguments: Unpack[MoeSmoothquantArguments]) -> str: ...
    def moe_sorting(self, topk_ids: Array, topk_weights: Array, **arguments: Unpack[MoeSortingArguments]) -> Any: ...
    def moe_sorting_find(self, topk_ids: Array, topk_weights: Array, **arguments: Unpack[MoeSortingArguments]) -> int: ...
    def moe_sorting_why(self, topk_ids: Array, topk_weights: Array, **arguments: Unpack[MoeSortingArguments]) -> str: ...
    def moe_sorting_describe(self, topk_ids: Array, topk_weights: Array, **arguments: Unpack[MoeSortingArguments]) -> str: ...
    def permute(self, x: Array, **arguments: Unpack[PermuteArguments]) -> Any: ...
    def permute_find(self, x: Array, **arguments: Unpack[PermuteArguments]) -> int: ...
    def permute_why(self, x: Array, **arguments: Unpack[PermuteArguments]) -> str: ...
    def permute_describe(self, x: Array, **arguments: Unpack[PermuteArguments]) -> str: ...
    def pooling(self, x: Array, **arguments: Unpack[PoolingArguments]) -> Any: ...
    def pooling_find(self, x: Array, **arguments: Unpack[PoolingArguments]) -> int: ...
    def pooling_why(self, x: Array, **arguments: Unpack[PoolingArguments]) -> str: ...
    def pooling_describe(self, x: Array, **arguments: Unpack[PoolingArguments]) -> str: ...
    def pooling_bwd(self, dy: Array, x: Array, **arguments: Unpack[PoolingBwdArguments]) -> Any: ...
    def pooling_bwd_find(self, dy: Array, x: Array, **arguments: Unpack[PoolingBwdArguments]) -> int: ...
    def pooling_bwd_why(self, dy: Array, x: Array, **arguments: Unpack[PoolingBwdArguments]) -> str: ...
    def pooling_bwd_describe(self, dy: Array, x: Array, **arguments: Unpack[PoolingBwdArguments]) -> str: ...
    def reduce(self, x: Array, **arguments: Unpack[ReduceArguments]) -> Any: ...
    def reduce_find(self, x: Array, **arguments: Unpack[ReduceArguments]) -> int: ...
    def reduce_why(self, x: Array, **arguments: Unpack[ReduceArguments]) -> str: ...
    def reduce_describe(self, x: Array, **arguments: Unpack[ReduceArguments]) -> str: ...
    def reshape_and_cache(self, knew: Array, vnew: Array, k: Array, v: Array, slot_mapping: Array, **arguments: Unpack[ReshapeAndCacheArguments]) -> Any: ...
    def reshape_and_cache_find(self, knew: Array, vnew: Array, k: Array, v: Array, slot_mapping: Array, **arguments: Unpack[ReshapeAndCacheArguments]) -> int: ...
    def reshape_and_cache_why(self, knew: Array, vnew: Array, k: Array, v: Array, slot_mapping: Array, **arguments: Unpack[ReshapeAndCacheArguments]) -> str: ...
    def reshape_and_cache_describe(self, knew: Array, vnew: Array, k: Array, v: Array, slot_mapping: Array, **arguments: Unpack[ReshapeAndCacheArguments]) -> str: ...
    def rmsnorm2d(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dArguments]) -> Any: ...
    def rmsnorm2d_find(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dArguments]) -> int: ...
    def rmsnorm2d_why(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dArguments]) -> str: ...
    def rmsnorm2d_describe(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dArguments]) -> str: ...
    def rmsnorm2d_bwd(self, dy: Array, x: Array, gamma: Array, inv_rms: Array, **arguments: Unpack[Rmsnorm2dBwdArguments]) -> Any: ...
    def rmsnorm2d_bwd_find(self, dy: Array, x: Array, gamma: Array, inv_rms: Array, **arguments: Unpack[Rmsnorm2dBwdArguments]) -> int: ...
    def rmsnorm2d_bwd_why(self, dy: Array, x: Array, gamma: Array, inv_rms: Array, **arguments: Unpack[Rmsnorm2dBwdArguments]) -> str: ...
    def rmsnorm2d_bwd_describe(self, dy: Array, x: Array, gamma: Array, inv_rms: Array, **arguments: Unpack[Rmsnorm2dBwdArguments]) -> str: ...
    def rmsnorm2d_rdquant(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dRdquantArguments]) -> Any: ...
    def rmsnorm2d_rdquant_find(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dRdquantArguments]) -> int: ...
    def rmsnorm2d_rdquant_why(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dRdquantArguments]) -> str: ...
    def rmsnorm2d_rdquant_describe(self, x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dRdquantArguments]) -> str: ...
    def rotary(self, x: Array, cos: Array, sin: Array, **arguments: Unpack[RotaryArguments]) -> Any: ...
    def rotary_find(self, x: Array, cos: Array, sin: Array, **arguments: Unpack[RotaryArguments]) -> int: ...
    def rotary_why(self, x: Array, cos: Array, sin: Array, **arguments: Unpack[RotaryArguments]) -> str: ...
    def rotary_describe(self, x: Array, cos: Array, sin: Array, **arguments: Unpack[RotaryArguments]) -> str: ...
    def sample(self, logits: Array, **arguments: Unpack[SampleArguments]) -> Any: ...
    def sample_find(self, logits: Array, **arguments: Unpack[SampleArguments]) -> int: ...
    def sample_why(self, logits: Array, **arguments: Unpack[SampleArguments]) -> str: ...
    def sample_describe(self, logits: Array, **arguments: Unpack[SampleArguments]) -> str: ...
    def silu_and_mul(self, gate: Array, up: Array, **arguments: Unpack[SiluAndMulArguments]) -> Any: ...
    def silu_and_mul_find(self, gate: Array, up: Array, **arguments: Unpack[SiluAndMulArguments]) -> int: ...
    def silu_and_mul_why(self, gate: Array, up: Array, **arguments: Unpack[SiluAndMulArguments]) -> str: ...
    def silu_and_mul_describe(self, gate: Array, up: Array, **arguments: Unpack[SiluAndMulArguments]) -> str: ...
    def silu_and_mul_bwd(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[SiluAndMulBwdArguments]) -> Any: ...
    def silu_and_mul_bwd_find(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[SiluAndMulBwdArguments]) -> int: ...
    def silu_and_mul_bwd_why(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[SiluAndMulBwdArguments]) -> str: ...
    def silu_and_mul_bwd_describe(self, dy: Array, gate: Array, up: Array, **arguments: Unpack[SiluAndMulBwdArguments]) -> str: ...
    def smoothquant(self, x: Array, smooth_scale: Array | None, **arguments: Unpack[SmoothquantArguments]) -> Any: ...
    def smoothquant_find(self, x: Array, smooth_scale: Array | None, **arguments: Unpack[SmoothquantArguments]) -> int: ...
    def smoothquant_why(self, x: Array, smooth_scale: Array | None, **arguments: Unpack[SmoothquantArguments]) -> str: ...
    def smoothquant_describe(self, x: Array, smooth_scale: Array | None, **arguments: Unpack[SmoothquantArguments]) -> str: ...
    def softmax(self, x: Array, **arguments: Unpack[SoftmaxArguments]) -> Any: ...
    def softmax_find(self, x: Array, **arguments: Unpack[SoftmaxArguments]) -> int: ...
    def softmax_why(self, x: Array, **arguments: Unpack[SoftmaxArguments]) -> str: ...
    def softmax_describe(self, x: Array, **arguments: Unpack[SoftmaxArguments]) -> str: ...
    def topk_gating(self, x: Array, **arguments: Unpack[TopkGatingArguments]) -> Any: ...
    def topk_gating_find(self, x: Array, **arguments: Unpack[TopkGatingArguments]) -> int: ...
    def topk_gating_why(self, x: Array, **arguments: Unpack[TopkGatingArguments]) -> str: ...
    def topk_gating_describe(self, x: Array, **arguments: Unpack[TopkGatingArguments]) -> str: ...
    def topk_softmax(self, x: Array, **arguments: Unpack[TopkSoftmaxArguments]) -> Any: ...
    def topk_softmax_find(self, x: Array, **arguments: Unpack[TopkSoftmaxArguments]) -> int: ...
    def topk_softmax_why(self, x: Array, **arguments: Unpack[TopkSoftmaxArguments]) -> str: ...
    def topk_softmax_describe(self, x: Array, **arguments: Unpack[TopkSoftmaxArguments]) -> str: ...
    def transpose(self, x: Array, **arguments: Unpack[TransposeArguments]) -> Any: ...
    def transpose_find(self, x: Array, **arguments: Unpack[TransposeArguments]) -> int: ...
    def transpose_why(self, x: Array, **arguments: Unpack[TransposeArguments]) -> str: ...
    def transpose_describe(self, x: Array, **arguments: Unpack[TransposeArguments]) -> str: ...

def batched_contraction(a: Array, b: Array, **arguments: Unpack[BatchedContractionArguments]) -> Any: ...
def batched_gemm(a: Array, b: Array, **arguments: Unpack[BatchedGemmArguments]) -> Any: ...
def batched_transpose(x: Array, **arguments: Unpack[BatchedTransposeArguments]) -> Any: ...
def causal_conv1d(x: Array, weight: Array, **arguments: Unpack[CausalConv1dArguments]) -> Any: ...
def causal_conv1d_bwd(dy: Array, x: Array, weight: Array, **arguments: Unpack[CausalConv1dBwdArguments]) -> Any: ...
def conv_bwd_data(dy: Array, weight: Array, **arguments: Unpack[ConvBwdDataArguments]) -> Any: ...
def conv_bwd_weight(x: Array, dy: Array, **arguments: Unpack[ConvBwdWeightArguments]) -> Any: ...
def conv_fwd(x: Array, weight: Array, **arguments: Unpack[ConvFwdArguments]) -> Any: ...
def copy(x: Array, **arguments: Unpack[CopyArguments]) -> Any: ...
def cross_entropy(logits: Array, labels: Array, **arguments: Unpack[CrossEntropyArguments]) -> Any: ...
def cross_entropy_bwd(dloss: Array, logits: Array, labels: Array, lse: Array, **arguments: Unpack[CrossEntropyBwdArguments]) -> Any: ...
def elementwise(x: Array, x1: Array | None, x2: Array | None, x3: Array | None, **arguments: Unpack[ElementwiseArguments]) -> Any: ...
def flatmm(a: Array, b: Array, **arguments: Unpack[FlatmmArguments]) -> Any: ...
def flatmm_quant(a: Array, b: Array, b_scale: Array, **arguments: Unpack[FlatmmQuantArguments]) -> Any: ...
def fmha_batch_prefill(q: Array, k: Array, v: Array, **arguments: Unpack[FmhaBatchPrefillArguments]) -> Any: ...
def fmha_bwd(dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **arguments: Unpack[FmhaBwdArguments]) -> Any: ...
def fmha_fwd(q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdArguments]) -> Any: ...
def fmha_fwd_appendkv(q: Array | None, k: Array, v: Array, knew: Array, vnew: Array, **arguments: Unpack[FmhaFwdAppendkvArguments]) -> Any: ...
def fmha_fwd_pagedkv(q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdPagedkvArguments]) -> Any: ...
def fmha_fwd_splitkv(q: Array, k: Array, v: Array, **arguments: Unpack[FmhaFwdSplitkvArguments]) -> Any: ...
def fmha_mla_decode(q: Array, cache: Array, **arguments: Unpack[FmhaMlaDecodeArguments]) -> Any: ...
def fused_moe(x: Array, topk_ids: Array, topk_weights: Array, gate_up: Array, down: Array, **arguments: Unpack[FusedMoeArguments]) -> Any: ...
def gated_delta_rule(q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleArguments]) -> Any: ...
def gated_delta_rule_bwd(dout: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, **arguments: Unpack[GatedDeltaRuleBwdArguments]) -> Any: ...
def gelu_and_mul(gate: Array, up: Array, **arguments: Unpack[GeluAndMulArguments]) -> Any: ...
def gelu_and_mul_bwd(dy: Array, gate: Array, up: Array, **arguments: Unpack[GeluAndMulBwdArguments]) -> Any: ...
def gemm(a: Array, b: Array, **arguments: Unpack[GemmArguments]) -> Any: ...
def gemm_list(a: Array, b: Array, problems: Array, **arguments: Unpack[GemmListArguments]) -> Any: ...
def gemm_multi_d(a: Array, b: Array, d0: Array, **arguments: Unpack[GemmMultiDArguments]) -> Any: ...
def gemm_quant(a: Array, b: Array, **arguments: Unpack[GemmQuantArguments]) -> Any: ...
def group_norm(x: Array, gamma: Array | None, beta: Array | None, **arguments: Unpack[GroupNormArguments]) -> Any: ...
def grouped_gemm(a: Array, b: Array, starts: Array, **arguments: Unpack[GroupedGemmArguments]) -> Any: ...
def img2col(x: Array, **arguments: Unpack[Img2colArguments]) -> Any: ...
def layernorm2d(x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dArguments]) -> Any: ...
def layernorm2d_bwd(dy: Array, x: Array, gamma: Array, mean: Array, inv_std: Array, **arguments: Unpack[Layernorm2dBwdArguments]) -> Any: ...
def layernorm2d_rdquant(x: Array, gamma: Array, beta: Array | None, **arguments: Unpack[Layernorm2dRdquantArguments]) -> Any: ...
def merge(out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, **arguments: Unpack[MergeArguments]) -> Any: ...
def moe_smoothquant(x: Array, smooth_scale: Array, topk_ids: Array, **arguments: Unpack[MoeSmoothquantArguments]) -> Any: ...
def moe_sorting(topk_ids: Array, topk_weights: Array, **arguments: Unpack[MoeSortingArguments]) -> Any: ...
def permute(x: Array, **arguments: Unpack[PermuteArguments]) -> Any: ...
def pooling(x: Array, **arguments: Unpack[PoolingArguments]) -> Any: ...
def pooling_bwd(dy: Array, x: Array, **arguments: Unpack[PoolingBwdArguments]) -> Any: ...
def reduce(x: Array, **arguments: Unpack[ReduceArguments]) -> Any: ...
def reshape_and_cache(knew: Array, vnew: Array, k: Array, v: Array, slot_mapping: Array, **arguments: Unpack[ReshapeAndCacheArguments]) -> Any: ...
def rmsnorm2d(x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dArguments]) -> Any: ...
def rmsnorm2d_bwd(dy: Array, x: Array, gamma: Array, inv_rms: Array, **arguments: Unpack[Rmsnorm2dBwdArguments]) -> Any: ...
def rmsnorm2d_rdquant(x: Array, gamma: Array, **arguments: Unpack[Rmsnorm2dRdquantArguments]) -> Any: ...
def rotary(x: Array, cos: Array, sin: Array, **arguments: Unpack[RotaryArguments]) -> Any: ...
def sample(logits: Array, **arguments: Unpack[SampleArguments]) -> Any: ...
def silu_and_mul(gate: Array, up: Array, **arguments: Unpack[SiluAndMulArguments]) -> Any: ...
def silu_and_mul_bwd(dy: Array, gate: Array, up: Array, **arguments: Unpack[SiluAndMulBwdArguments]) -> Any: ...
def smoothquant(x: Array, smooth_scale: Array | None, **arguments: Unpack[SmoothquantArguments]) -> Any: ...
def softmax(x: Array, **arguments: Unpack[SoftmaxArguments]) -> Any: ...
def topk_gating(x: Array, **arguments: Unpack[TopkGatingArguments]) -> Any: ...
def topk_softmax(x: Array, **arguments: Unpack[TopkSoftmaxArguments]) -> Any: ...
def transpose(x: Array, **arguments: Unpack[TransposeArguments]) -> Any: ...
