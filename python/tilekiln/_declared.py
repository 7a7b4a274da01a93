"""The arguments of every operator past those by position, for type checkers.

Made by `python -m codegen operators --write` from the rooms' operator.yaml; change those.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from ._native import Stream

Array = Any
"""A NumPy array, a torch tensor or any object with __dlpack__."""


class RunArguments(TypedDict, total=False):
    """Where a call runs, and with what."""

    num_threads: int
    instance: int | str
    stream: Stream | None


class BatchedGemmArguments(RunArguments, total=False):
    """Everything that `Library.batched_gemm` takes by name; its docstring says what each one is."""

    out: Array | None
    bias: Array | None
    c: Array | None
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float


class BatchedTransposeArguments(RunArguments, total=False):
    """Everything that `Library.batched_transpose` takes by name; its docstring says what each one is."""

    y: Array | None
    layout: Literal["nchw", "nhwc"]


class CopyArguments(RunArguments, total=False):
    """Everything that `Library.copy` takes by name; its docstring says what each one is."""

    y: Array | None


class CrossEntropyArguments(RunArguments, total=False):
    """Everything that `Library.cross_entropy` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.cross_entropy_bwd` takes by name; its docstring says what each one is."""

    dlogits: Array | None
    label_smoothing: float
    logit_scale: float
    lse_square_scale: float
    ignore_index: int
    first_class: int
    total_classes: int


class FlatmmArguments(RunArguments, total=False):
    """Everything that `Library.flatmm` takes by name; its docstring says what each one is."""

    out: Array | None
    bias: Array | None
    c: Array | None
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float


class FlatmmQuantArguments(RunArguments, total=False):
    """Everything that `Library.flatmm_quant` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.fmha_batch_prefill` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.fmha_bwd` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.fmha_fwd` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.fmha_fwd_appendkv` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.fmha_fwd_pagedkv` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.fmha_fwd_splitkv` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.fused_moe` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.gemm` takes by name; its docstring says what each one is."""

    out: Array | None
    c: Array | None
    bias: Array | None
    row_scale: Array | None
    column_scale: Array | None
    alpha: float
    beta: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    out_dtype: Literal["fp16", "fp32", "bf16", "int32"] | None


class GemmListArguments(RunArguments, total=False):
    """Everything that `Library.gemm_list` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.gemm_multi_d` takes by name; its docstring says what each one is."""

    d1: Array | None
    out: Array | None
    elementwise: Literal["add", "multiply"]
    alpha: float
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float


class GemmQuantArguments(RunArguments, total=False):
    """Everything that `Library.gemm_quant` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.grouped_gemm` takes by name; its docstring says what each one is."""

    out: Array | None
    bias: Array | None
    c: Array | None
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "clamp"]
    clamp_min: float
    clamp_max: float
    beta: float


class Img2colArguments(RunArguments, total=False):
    """Everything that `Library.img2col` takes by name; its docstring says what each one is."""

    y: Array | None
    filter: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    groups: int


class Layernorm2dArguments(RunArguments, total=False):
    """Everything that `Library.layernorm2d` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.layernorm2d_bwd` takes by name; its docstring says what each one is."""

    dx: Array | None
    dgamma: Array | None
    dbeta: Array | None
    return_dbeta: bool


class Layernorm2dRdquantArguments(RunArguments, total=False):
    """Everything that `Library.layernorm2d_rdquant` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.moe_smoothquant` takes by name; its docstring says what each one is."""

    y: Array | None
    y_scale: Array | None
    y_dtype: Literal["int8", "fp8"] | None


class MoeSortingArguments(RunArguments, total=False):
    """Everything that `Library.moe_sorting` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.permute` takes by name; its docstring says what each one is."""

    y: Array | None
    axes: int | tuple[int, ...] | list[int]


class ReduceArguments(RunArguments, total=False):
    """Everything that `Library.reduce` takes by name; its docstring says what each one is."""

    y: Array | None
    axes: int | tuple[int, ...] | list[int]
    operation: Literal["sum", "mean", "max", "min"]
    keepdim: bool


class Rmsnorm2dArguments(RunArguments, total=False):
    """Everything that `Library.rmsnorm2d` takes by name; its docstring says what each one is."""

    y: Array | None
    residual: Array | None
    residual_out: Array | None
    inv_rms: Array | None
    epsilon: float
    rounding: Literal["pytorch", "transformers"]
    return_residual: bool
    return_inv_rms: bool


class Rmsnorm2dBwdArguments(RunArguments, total=False):
    """Everything that `Library.rmsnorm2d_bwd` takes by name; its docstring says what each one is."""

    dx: Array | None
    dgamma: Array | None


class Rmsnorm2dRdquantArguments(RunArguments, total=False):
    """Everything that `Library.rmsnorm2d_rdquant` takes by name; its docstring says what each one is."""

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
    """Everything that `Library.rotary` takes by name; its docstring says what each one is."""

    positions: Array | None
    y: Array | None
    start: int
    interleaved: bool
    conjugate: bool


class SiluAndMulArguments(RunArguments, total=False):
    """Everything that `Library.silu_and_mul` takes by name; its docstring says what each one is."""

    y: Array | None


class SiluAndMulBwdArguments(RunArguments, total=False):
    """Everything that `Library.silu_and_mul_bwd` takes by name; its docstring says what each one is."""

    dgate: Array | None
    dup: Array | None


class SmoothquantArguments(RunArguments, total=False):
    """Everything that `Library.smoothquant` takes by name; its docstring says what each one is."""

    y: Array | None
    y_scale: Array | None
    y_dtype: Literal["int8", "fp8"] | None


class SoftmaxArguments(RunArguments, total=False):
    """Everything that `Library.softmax` takes by name; its docstring says what each one is."""

    y: Array | None


class TopkSoftmaxArguments(RunArguments, total=False):
    """Everything that `Library.topk_softmax` takes by name; its docstring says what each one is."""

    weights: Array | None
    indices: Array | None
    topk: int
    renormalise: bool


class TransposeArguments(RunArguments, total=False):
    """Everything that `Library.transpose` takes by name; its docstring says what each one is."""

    y: Array | None
