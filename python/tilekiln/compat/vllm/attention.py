# SPDX-License-Identifier: MIT
"""vLLM's attention over its caches of pages, which are read and written where they lie.

A layer's cache is (blocks, heads, block_size, 2 headdim), keys in the first half of a row, values in the second, of the
queries' dtype, or e4m3 or e5m2 as uint8 under bf16. Sequences of one query, or of up to four, as many side by side,
append and attend in one call; the tokens of others are written by their slots, and attend together.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from ..._core.native import ArgumentError
from ...api.operators import _call
from ...torch import calls
from .batch import Batch, Builder, Step

FORMATS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""Values of kv_cache_dtype, and what a byte of such a cache is."""
KINDS = (
    AttentionType.DECODER, AttentionType.ENCODER, AttentionType.ENCODER_ONLY, AttentionType.ENCODER_DECODER,
)  # fmt: skip


class Backend(AttentionBackend):
    """Attention of decoders, of encoders, and of decoders to an encoder's keys; fp32, fp16 and bf16."""

    forward_includes_kv_cache_update = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", *FORMATS]

    @staticmethod
    def get_name() -> str:
        """CPU_ATTN: vLLM wants a name of its own list."""
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> type[Attention]:
        """The class that computes."""
        return Attention

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """The class that says which places the sequences of a batch have."""
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Tokens of a page."""
        return [MultipleOf(16)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """By head first, which is the faster for 16 bits, or by token."""
        return (KVCacheLayout.LBHNC, KVCacheLayout.LBNHC)

    @classmethod
    def supports_sink(cls) -> bool:
        """A logit a head, as gpt-oss has."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Of any width."""
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        """For all sequences, or for each of its own."""
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """All kinds."""
        return attn_type in KINDS


def _each(x: Tensor, one: Step) -> Tensor:
    """(sequences, queries, heads, headdim) of the tokens of a step."""
    x = x if one.tokens == slice(0, x.shape[0]) else x[one.tokens]
    return x.unsqueeze(1) if one.queries == 1 else x.unflatten(0, (-1, one.queries))


