# SPDX-License-Identifier: MIT
"""aiter's attention under the names of its other kernels: fmha_v3, native split-KV, batch prefill below autograd.

They mean what mha_fwd, mha_bwd, mha_varlen_fwd, mha_varlen_bwd and mha_batch_prefill_func mean; how_v3_bf16_cvt and
is_v3_atomic_fp32, of other hardware, change nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from .._modules import errors_as_upstream
from ._arguments import masks
from ._kernels import mha_bwd, mha_fwd, mha_varlen_bwd, mha_varlen_fwd, over_splits

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def maybe_contiguous(x: Tensor | None) -> Tensor | None:
    """x with a contiguous last dimension: itself, or a copy."""
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def fmha_v3_fwd(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, is_causal: bool,
    window_size_left: int, window_size_right: int, return_softmax_lse: bool, return_dropout_randval: bool,
    how_v3_bf16_cvt: int, out: Tensor | None = None, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    gen: torch.Generator | None = None,
) -> Four:  # fmt: skip
    """`mha_fwd` without sinks."""
    return mha_fwd(
        q, k, v, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right, 0, return_softmax_lse,
        return_dropout_randval, None, None, out, bias, alibi_slopes, q_descale, k_descale, v_descale, None, gen,
    )  # fmt: skip


def fmha_v3_varlen_fwd(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, max_seqlen_q: int,
    max_seqlen_k: int, min_seqlen_q: int, dropout_p: float, softmax_scale: float | None, logits_soft_cap: float,
    zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, return_softmax_lse: bool,
    return_dropout_randval: bool, how_v3_bf16_cvt: int, out: Tensor | None = None, block_table: Tensor | None = None,
    bias: Tensor | None = None, alibi_slopes: Tensor | None = None, q_descale: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None, gen: torch.Generator | None = None,
    cu_seqlens_q_padded: Tensor | None = None, cu_seqlens_k_padded: Tensor | None = None,
) -> Four:  # fmt: skip
    """`mha_varlen_fwd` without sinks."""
    return mha_varlen_fwd(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q, dropout_p, softmax_scale,
        logits_soft_cap, zero_tensors, is_causal, window_size_left, window_size_right, 0, return_softmax_lse,
        return_dropout_randval, out, block_table, bias, alibi_slopes, q_descale, k_descale, v_descale, gen,
        cu_seqlens_q_padded, cu_seqlens_k_padded,
    )  # fmt: skip


def fmha_v3_bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dropout_p: float,
    softmax_scale: float | None, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
    is_v3_atomic_fp32: bool, how_v3_bf16_cvt: int, dq: Tensor | None = None, dk: Tensor | None = None,
    dv: Tensor | None = None, alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None,
    gen: torch.Generator | None = None,
) -> Four:  # fmt: skip
    """`mha_bwd` without bias and sinks."""
    return mha_bwd(
        dout, q, k, v, out, softmax_lse, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right,
        deterministic, dq, dk, dv, None, None, alibi_slopes, rng_state, gen,
    )  # fmt: skip


def fmha_v3_varlen_bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float | None,
    zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
    is_v3_atomic_fp32: bool, how_v3_bf16_cvt: int, dq: Tensor | None = None, dk: Tensor | None = None,
    dv: Tensor | None = None, alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None,
    gen: torch.Generator | None = None, cu_seqlens_q_padded: Tensor | None = None,
    cu_seqlens_k_padded: Tensor | None = None,
) -> Four:  # fmt: skip
    """`mha_varlen_bwd` without sinks."""
    return mha_varlen_bwd(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, deterministic, dq, dk, dv,
        alibi_slopes, rng_state, gen, cu_seqlens_q_padded, cu_seqlens_k_padded,
    )  # fmt: skip


@errors_as_upstream()
def mha_fwd_native_splitkv(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_scale: float, causal: bool, return_lse: bool, num_splits: int
) -> tuple[Tensor, Tensor]:
    """(out, lse): `mha_fwd` with the keys in num_splits parts, 0: chosen by the sizes; lse empty unless wanted."""
    if num_splits < 0:
        raise ArgumentError(f"num_splits: was {num_splits}, must be 0 or more")
    arguments = {"softmax_scale": softmax_scale, **masks(causal, (-1, -1), k.shape[1]), "out": out}
    made, lse = over_splits(q, k, v, arguments, 0.0, num_splits)
    return made, lse if return_lse else lse.new_empty(0)
