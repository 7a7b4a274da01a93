"""Other forms of ops.mha's functions: autograd classes, and attention over pages with four results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arguments import s_dmask
from ._rows import off


def _mha() -> Any:
    """ops.mha, which has these names, and so is not there yet when this module is imported."""
    from .ops import mha

    return mha


def mha_batch_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    kv_indptr: Tensor,
    kv_page_indices: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    logits_soft_cap: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    sink_size: int,
    return_softmax_lse: bool,
    return_dropout_randval: bool,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    kv_block_descale: Tensor | None = None,
    kv_last_page_lens: Tensor | None = None,
    block_table: Tensor | None = None,
    seqlen_k: Tensor | None = None,
    sink_ptr: Tensor | None = None,
    gen: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, lse, S_dmask, rng_state) of mha_batch_prefill_func; results that are not wanted are empty.

    bias and gen must be None: bits of dropout come from PyTorch's default generator, and rng_state is not kept.
    zero_tensors changes nothing: every row of out is written.
    """
    off("bias", bias, "flash_attn_varlen_func has one")
    off("gen", gen, "seed PyTorch's default generator, torch.manual_seed")
    made, *others = _mha().mha_batch_prefill_func(
        q, k, v, cu_seqlens_q, kv_indptr, kv_page_indices, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        logits_soft_cap, is_causal, (window_size_left, window_size_right), alibi_slopes, False, True,
        return_dropout_randval, out, kv_last_page_lens, block_table, seqlen_k, q_descale, k_descale, v_descale,
        kv_block_descale, sink_ptr, sink_size,
    )  # fmt: skip
    lse = others[0] if return_softmax_lse else torch.empty(0)
    mask = others[1] if return_dropout_randval else s_dmask(None)
    return made, lse, mask, torch.zeros(2, dtype=torch.int64)


class FlashAttnFunc:
    """`FlashAttnFunc.apply(...)` is flash_attn_func; is_v3_atomic_fp32 changes nothing."""

    @staticmethod
    def apply(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float,
        softmax_scale: float | None,
        causal: bool,
        window_size: Any,
        bias: Tensor | None,
        alibi_slopes: Tensor | None,
        deterministic: bool,
        return_lse: bool,
        return_softmax: bool,
        is_grad_enabled: bool,
        is_v3_atomic_fp32: bool | None = True,
        how_v3_bf16_cvt: int = 1,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        sink_ptr: Tensor | None = None,
        num_splits: int = 0,
    ) -> Any:
        """With is_grad_enabled False nothing is kept for a backward."""
        with torch.set_grad_enabled(is_grad_enabled and torch.is_grad_enabled()):
            return _mha().flash_attn_func(
                q, k, v, dropout_p, softmax_scale, causal, window_size, bias, alibi_slopes, deterministic, return_lse,
                return_softmax, how_v3_bf16_cvt, cu_seqlens_q, cu_seqlens_kv, sink_ptr, num_splits,
            )  # fmt: skip


class FlashAttnVarlenFunc:
    """`FlashAttnVarlenFunc.apply(...)` is flash_attn_varlen_func; is_v3_atomic_fp32 changes nothing."""

    @staticmethod
    def apply(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        min_seqlen_q: int,
        dropout_p: float,
        softmax_scale: float | None,
        logits_soft_cap: float,
        causal: bool,
        window_size: Any,
        bias: Tensor | None,
        alibi_slopes: Tensor | None,
        deterministic: bool,
        return_lse: bool,
        return_softmax: bool,
        block_table: Tensor | None,
        out: Tensor | None,
        is_grad_enabled: bool,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None,
        is_v3_atomic_fp32: bool | None = True,
        how_v3_bf16_cvt: int = 1,
        sink_ptr: Tensor | None = None,
    ) -> Any:
        """With is_grad_enabled False nothing is kept for a backward."""
        with torch.set_grad_enabled(is_grad_enabled and torch.is_grad_enabled()):
            return _mha().flash_attn_varlen_func(
                q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q, dropout_p,
                softmax_scale, logits_soft_cap, causal, window_size, bias, alibi_slopes, deterministic, return_lse,
                return_softmax, how_v3_bf16_cvt, block_table, out, cu_seqlens_q_padded, cu_seqlens_k_padded, sink_ptr,
            )  # fmt: skip
