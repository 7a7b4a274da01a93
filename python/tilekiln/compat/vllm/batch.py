# SPDX-License-Identifier: MIT
"""Places of a batch's sequences, as the calls of one step take them, the same for every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.utils import split_decodes_and_prefills


@dataclass(frozen=True)
class Decodes:
    """The first sequences, of one query each."""

    count: int
    table: Tensor  # (count, pages), int32
    lengths: Tensor  # (count), int32, keys with the new one
    before: Tensor  # (count), int32, keys without it

    def part(self) -> Part:
        """The same as a part of packed sequences."""
        starts = torch.arange(self.count + 1, dtype=torch.int32, device="cpu")
        return Part(slice(0, self.count), starts, self.lengths, self.table, True)


@dataclass(frozen=True)
class Part:
    """Packed sequences that one call attends, with one mask."""

    tokens: slice
    starts: Tensor  # (sequences + 1), int32, from 0
    lengths: Tensor  # (sequences), int32, keys with the new ones
    table: Tensor
    causal: bool


@dataclass(frozen=True)
class Batch:
    """A step, as `Attention.forward` is told of it."""

    tokens: int
    starts: Tensor  # (sequences + 1), int32
    decodes: Decodes | None
    parts: list[Part]
    appends: list[tuple[slice, Tensor, Tensor]]  # of each sequence in parts: its tokens, keys before, (1, pages)
    slots: Tensor  # (tokens), int64: the page of a token times their size, and its place there

    @property
    def all_parts(self) -> list[Part]:
        """Decodes among them, for a kernel that takes both."""
        return [self.decodes.part(), *self.parts] if self.decodes else self.parts


def batch_of(
    starts: Tensor, lengths: Tensor, table: Tensor, causal: bool | Tensor, decodes: int, slots: Tensor
) -> Batch:
    """The batch of sequences whose queries are [starts[i], starts[i + 1]) and whose keys are the first lengths[i].

    starts (sequences + 1), lengths (sequences), table (sequences, pages), int32. The first `decodes` have one query.
    causal: of all sequences, or (sequences), bool.
    """
    edges = starts.tolist()
    queries = starts.diff()
    before = (lengths - queries).int()
    one = Decodes(decodes, table[:decodes], lengths[:decodes], before[:decodes]) if decodes else None
    flags = causal.tolist() if isinstance(causal, Tensor) else [bool(causal)] * lengths.shape[0]
    parts, appends, first = [], [], decodes
    for sequence in range(decodes, lengths.shape[0]):
        here = slice(edges[sequence], edges[sequence + 1])
        if here.stop > here.start:
            row = slice(sequence, sequence + 1)
            appends.append((here, before[row], table[row]))
        following = sequence + 1
        if following == lengths.shape[0] or flags[following] != flags[first]:
            rows = slice(first, following)
            place = slice(edges[first], edges[following])
            parts.append(
                Part(place, starts[first : following + 1] - edges[first], lengths[rows], table[rows], flags[first])
            )
            first = following
    return Batch(slots.shape[0], starts, one, parts, appends, slots)


class Builder(AttentionMetadataBuilder[Batch]):
    """Of a group of layers. vLLM puts sequences of one query first."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        """As vLLM's own."""
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Batch:
        """The batch of a step."""
        common = common_attn_metadata
        decodes = split_decodes_and_prefills(common, decode_threshold=1)[0] if common.num_reqs else 0
        return batch_of(
            common.query_start_loc, common.seq_lens, common.block_table_tensor, common.causal, decodes,
            common.slot_mapping[: common.num_actual_tokens],
        )  # fmt: skip
