# SPDX-License-Identifier: MIT
"""The arguments of the operators that have derivatives in PyTorch, past those by position.

What they take beside, to ask for results and to choose the derivative, the calls name themselves. None is absent. Made
by `python -m codegen operators --write` from kernels/*/*/operator.yaml; change those.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from torch import Tensor


class CausalConv1dArguments(TypedDict, total=False):
    """Arguments of `Library.causal_conv1d` by name; its docstring describes each one."""

    bias: Tensor | None
    initial_state: Tensor | None
    cu_seqlens: Tensor | None
    y: Tensor | None
    activation: Literal["none", "silu"]
    num_threads: int
    instance: int | str | None


class CausalConv1dBwdArguments(TypedDict, total=False):
    """Arguments of `Library.causal_conv1d_bwd` by name; its docstring describes each one."""

    bias: Tensor | None
    initial_state: Tensor | None
    cu_seqlens: Tensor | None
    dfinal_state: Tensor | None
    activation: Literal["none", "silu"]
    num_threads: int
    instance: int | str | None


class FmhaFwdArguments(TypedDict, total=False):
    """Arguments of `Library.fmha_fwd` by name; its docstring describes each one."""

    out: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sink: Tensor | None
    q_descale: Tensor | None
    k_descale: Tensor | None
    v_descale: Tensor | None
    block_scale_seqstart_q: Tensor | None
    block_scale_seqstart_k: Tensor | None
    seqstart_q: Tensor | None
    seqstart_k: Tensor | None
    seqlen_q: Tensor | None
    seqlen_k: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    rng_state: Tensor | None
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
    num_threads: int
    instance: int | str | None


class FmhaBwdArguments(TypedDict, total=False):
    """Arguments of `Library.fmha_bwd` by name; its docstring describes each one."""

    bias: Tensor | None
    alibi_slopes: Tensor | None
    sink: Tensor | None
    seqstart_q: Tensor | None
    seqstart_k: Tensor | None
    seqlen_q: Tensor | None
    seqlen_k: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    rng_state: Tensor | None
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
    num_threads: int
    instance: int | str | None


class GatedDeltaRuleArguments(TypedDict, total=False):
    """Arguments of `Library.gated_delta_rule` by name; its docstring describes each one."""

    initial_state: Tensor | None
    cu_seqlens: Tensor | None
    out: Tensor | None
    scale: float | None
    qk_l2norm: bool
    update: Literal["delta", "add"]
    num_threads: int
    instance: int | str | None


class GatedDeltaRuleBwdArguments(TypedDict, total=False):
    """Arguments of `Library.gated_delta_rule_bwd` by name; its docstring describes each one."""

    initial_state: Tensor | None
    cu_seqlens: Tensor | None
    dfinal_state: Tensor | None
    scale: float | None
    qk_l2norm: bool
    update: Literal["delta", "add"]
    num_threads: int
    instance: int | str | None
