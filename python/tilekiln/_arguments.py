"""The arguments of attention past q, k and v, for type checkers."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from ._native import Stream

Array = Any
"""A NumPy array, a torch tensor or any object with __dlpack__."""


class AttentionArguments(TypedDict, total=False):
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
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    dropout_p: float
    rng: tuple[int, int]
    min_seqlen_q: int
    return_lse: bool
    layout: Literal["bshd", "bhsd"]
    stream: Stream | None
    num_threads: int
    instance: int | str
    out_dtype: Literal["bf16", "fp32"] | None


class BackwardArguments(TypedDict, total=False):
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
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    dropout_p: float
    rng: tuple[int, int]
    layout: Literal["bshd", "bhsd"]
    stream: Stream | None
    num_threads: int
    instance: int | str
    deterministic: bool
    workers: int


class DecodeArguments(TypedDict, total=False):
    """Everything that `decode` takes by name; `Library.fmha_fwd_splitkv` says what each one is."""

    out: Array | None
    lse: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    out_scale: Array | None
    cache_leftpad: Array | None
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    num_splits: int
    stream: Stream | None
    num_threads: int
    instance: int | str
    return_lse: bool
