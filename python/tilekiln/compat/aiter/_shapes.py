# SPDX-License-Identifier: MIT
"""Shapes of results, as torch.library's fakes are called: nothing is computed, and what is written is given back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .ops.enum import QuantType

__all__ = [
    "fused_moe_fake",
    "gemm_a8w8_blockscale_bpreshuffle_fake",
    "gemm_a8w8_blockscale_fake",
    "gemm_a8w8_bpreshuffle_fake",
    "gemm_a8w8_fake",
    "gen_batched_gemm_a8w8_fake_tensors",
    "gen_batched_gemm_a8w8_tune_fake_tensors",
    "gen_batched_gemm_bf16_tune_fake_tensor",
    "gen_gemm_a8w8_blockscale_ck_fake_tensors",
    "gen_gemm_a8w8_blockscale_tune_fake_tensors",
    "gen_gemm_a8w8_bpreshuffle_ck_fake_tensors",
    "gen_gemm_a8w8_bpreshuffle_cktile_fake_tensors",
    "gen_gemm_a8w8_ck_fake_tensors",
    "gen_gemm_a8w8_tune_fake_tensors",
    "gen_layer_norm_fake_tensors",
    "gen_moe_fused_gate_fake_tensor",
    "gen_pa_fwd_asm",
    "gen_pa_fwd_native_fake",
    "gen_pa_ps_fwd_asm",
]


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(a.shape[0], b.shape[0], dtype=dtype, device=a.device)


def gen_layer_norm_fake_tensors(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05, x_bias: Tensor |
    None = None,
) -> Tensor:  # fmt: skip
    """Of ops.norm.layer_norm."""
    return torch.empty_like(input)


def gen_pa_fwd_native_fake(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
    k_dequant_scales: Tensor, v_dequant_scales: Tensor, max_seq_len: int, num_kv_heads: int, scale_s: float,
    scale_k: float, scale_v: float, block_size: int, quant_algo: int, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Of ops.attention.pa_fwd_naive."""
    return torch.empty_like(query) if out is None else out


def gen_pa_fwd_asm(
    Q: Tensor, K: Tensor, V: Tensor, block_tables: Tensor, context_lens: Tensor, block_tables_stride0: int,
    max_qlen: int = 1, K_QScale: Tensor | None = None, V_QScale: Tensor | None = None, out_: Tensor | None = None,
    qo_indptr: Tensor | None = None, high_precision: int | None = 1, kernelName: str | None = None,
) -> Tensor:  # fmt: skip
    """Of ops.attention.pa_fwd_asm."""
    return torch.empty_like(Q) if out_ is None else out_


def gen_pa_ps_fwd_asm(
    Q: Tensor, K: Tensor, V: Tensor, kv_indptr: Tensor, kv_page_indices: Tensor, context_lens: Tensor,
    softmax_scale: float, max_qlen: int = 1, K_QScale: Tensor | None = None, V_QScale: Tensor | None = None, out_:
    Tensor | None = None, qo_indptr: Tensor | None = None, work_indptr: Tensor | None = None, work_info: Tensor |
    None = None, splitData: Tensor | None = None, splitLse: Tensor | None = None, high_precision: int | None = 1,
    kernelName: str | None = None, quant_type: Any = QuantType.per_Token.value,
) -> Tensor:  # fmt: skip
    """Of attention over pages as other hardware plans it."""
    return torch.empty_like(Q) if out_ is None else out_


def gen_gemm_a8w8_ck_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, bias: Tensor | None = None, splitK: int
    = 0,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_ck."""
    return Out


def gen_gemm_a8w8_bpreshuffle_ck_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, splitK: int = 0,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_bpreshuffle_ck."""
    return Out


def gen_gemm_a8w8_bpreshuffle_cktile_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, splitK: int = 0,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_bpreshuffle_cktile."""
    return Out


def gen_gemm_a8w8_blockscale_ck_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_blockscale_ck."""
    return Out


def gemm_a8w8_fake(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None, dtype: torch.dtype =
    torch.bfloat16, splitK: int | None = None,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8."""
    return _product(XQ, WQ, dtype)


def gemm_a8w8_bpreshuffle_fake(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None, dtype: torch.dtype =
    torch.bfloat16, check: bool = False,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_bpreshuffle."""
    return _product(XQ, WQ, dtype)


def gemm_a8w8_blockscale_fake(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype = torch.bfloat16, isBpreshuffled:
    bool = False,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_blockscale."""
    return _product(XQ, WQ, dtype)


def gemm_a8w8_blockscale_bpreshuffle_fake(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype = torch.bfloat16, out: Tensor |
    None = None,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_blockscale_bpreshuffle."""
    return _product(XQ, WQ, dtype) if out is None else out


def gen_gemm_a8w8_tune_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_tune."""
    return Out


def gen_gemm_a8w8_blockscale_tune_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0,
) -> Tensor:  # fmt: skip
    """Of gemm_a8w8_blockscale_tune."""
    return Out


def gen_batched_gemm_a8w8_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor, bias: Tensor | None = None, splitK: int
    = 0,
) -> Tensor:  # fmt: skip
    """Of batched_gemm_a8w8."""
    return out


def gen_batched_gemm_a8w8_tune_fake_tensors(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor, kernelId: int, splitK: int = 0,
) -> Tensor:  # fmt: skip
    """Of batched_gemm_a8w8_tune."""
    return out


def gen_batched_gemm_bf16_tune_fake_tensor(
    XQ: Tensor, WQ: Tensor, out: Tensor, kernelId: int, splitK: int = 0,
) -> Tensor:  # fmt: skip
    """Of batched_gemm_bf16_tune."""
    return out


def gen_moe_fused_gate_fake_tensor(
    input: Tensor, bias: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_expert_group: int, topk_group: int,
    topk: int, n_share_experts_fusion: int, routed_scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of moe_fused_gate."""
    return torch.empty_like(topk_weights), torch.empty_like(topk_ids)


def fused_moe_fake(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor, expert_mask: Tensor |
    None = None, activation: int = 0, quant_type: int = 0, doweight_stage1: bool = False, w1_scale: Tensor | None
    = None, w2_scale: Tensor | None = None, a1_scale: Tensor | None = None, a2_scale: Tensor | None = None,
    block_size_M: int = -1, num_local_tokens: Tensor | None = None, moe_sorting_dispatch_policy: int = 0, dtype:
    torch.dtype | None = None, hidden_pad: int = 0, intermediate_pad: int = 0, bias1: Tensor | None = None, bias2:
    Tensor | None = None, swiglu_limit: float | None = None, beta: float | None = None, linear_beta: float | None
    = None, gate_mode: str = "separated", ep_arena_handle: int = 0, ep_combine_input_offset: int = 0,
    ep_slot_stride_bytes: int = 0, ep_max_tokens_per_rank: int = 0, ep_world_size: int = 0, ep_source_token_map:
    Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Of fused_moe_."""
    return torch.empty(len(topk_ids), w2.shape[1], dtype=dtype or hidden_states.dtype, device=topk_ids.device)
