# SPDX-License-Identifier: MIT
"""Places of a batch's sequences, as the calls of one step take them, the same for every layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata

FEW = 4
"""Queries of a sequence that are appended and attended in one call: as fast as split-KV is."""


@dataclass(frozen=True)
class Step:
    """Sequences side by side of as many queries each, up to FEW."""

    tokens: slice
    queries: int
    table: Tensor  # (sequences, pages), int32
    lengths: Tensor  # (sequences), int32, keys with the new ones
    before: Tensor  # (sequences), int32, keys without them

    def part(self) -> Part:
        """The same as a part of packed sequences."""
        starts = torch.arange(self.lengths.shape[0] + 1, dtype=torch.int32, device=self.lengths.device) * self.queries
        return Part(self.tokens, starts, self.lengths, self.table, True)


@dataclass(frozen=True)
class Part:
    """Packed sequences that one call attends, with one mask."""

    tokens: slice
    starts: Tensor  # (sequences + 1), int32, from 0
    lengths: Tensor  # (sequences), int32, keys with the new ones
    table: Tensor
    causal: bool


@dataclass
class Batch:
    """A step of the engine, as `Attention.forward` is told of it; over an encoder's keys vLLM replaces slot_mapping."""

    tokens: int
    starts: Tensor  # (sequences + 1), int32
    steps: list[Step]
    parts: list[Part]
    slot_mapping: Tensor  # (tokens), int64: the page of a token times their size, and its place there
    most: dict[str, int] = field(default_factory=dict)  # max_seqlen_q and max_seqlen_k where arrays stay on a device

    @property
    def all_parts(self) -> list[Part]:
        """Steps among them, for a kernel that takes both; a single query sees all keys, causal or not."""
        return [*(one.part() for one in self.steps), *self.parts]


def batch_of(starts: Tensor, lengths: Tensor, table: Tensor, causal: bool | Tensor, slots: Tensor) -> Batch:
    """The batch of sequences whose queries are [starts[i], starts[i + 1]) and whose keys are the first lengths[i].

    starts (sequences + 1), lengths (sequences), table (sequences, pages), int32. causal: of all sequences, or
    (sequences), bool.
    """
    edges = starts.tolist()
    before = (lengths - starts.diff()).int()
    flags = causal.tolist() if isinstance(causal, Tensor) else [bool(causal)] * lengths.shape[0]
    steps, parts = list[Step](), list[Part]()
    first = 0  # of the part that is open
    for here, queries in _runs(edges):
        if queries == 1 or (queries <= FEW and all(flags[here])):
            parts += _parts(edges, starts, lengths, table, flags, slice(first, here.start))
            tokens = slice(edges[here.start], edges[here.stop])
            steps.append(Step(tokens, queries, table[here], lengths[here], before[here]))
            first = here.stop
    parts += _parts(edges, starts, lengths, table, flags, slice(first, lengths.shape[0]))
    return Batch(slots.shape[0], starts, steps, parts, slots)


def _runs(edges: list[int]) -> Iterator[tuple[slice, int]]:
    """Sequences side by side of as many queries, and how many; those of none are left out."""
    counts = [last - first for first, last in itertools.pairwise(edges)]
    first = 0
    for queries, run in itertools.groupby(counts):
        here = slice(first, first + sum(1 for _ in run))
        if queries:
            yield here, queries
        first = here.stop


def _parts(
    edges: list[int], starts: Tensor, lengths: Tensor, table: Tensor, flags: list[bool], here: slice
) -> Iterator[Part]:
    """The sequences of `here`, those side by side with one mask together."""
    first = here.start
    for causal, run in itertools.groupby(flags[here]):
        rows = slice(first, first + sum(1 for _ in run))
        tokens = slice(edges[first], edges[rows.stop])
        if tokens.stop > tokens.start:
            yield Part(tokens, starts[first : rows.stop + 1] - edges[first], lengths[rows], table[rows], causal)
        first = rows.stop


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
        slots = common.slot_mapping[: common.num_actual_tokens]
        return batch_of(
            common.query_start_loc, common.seq_lens, common.block_table_tensor, common.causal, slots
        )  # fmt: skip
