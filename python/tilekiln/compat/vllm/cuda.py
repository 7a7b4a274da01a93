# SPDX-License-Identifier: MIT
"""vLLM's attention of decoders on CUDA GPUs, which it takes with `--attention-backend CUSTOM`.

The caches and calls of `attention`. Arrays that say where keys lie stay on the device: sequences of one query, which
vLLM puts first, are counted by its copies on the host.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata

from . import attention, batch
from .batch import Batch, Part, Step


class Backend(attention.Backend):
    """fp16 and bf16, and caches of e4m3 under bf16, of sm_80 and later."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", "fp8", "fp8_e4m3"]

    @staticmethod
    def get_name() -> str:
        """CUSTOM: the name by which it is asked for."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Attention]:
        """The class that computes."""
        return Attention

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """The class that says which places the sequences of a batch have."""
        return Builder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Multiples of 8 up to 256."""
        return head_size % 8 == 0 and head_size <= 256

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        """From sm_80 on."""
        return capability >= DeviceCapability(8, 0)

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Of no model here."""
        return False

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, block_size: int | None, use_mla: bool,
        has_sink: bool, use_sparse: bool, use_mm_prefix: bool, device_capability: DeviceCapability,
    ) -> str | None:  # fmt: skip
        """A reason why not."""
        if kv_cache_dtype in attention.FORMATS and (has_sink or dtype != torch.bfloat16):
            return "a cache of fp8 goes with bfloat16, without sinks"
        return None

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Decoders, over their own keys."""
        return attn_type == AttentionType.DECODER


class Attention(attention.Attention):
    """One layer's."""

    device: ClassVar[str] = "cuda"


class Builder(batch.Builder):
    """Of a group of layers; nothing is read from the device, and no graph of CUDA holds it."""

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Batch:
        """The batch of a step: the sequences of one query, then all others, padding too."""
        common = common_attn_metadata
        edges, lengths, table = common.query_start_loc_cpu.tolist(), common.seq_lens, common.block_table_tensor
        ones = next((i for i in range(len(edges) - 1) if edges[i + 1] != i + 1), len(edges) - 1)
        slots, tokens = common.slot_mapping[: common.num_actual_tokens], edges[-1]
        steps, parts = list[Step](), list[Part]()
        if ones:
            steps.append(Step(slice(0, ones), 1, table[:ones], lengths[:ones], lengths[:ones] - 1))
        if tokens > ones:
            starts = common.query_start_loc[ones:] - ones
            parts.append(Part(slice(ones, tokens), starts, lengths[ones:], table[ones:], bool(common.causal)))
        most: dict[str, Any] = {"max_seqlen_q": common.max_query_len, "max_seqlen_k": common.max_seq_len}
        return Batch(tokens, common.query_start_loc, steps, parts, slots, most)