class Attention(AttentionImpl):
    """One layer's."""

    device: ClassVar[str] = "cpu"

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int,
        alibi_slopes: list[float] | None = None, sliding_window: int | None = None, kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None, attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None, sinks: Tensor | None = None,
    ) -> None:  # fmt: skip
        """As vLLM's own; ArgumentError where it wants what is not there."""
        if attn_type not in KINDS:
            raise ArgumentError(f"attn_type: was {attn_type!r}, must be {', '.join(KINDS)}")
        if kv_cache_dtype not in Backend.supported_kv_cache_dtypes:
            raise ArgumentError(
                f"kv_cache_dtype: was {kv_cache_dtype!r}, must be {', '.join(Backend.supported_kv_cache_dtypes)}"
            )
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.kv_cache_dtype, self.attn_type = float(scale), kv_cache_dtype, attn_type
        self.sliding_window = sliding_window
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.encodes = attn_type in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
        self.crosses = attn_type == AttentionType.ENCODER_DECODER
        self.alibi_slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32, device=self.device)
        )
        self.sinks = sinks
        self.places: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        self.options: dict[str, Any] = {"softmax_scale": self.scale}
        if logits_soft_cap:
            self.options["softcap"] = float(logits_soft_cap)
        if self.alibi_slopes is not None:
            self.options["alibi_slopes"] = self.alibi_slopes

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Sinks become fp32, once they are loaded."""
        if self.sinks is not None:
            self.options["sink"] = self.sinks.detach().float().contiguous()

    def forward(
        self, layer: Any, query: Tensor, key: Tensor | None, value: Tensor | None, kv_cache: Tensor,
        attn_metadata: Batch | None, output: Tensor, output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """output, query (tokens, heads, headdim), key, value (tokens, heads of keys, headdim); output is written."""
        if output_scale is not None or output_block_scale is not None:
            raise ArgumentError("output_scale: was given, must be absent: results are not quantised here")
        if attn_metadata is None:  # vLLM warms up
            return output
        batch = attn_metadata
        if self.encodes:
            if key is None or value is None:
                raise ArgumentError("key: was absent, must be there for an encoder's attention")
            self._encode(query, key, value, batch, output)
            return output
        if self.kv_sharing_target_layer_name is not None:
            key = value = None  # the layer whose cache this is has written it
        if kv_cache.dtype == torch.uint8:
            self._over_fp8(layer, query, key, value, kv_cache, batch, output)
        elif self.crosses:
            self._over_an_encoder(query, key, value, kv_cache, batch, output)
        else:
            self._over_floats(query, key, value, kv_cache, batch, output)
        return output

    def _mask(self, causal: bool) -> dict[str, Any]:
        """The arguments that say which keys a query sees."""
        if self.sliding_window is None:
            return {"causal": causal}
        return {"window": (self.sliding_window - 1, 0 if causal else self.sliding_window - 1)}

    def _encode(self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, out: Tensor) -> None:
        tokens = slice(0, batch.tokens)
        calls.forward(
            q[tokens], k[tokens], v[tokens], out=out[tokens], cu_seqlens_q=batch.starts, cu_seqlens_k=batch.starts,
            return_lse=False, **self._mask(causal=False), **self.options,
        )  # fmt: skip

    def _halves(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """k, v (blocks, block_size, heads, headdim) of the cache's memory, made once: vLLM gives a layer the same."""
        known, k, v = self.places
        if known is not cache or k is None or v is None:
            of_bytes = cache.dtype == torch.uint8
            places = (cache.view(FORMATS[self.kv_cache_dtype]) if of_bytes else cache).transpose(1, 2)
            k, v = places[..., : self.head_size], places[..., self.head_size :]
            self.places = cache, k, v
        return k, v

    def _over_floats(
        self, q: Tensor, key: Tensor | None, value: Tensor | None, cache: Tensor, batch: Batch, out: Tensor
    ) -> None:
        k, v = self._halves(cache)
        for one in batch.steps:
            queries, rows = _each(q, one), {"block_table": one.table, "out": _each(out, one)}
            rows |= self._mask(causal=True) | self.options
            if key is not None and value is not None and len(self.options) == 1 and not batch.most:
                new = _each(key, one), _each(value, one)
                _call("fmha_fwd_appendkv", (queries, k, v, *new), {"seqlen_k": one.before, **rows})
            else:
                self._write(key, value, k, v, batch, one.tokens)
                _call("fmha_fwd_splitkv", (queries, k, v), {"seqlen_k": one.lengths, **rows, **batch.most})
        for part in batch.parts:
            self._write(key, value, k, v, batch, part.tokens)
            calls.pagedkv(
                q[part.tokens], k, v, out=out[part.tokens], cu_seqlens_q=part.starts, seqlen_k=part.lengths,
                block_table=part.table, **self._mask(part.causal), **self.options, **batch.most,
            )  # fmt: skip

    def _over_an_encoder(
        self, q: Tensor, key: Tensor | None, value: Tensor | None, cache: Tensor, batch: Batch, out: Tensor
    ) -> None:
        """An encoder's keys are written in the step that brings them, and seen by all queries of all steps."""
        k, v = self._halves(cache)
        self._write(key, value, k, v, batch, slice(batch.slot_mapping.shape[0]))
        for part in batch.all_parts:
            calls.pagedkv(
                q[part.tokens], k, v, out=out[part.tokens], cu_seqlens_q=part.starts, seqlen_k=part.lengths,
                block_table=part.table, **self._mask(causal=False), **self.options,
            )  # fmt: skip

    @staticmethod
    def _write(
        key: Tensor | None, value: Tensor | None, k: Tensor, v: Tensor, batch: Batch, tokens: slice, **scales: Tensor
    ) -> None:
        """The new tokens among these to their slots; without a key they are there."""
        if key is not None and value is not None:
            _call("reshape_and_cache", (key[tokens], value[tokens], k, v, batch.slot_mapping[tokens]), scales)

    def _over_fp8(
        self, layer: Any, q: Tensor, key: Tensor | None, value: Tensor | None, cache: Tensor, batch: Batch, out: Tensor
    ) -> None:
        if q.dtype != torch.bfloat16:
            raise ArgumentError(f"query: was {q.dtype} over a cache of fp8, must be bfloat16: say --dtype bfloat16")
        if "sink" in self.options:
            raise ArgumentError("sinks: were given over a cache of fp8, must be absent: say --kv-cache-dtype auto")
        k, v = self._halves(cache)
        k_scale, v_scale = layer._k_scale.float().reshape(1), layer._v_scale.float().reshape(1)
        self._write(key, value, k, v, batch, slice(batch.tokens), k_scale=k_scale, v_scale=v_scale)
        for part in batch.all_parts:
            calls.batch_prefill(
                q[part.tokens], k, v, out=out[part.tokens], cu_seqlens_q=part.starts, seqlen_k=part.lengths,
                block_table=part.table, k_descale=k_scale, v_descale=v_scale, **self._mask(part.causal), **self.options,
                **batch.most,
            )  # fmt: skip
