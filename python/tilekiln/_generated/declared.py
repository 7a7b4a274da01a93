"""The arguments of every operator past those by position, for type checkers.

Made by `python -m codegen operators --write` from the rooms' operator.yaml; change those.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from .._core.native import Stream

Array = Any
"""A NumPy array, a torch tensor or any object with __dlpack__."""


class RunArguments(TypedDict, total=False):
    """Arguments of every call beside its arrays: threads, instance and stream."""

    num_threads: int
    instance: int | str
    stream: Stream | None


class BatchedGemmArguments(RunArguments, total=False):
    """All arguments of `Library.batched_gemm` by name; its docstring describes each one."""

    out: Array | None
    bias: Array | None
    c: Array | None
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float


class BatchedTransposeArguments(RunArguments, total=False):
    """All arguments of `Library.batched_transpose` by name; its docstring describes each one."""

    y: Array | None
    layout: Literal["nchw", "nhwc"]


class CopyArguments(RunArguments, total=False):
    """All arguments of `Library.copy` by name; its docstring describes each one."""

    y: Array | None


class CrossEntropyArguments(RunArguments, total=False):
    """All arguments of `Library.cross_entropy` by name; its docstring describes each one."""

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
    """All arguments of `Library.cross_entropy_bwd` by name; its docstring describes each one."""

    dlogits: Array | None
    label_smoothing: float
    logit_scale: float
    lse_square_scale: float
    ignore_index: int
    first_class: int
    total_classes: int


class FlatmmArguments(RunArguments, total=False):
    """All arguments of `Library.flatmm` by name; its docstring describes each one."""

    out: Array | None
    bias: Array | None
    c: Array | None
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float


class FlatmmQuantArguments(RunArguments, total=False):
    """All arguments of `Library.flatmm_quant` by name; its docstring describes each one."""

    out: Array | None
    a_scale: Array | None
    bias: Array | None
    c: Array | None
    group: int
    quantise_a: bool
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float
    out_dtype: Literal["fp16", "fp32", "bf16"] | None


class FmhaBatchPrefillArguments(RunArguments, total=False):
    """All arguments of `Library.fmha_batch_prefill` by name; its docstring describes each one."""

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
    """All arguments of `Library.fmha_bwd` by name; its docstring describes each one."""

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
    """All arguments of `Library.fmha_fwd` by name; its docstring describes each one."""

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
    """All arguments of `Library.fmha_fwd_appendkv` by name; its docstring describes each one."""

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
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    max_seqlen_k: int
    rotary_interleaved: bool
    num_splits: int
    layout: Literal["bshd", "bhsd"]
    return_lse: bool
    attend: bool | None


class FmhaFwdPagedkvArguments(RunArguments, total=False):
    """All arguments of `Library.fmha_fwd_pagedkv` by name; its docstring describes each one."""

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
    """All arguments of `Library.fmha_fwd_splitkv` by name; its docstring describes each one."""

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


class FusedMoeArguments(RunArguments, total=False):
    """All arguments of `Library.fused_moe` by name; its docstring describes each one."""

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


class GemmArguments(RunArguments, total=False):
    """All arguments of `Library.gemm` by name; its docstring describes each one."""

    out: Array | None
    c: Array | None
    bias: Array | None
    row_scale: Array | None
    column_scale: Array | None
    a_scale: Array | None
    b_scale: Array | None
    alpha: float
    beta: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    out_dtype: Literal["fp16", "fp32", "bf16", "int32"] | None


class GemmListArguments(RunArguments, total=False):
    """All arguments of `Library.gemm_list` by name; its docstring describes each one."""

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
    """All arguments of `Library.gemm_multi_d` by name; its docstring describes each one."""

    d1: Array | None
    out: Array | None
    elementwise: Literal["add", "multiply"]
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float


class GemmQuantArguments(RunArguments, total=False):
    """All arguments of `Library.gemm_quant` by name; its docstring describes each one."""

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


class GroupedGemmArguments(RunArguments, total=False):
    """All arguments of `Library.grouped_gemm` by name; its docstring describes each one."""

    out: Array | None
    bias: Array | None
    c: Array | None
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float


class Img2colArguments(RunArguments, total=False):
    """All arguments of `Library.img2col` by name; its docstring describes each one."""

    y: Array | None
    filter: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    groups: int


class Layernorm2dArguments(RunArguments, total=False):
    """All arguments of `Library.layernorm2d` by name; its docstring describes each one."""

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
    """All arguments of `Library.layernorm2d_bwd` by name; its docstring describes each one."""

    dx: Array | None
    dgamma: Array | None
    dbeta: Array | None
    return_dbeta: bool


class Layernorm2dRdquantArguments(RunArguments, total=False):
    """All arguments of `Library.layernorm2d_rdquant` by name; its docstring describes each one."""

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


class MoeSmoothquantArguments(RunArguments, total=False):
    """All arguments of `Library.moe_smoothquant` by name; its docstring describes each one."""

    y: Array | None
    y_scale: Array | None
    y_dtype: Literal["int8", "fp8"] | None


class MoeSortingArguments(RunArguments, total=False):
    """All arguments of `Library.moe_sorting` by name; its docstring describes each one."""

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
    """All arguments of `Library.permute` by name; its docstring describes each one."""

    y: Array | None
    axes: int | tuple[int, ...] | list[int]


class ReduceArguments(RunArguments, total=False):
    """All arguments of `Library.reduce` by name; its docstring describes each one."""

    y: Array | None
    axes: int | tuple[int, ...] | list[int]
    operation: Literal["sum", "mean", "max", "min"]
    keepdim: bool


class Rmsnorm2dArguments(RunArguments, total=False):
    """All arguments of `Library.rmsnorm2d` by name; its docstring describes each one."""

    y: Array | None
    residual: Array | None
    residual_out: Array | None
    inv_rms: Array | None
    epsilon: float
    rounding: Literal["pytorch", "transformers"]
    return_residual: bool
    return_inv_rms: bool


class Rmsnorm2dBwdArguments(RunArguments, total=False):
    """All arguments of `Library.rmsnorm2d_bwd` by name; its docstring describes each one."""

    dx: Array | None
    dgamma: Array | None


class Rmsnorm2dRdquantArguments(RunArguments, total=False):
    """All arguments of `Library.rmsnorm2d_rdquant` by name; its docstring describes each one."""

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
    """All arguments of `Library.rotary` by name; its docstring describes each one."""

    positions: Array | None
    y: Array | None
    start: int
    interleaved: bool
    conjugate: bool


class SiluAndMulArguments(RunArguments, total=False):
    """All arguments of `Library.silu_and_mul` by name; its docstring describes each one."""

    y: Array | None


class SiluAndMulBwdArguments(RunArguments, total=False):
    """All arguments of `Library.silu_and_mul_bwd` by name; its docstring describes each one."""

    dgate: Array | None
    dup: Array | None


class SmoothquantArguments(RunArguments, total=False):
    """All arguments of `Library.smoothquant` by name; its docstring describes each one."""

    y: Array | None
    y_scale: Array | None
    y_dtype: Literal["int8", "fp8"] | None


class SoftmaxArguments(RunArguments, total=False):
    """All arguments of `Library.softmax` by name; its docstring describes each one."""

    y: Array | None


class TopkSoftmaxArguments(RunArguments, total=False):
    """All arguments of `Library.topk_softmax` by name; its docstring describes each one."""

    weights: Array | None
    indices: Array | None
    topk: int
    renormalise: bool


class TransposeArguments(RunArguments, total=False):
    """All arguments of `Library.transpose` by name; its docstring describes each one."""

    y: Array | None
