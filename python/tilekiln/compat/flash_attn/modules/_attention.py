# SPDX-License-Identifier: MIT
"""Attention over packed tensors as modules: by the kernels (Flash...), or with a mask of keys by PyTorch's own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._modules import FaceArgumentError
from ..flash_attn_interface import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)


def get_alibi_slopes(nheads: int) -> list[float]:
    """The slopes of ALiBi (https://arxiv.org/abs/2108.12409): 2^(-8 (h + 1) / nheads) of a power of two of heads.

    Of another number of heads: those of the power of two below it, then every second of the one above.
    """

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (head + 1) / count) for head in range(count)]

    below = 2 ** int(math.log2(nheads))
    return geometric(below) + geometric(2 * below)[::2][: nheads - below]


class _Flash(torch.nn.Module):
    """Base of both modules: numbers of the call, and dropout while training."""

    alibi_slopes: Tensor | None

    def __init__(
        self,
        causal: bool,
        softmax_scale: float | None,
        attention_dropout: float,
        window_size: tuple[int, int],
        alibi_slopes: Tensor | None,
        deterministic: bool,
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale, self.window_size = causal, softmax_scale, window_size
        self.drop = torch.nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.deterministic = deterministic

    def _numbers(self, causal: bool | None) -> dict[str, Any]:
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "window_size": self.window_size,
            "alibi_slopes": None if self.alibi_slopes is None else self.alibi_slopes.float(),
            "deterministic": self.deterministic,
        }


def _needed(cu_seqlens: Any, **others: Any) -> bool:
    """Is this a call of packed sequences? Then all of `others` must be given."""
    if cu_seqlens is None:
        return False
    for name, value in others.items():
        if value is None:
            raise FaceArgumentError(f"{name}: was None, must be given with cu_seqlens")
    return True


class FlashSelfAttention(_Flash):
    """flash_attn_qkvpacked_func, and flash_attn_varlen_qkvpacked_func where cu_seqlens is given, as a module.

    The arguments are those of the functions; attention_dropout drops probabilities in training mode alone.
    """

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(
        self, qkv: Tensor, causal: bool | None = None, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None
    ) -> Tensor:
        """qkv (batch, seqlen, 3, nheads, headdim), or (total, 3, nheads, headdim) with cu_seqlens, int32 (batch + 1).

        causal: in place of the module's own. Returns out, shape of the queries in qkv.
        """
        numbers = self._numbers(causal)
        if _needed(cu_seqlens, max_seqlen=max_seqlen):
            out: Tensor = flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **numbers)  # type: ignore[arg-type]
        else:
            out = flash_attn_qkvpacked_func(qkv, **numbers)
        return out


class FlashCrossAttention(_Flash):
    """flash_attn_kvpacked_func, and flash_attn_varlen_kvpacked_func where cu_seqlens is given, as a module."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        alibi_slopes: Tensor | None = None,
        window_size: tuple[int, int] = (-1, -1),
        deterministic: bool = False,
    ) -> None:
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_k: int | None = None,
    ) -> Tensor:
        """q (batch, seqlen_q, nheads, headdim), kv (batch, seqlen_k, 2, nheads_k, headdim).

        With cu_seqlens and cu_seqlens_k, int32 (batch + 1): (total_q, nheads, headdim), (total_k, 2, nheads_k,
        headdim). Returns out, shape of q.
        """
        numbers = self._numbers(causal)
        if _needed(cu_seqlens, max_seqlen=max_seqlen, cu_seqlens_k=cu_seqlens_k, max_seqlen_k=max_seqlen_k):
            out: Tensor = flash_attn_varlen_kvpacked_func(
                q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **numbers  # type: ignore[arg-type]
            )  # fmt: skip
        else:
            out = flash_attn_kvpacked_func(q, kv, **numbers)
        return out


class CrossAttention(torch.nn.Module):
    """The attention of FlashCrossAttention by PyTorch's scaled_dot_product_attention, with a mask of keys."""

    def __init__(
        self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = torch.nn.Dropout(attention_dropout)

    def forward(
        self, q: Tensor, kv: Tensor, causal: bool | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """q (batch, seqlen_q, nheads, headdim), kv (batch, seqlen_k, 2, nheads_k, headdim).

        key_padding_mask: bool (batch, seqlen_k), True: the key counts. causal: the last query sees the last key that
        counts.
        """
        k, v = (one.transpose(1, 2) for one in kv.unbind(2))
        mask = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
        if self.causal if causal is None else causal:
            last = kv.shape[1] if key_padding_mask is None else key_padding_mask.sum(-1)[:, None, None, None]
            row = torch.arange(q.shape[1], device=q.device)[:, None]
            seen = torch.arange(kv.shape[1], device=q.device) <= row + last - q.shape[1]
            mask = seen if mask is None else seen & mask
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, mask, self.drop.p if self.training else 0.0, scale=self.softmax_scale,
            enable_gqa=k.shape[1] != q.shape[2],
        )  # fmt: skip
        return out.transpose(1, 2)


class SelfAttention(CrossAttention):
    """CrossAttention of packed queries, keys and values."""

    def forward(  # type: ignore[override]
        self, qkv: Tensor, causal: bool | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """qkv (batch, seqlen, 3, nheads, headdim). key_padding_mask: bool (batch, seqlen), True: the key counts."""
        mask = key_padding_mask
        causal = self.causal if causal is None else causal
        if causal and mask is not None:  # query t sees keys up to t, wherever padding is
            seen = torch.ones(qkv.shape[1], qkv.shape[1], dtype=torch.bool, device=qkv.device).tril()
            q, k, v = (one.transpose(1, 2) for one in qkv.unbind(2))
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, seen & mask[:, None, None, :], self.drop.p if self.training else 0.0, scale=self.softmax_scale
            )
            return out.transpose(1, 2)
        return super().forward(qkv[:, :, 0], qkv[:, :, 1:], causal, mask)
