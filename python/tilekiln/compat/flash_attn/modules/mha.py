# SPDX-License-Identifier: MIT
"""flash_attn.modules.mha: multi-head attention with its projections, rotary embedding and KV cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _absent
from ..._modules import FaceArgumentError
from .._kvcache import flash_attn_with_kvcache
from ..layers.rotary import RotaryEmbedding
from ..ops.fused_dense import ColumnParallelLinear, FusedDense, RowParallelLinear
from ..utils.distributed import get_dim_for_local_rank
from ._attention import CrossAttention, FlashCrossAttention, FlashSelfAttention, SelfAttention, get_alibi_slopes

__all__ = [
    "MHA",
    "CrossAttention",
    "FlashCrossAttention",
    "FlashSelfAttention",
    "ParallelMHA",
    "SelfAttention",
    "get_alibi_slopes",
]

__getattr__ = _absent.sentences(__name__)


class MHA(torch.nn.Module):
    """out_proj(attention(Wqkv x)), with rotary embedding or ALiBi, windows, dropout, grouped heads and a KV cache.

    embed_dim: hidden size, a multiple of num_heads; num_heads_kv: heads of keys and values, which divides num_heads.
    cross_attn: queries are of x (Wq), keys and values of x_kv (Wkv). dwconv: a depthwise convolution of three tokens
    after the projection. rotary_emb_dim, .._base, .._scale_base, .._interleaved: of RotaryEmbedding; 0: none.
    use_alibi, window_size: only with use_flash_attn, which computes by Tilekiln's kernels; without it PyTorch does.
    return_residual: forward returns (out, x). checkpointing: the attention is computed again in the backward.
    layer_idx: the layer's key in a cache. fused_bias_fc: the projections are of ops.fused_dense, which changes nothing.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_heads_kv: int | None = None,
        cross_attn: bool = False,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        layer_idx: int | None = None,
        dwconv: bool = False,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_scale_base: float | None = None,
        rotary_emb_interleaved: bool = False,
        use_alibi: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        fused_bias_fc: bool = False,
        use_flash_attn: bool = False,
        return_residual: bool = False,
        checkpointing: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if cross_attn and rotary_emb_dim:
            raise FaceArgumentError(f"rotary_emb_dim: was {rotary_emb_dim}, must be 0 with cross_attn")
        self.cross_attn, self.dwconv, self.return_residual = cross_attn, dwconv, return_residual
        rotary = rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, rotary_emb_scale_base, device
        self._begin(embed_dim, num_heads, num_heads_kv, layer_idx, use_flash_attn, checkpointing, rotary)
        self._attend(dropout, softmax_scale, causal, use_alibi, window_size, device)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        linear = FusedDense if fused_bias_fc else torch.nn.Linear
        kv_dim = 2 * self.head_dim * self.num_heads_kv
        if cross_attn:
            self.Wq: torch.nn.Linear = linear(embed_dim, embed_dim, bias=qkv_proj_bias, **where)
            self.Wkv: torch.nn.Linear = linear(embed_dim, kv_dim, bias=qkv_proj_bias, **where)
        else:
            self.Wqkv: torch.nn.Linear = linear(embed_dim, embed_dim + kv_dim, bias=qkv_proj_bias, **where)
        if dwconv and self._packed:
            self.dwconv_qkv = self._convolution(embed_dim + kv_dim, where)
        elif dwconv:
            self.dwconv_q, self.dwconv_kv = self._convolution(embed_dim, where), self._convolution(kv_dim, where)
        self.out_proj: torch.nn.Linear = linear(embed_dim, embed_dim, bias=out_proj_bias, **where)

    def _begin(
        self, embed_dim: int, num_heads: int, num_heads_kv: int | None, layer_idx: int | None, use_flash_attn: bool,
        checkpointing: bool, rotary: tuple[Any, ...],
    ) -> None:  # fmt: skip
        """Numbers that are checked, and the rotary embedding."""
        self.num_heads = self._heads = num_heads
        self.num_heads_kv = self._heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        if embed_dim % num_heads:
            raise FaceArgumentError(f"embed_dim: was {embed_dim}, must be a multiple of num_heads, {num_heads}")
        if num_heads % self.num_heads_kv:
            raise FaceArgumentError(f"num_heads_kv: was {num_heads_kv}, must divide num_heads, {num_heads}")
        self.embed_dim, self.head_dim, self.layer_idx = embed_dim, embed_dim // num_heads, layer_idx
        self.use_flash_attn, self.checkpointing, self.rotary_emb_dim = use_flash_attn, checkpointing, rotary[0]
        if self.rotary_emb_dim > 0:
            self.rotary_emb = RotaryEmbedding(*rotary)

    def _attend(
        self, dropout: float, softmax_scale: float | None, causal: bool, use_alibi: bool, window_size: tuple[int, int],
        device: Any, first: int = 0,
    ) -> None:  # fmt: skip
        """Attention of heads that begin with number `first`."""
        self.causal = causal
        for name, given in (("use_alibi", use_alibi), ("window_size", tuple(window_size) != (-1, -1))):
            if given and not self.use_flash_attn:
                raise FaceArgumentError(f"{name}: was given without use_flash_attn, which must be True for it")
        numbers: dict[str, Any] = {"causal": causal, "softmax_scale": softmax_scale, "attention_dropout": dropout}
        if self.use_flash_attn:
            slopes = get_alibi_slopes(self.num_heads)[first : first + self._heads] if use_alibi else None
            numbers |= {
                "alibi_slopes": None if slopes is None else torch.tensor(slopes, device=device),
                "window_size": tuple(window_size),
            }
            self.inner_attn: Any = FlashSelfAttention(**numbers)
            self.inner_cross_attn: Any = FlashCrossAttention(**numbers)
        else:
            self.inner_attn, self.inner_cross_attn = SelfAttention(**numbers), CrossAttention(**numbers)

    @property
    def _packed(self) -> bool:
        """Do queries, keys and values lie in one tensor of as many heads each?"""
        return not self.cross_attn and self.num_heads == self.num_heads_kv

    @staticmethod
    def _convolution(channels: int, where: dict[str, Any]) -> torch.nn.Conv1d:
        return torch.nn.Conv1d(channels, channels, kernel_size=3, padding=2, groups=channels, **where)

    @staticmethod
    def _convolved(by: torch.nn.Conv1d, x: Tensor) -> Tensor:
        """Of each token and the two before it; x (batch, seqlen, channels)."""
        made: Tensor = by(x.transpose(1, 2))[..., :-2]
        return made.transpose(1, 2).contiguous()

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None) -> Tensor:
        """Keys and values (batch_size, max_seqlen, 2, num_heads_kv, head_dim), for inference_params' dictionary."""
        weight = self.out_proj.weight
        shape = batch_size, max_seqlen, 2, self._heads_kv, self.head_dim
        return torch.empty(shape, dtype=weight.dtype if dtype is None else dtype, device=weight.device)

    def forward(
        self,
        x: Tensor,
        x_kv: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        mixer_subset: Any = None,
        inference_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        """x (batch, seqlen, embed_dim), or (total, embed_dim) with cu_seqlens, int32 (batch + 1), and max_seqlen.

        x_kv: of cross attention, x where absent; mixer_subset: index of the tokens of x that ask, of cross attention.
        key_padding_mask: bool (batch, seqlen), True: the key counts; only without use_flash_attn. cu_seqlens only with.
        inference_params, for generation, has max_seqlen, max_batch_size, seqlen_offset, batch_size_offset,
        lengths_per_sample (None, or int32 (batch)) and key_value_memory_dict, to which this layer's cache is added.
        kwargs go to the attention.
        """
        self._check(key_padding_mask, cu_seqlens, max_seqlen, inference_params)
        if not self.use_flash_attn:
            kwargs["key_padding_mask"] = key_padding_mask
        elif cu_seqlens is not None:
            kwargs |= {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
            if not self._packed:
                kwargs = {"cu_seqlens_k": cu_seqlens, "max_seqlen_k": max_seqlen} | kwargs
        if self._packed and (x_kv is not None or mixer_subset is not None):
            name = "mixer_subset" if x_kv is None else "x_kv"
            raise FaceArgumentError(f"{name}: was given, must be absent: this is no cross attention")
        context = self._context(*self._projected(x, x_kv, mixer_subset), inference_params, kwargs)
        out = self.out_proj(context.flatten(-2))
        return (out, x) if self.return_residual else out

    def _context(self, q: Any, kv: Any, qkv: Any, inference_params: Any, kwargs: dict[str, Any]) -> Tensor:
        """Attention of what `_projected` made, (..., heads, head_dim)."""
        if inference_params is not None:
            return self._generated(q, kv, qkv, inference_params)
        if qkv is not None:
            if self.rotary_emb_dim:
                qkv = self.rotary_emb(qkv)
            return self._attended(self.inner_attn, (qkv,), kwargs)
        if self.rotary_emb_dim:
            q, kv = self.rotary_emb(q, kv)
        return self._attended(self.inner_cross_attn, (q, kv), kwargs)

    def _check(self, key_padding_mask: Any, cu_seqlens: Any, max_seqlen: Any, inference_params: Any) -> None:
        def absent(name: str, because: str) -> None:
            raise FaceArgumentError(f"{name}: was given, must be absent {because}")

        if key_padding_mask is not None and self.use_flash_attn:
            absent("key_padding_mask", "with use_flash_attn: unpad x, and give cu_seqlens")
        if cu_seqlens is not None:
            if not self.use_flash_attn:
                absent("cu_seqlens", "without use_flash_attn")
            if self.dwconv or self.rotary_emb_dim:
                absent("cu_seqlens", "with dwconv and with rotary embedding")
            if max_seqlen is None:
                raise FaceArgumentError("max_seqlen: was None, must be given with cu_seqlens")
        if inference_params is not None:
            if key_padding_mask is not None or cu_seqlens is not None:
                absent("inference_params", "with key_padding_mask and with cu_seqlens")
            if self.dwconv or self.cross_attn:
                absent("inference_params", "with dwconv and with cross_attn")
            if self.layer_idx is None:
                raise FaceArgumentError("layer_idx: was None, must be said to the module that is to have a KV cache")

    def _projected(self, x: Tensor, x_kv: Tensor | None, subset: Any) -> tuple[Any, Any, Any]:
        """(q, kv, None) of their heads, or (None, None, qkv)."""
        heads, heads_kv = (self._heads, self.head_dim), (2, self._heads_kv, self.head_dim)
        if self._packed:
            qkv = self.Wqkv(x)
            qkv = self._convolved(self.dwconv_qkv, qkv) if self.dwconv else qkv
            return None, None, qkv.unflatten(-1, (3, *heads))
        if self.cross_attn:
            q = self.Wq(x if subset is None else x[:, subset])
            kv = self.Wkv(x if x_kv is None else x_kv)
        else:
            q, kv = self.Wqkv(x).split([self._heads * self.head_dim, 2 * self.head_dim * self._heads_kv], -1)
        if self.dwconv:
            q, kv = self._convolved(self.dwconv_q, q), self._convolved(self.dwconv_kv, kv)
        return q.unflatten(-1, heads), kv.unflatten(-1, heads_kv), None

    def _attended(self, attention: Any, packed: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Tensor:
        if self.checkpointing:
            made = torch.utils.checkpoint.checkpoint(attention, *packed, use_reentrant=False, **kwargs)
        else:
            made = attention(*packed, **kwargs)
        out: Tensor = made
        return out

    def _generated(self, q: Any, kv: Any, qkv: Any, params: Any) -> Tensor:
        """Attention over the cache, to which the new keys and values go."""
        q, kv = (q, kv) if qkv is None else (qkv[:, :, 0], qkv[:, :, 1:])
        store, begin, offset = params.key_value_memory_dict, params.batch_size_offset, params.seqlen_offset
        if self.layer_idx not in store:
            store[self.layer_idx] = self.allocate_inference_cache(params.max_batch_size, params.max_seqlen, kv.dtype)
        cache = store[self.layer_idx]
        last, end = begin + len(kv), offset + kv.shape[1]
        if last > len(cache) or end > cache.shape[1]:
            raise FaceArgumentError(
                f"inference_params: the cache holds {len(cache)} sequences of {cache.shape[1]}, "
                f"must hold {last} of {end}"
            )
        cache = cache[begin:last]
        if offset and self.use_flash_attn:
            return self._step(q, kv, cache, params)
        if self.rotary_emb_dim:
            q, kv = self.rotary_emb(q, kv, seqlen_offset=offset, max_seqlen=params.max_seqlen)
        cache[:, offset:end] = kv
        made: Tensor = self.inner_cross_attn(q, cache[:, :end])
        return made

    def _step(self, q: Tensor, kv: Tensor, cache: Tensor, params: Any) -> Tensor:
        """One call appends, rotates and attends."""
        more: dict[str, Any] = {}
        if self.rotary_emb_dim:
            if self.rotary_emb.scale_base is not None:
                raise FaceArgumentError("rotary_emb_scale_base: was given, must be None: the KV cache has one table")
            self.rotary_emb._update_cos_sin_cache(params.max_seqlen, device=q.device, dtype=q.dtype)
            more = {"rotary_cos": self.rotary_emb._cos_cached, "rotary_sin": self.rotary_emb._sin_cached}
        lengths = params.lengths_per_sample
        inner = self.inner_cross_attn
        made: Tensor = flash_attn_with_kvcache(
            q, cache[:, :, 0], cache[:, :, 1], kv[:, :, 0], kv[:, :, 1], **more,
            cache_seqlens=params.seqlen_offset if lengths is None else lengths[params.batch_size_offset :][: len(q)],
            softmax_scale=inner.softmax_scale, causal=inner.causal, window_size=inner.window_size,
            rotary_interleaved=self.rotary_emb.interleaved if self.rotary_emb_dim else False,
            alibi_slopes=inner.alibi_slopes,
        )  # fmt: skip
        return made


class ParallelMHA(MHA):
    """MHA of which each process has a part of the heads; the arguments as of MHA.

    process_group: the group; with sequence_parallel forward takes and gives this process's part of dimension 0.
    The heads are of keys and values with all queries that go with them, the first processes having one more.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        process_group: Any,
        num_heads_kv: int | None = None,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        layer_idx: int | None = None,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_scale_base: float | None = None,
        rotary_emb_interleaved: bool = False,
        use_alibi: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        use_flash_attn: bool = False,
        checkpointing: bool = False,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        self.cross_attn, self.dwconv, self.return_residual = False, False, False
        rotary = rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, rotary_emb_scale_base, device
        self._begin(embed_dim, num_heads, num_heads_kv, layer_idx, use_flash_attn, checkpointing, rotary)
        self.process_group = process_group
        world, rank = torch.distributed.get_world_size(process_group), torch.distributed.get_rank(process_group)
        together = num_heads // self.num_heads_kv
        parts = [get_dim_for_local_rank(self.num_heads_kv, world, one) for one in range(world)]
        self.num_heads_kv_per_rank = self._heads_kv = parts[rank]
        self.num_heads_per_rank = self._heads = together * parts[rank]
        self._attend(dropout, softmax_scale, causal, use_alibi, window_size, device, together * sum(parts[:rank]))
        where: dict[str, Any] = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        self.Wqkv = ColumnParallelLinear(
            embed_dim, self.head_dim * (num_heads + 2 * self.num_heads_kv), process_group, qkv_proj_bias,
            multiple_of=self.head_dim * (together + 2), **where,
        )  # fmt: skip
        self.out_proj = RowParallelLinear(
            embed_dim, embed_dim, process_group, out_proj_bias, multiple_of=self.head_dim * together, **where
        )

    def forward(  # type: ignore[override]
        self, x: Tensor, seqlen: int | None = None, inference_params: Any = None, **kwargs: Any
    ) -> Tensor:
        """x (batch, seqlen, embed_dim), or with seqlen (batch seqlen, embed_dim); with sequence_parallel its part.

        inference_params as of MHA.forward; kwargs go to the attention.
        """
        self._check(None, None, None, inference_params)
        projected = self.Wqkv(x)
        if seqlen is not None:
            projected = projected.unflatten(0, (-1, seqlen))
        context = self._context(*self._split(projected), inference_params, kwargs).flatten(-2)
        out: Tensor = self.out_proj(context if seqlen is None else context.flatten(0, 1))
        return out

    def _split(self, projected: Tensor) -> tuple[Any, Any, Any]:
        """As `_projected`, of the projection."""
        if self._packed:
            return None, None, projected.unflatten(-1, (3, self._heads, self.head_dim))
        q, kv = projected.split([self._heads * self.head_dim, 2 * self.head_dim * self._heads_kv], -1)
        return q.unflatten(-1, (self._heads, self.head_dim)), kv.unflatten(-1, (2, self._heads_kv, self.head_dim)), None
