# SPDX-License-Identifier: MIT
"""flash_attn.modules.embedding: sums of embeddings of words, positions and kinds, of one process and of several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._modules import FaceArgumentError
from ..utils.distributed import all_reduce, reduce_scatter

__all__ = [
    "BertEmbeddings",
    "ColumnParallelEmbedding",
    "GPT2Embeddings",
    "ParallelGPT2Embeddings",
    "VocabParallelEmbedding",
]


def _positions(input_ids: Tensor, position_ids: Tensor | None) -> Tensor:
    return torch.arange(input_ids.shape[1], device=input_ids.device) if position_ids is None else position_ids


class GPT2Embeddings(torch.nn.Module):
    """Embeddings of words and, with max_position_embeddings above 0, of positions.

    word_embed_proj_dim: width of the words' embeddings, which project_in then brings to embed_dim; None: embed_dim.
    """

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        padding_idx: int | None = None,
        word_embed_proj_dim: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        width = embed_dim if word_embed_proj_dim is None else word_embed_proj_dim
        self.word_embeddings = torch.nn.Embedding(vocab_size, width, padding_idx, **where)
        self.project_in = (
            None if word_embed_proj_dim is None else torch.nn.Linear(width, embed_dim, bias=False, **where)
        )
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = torch.nn.Embedding(max_position_embeddings, embed_dim, **where)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """(batch, seqlen, embed_dim) of input_ids (batch, seqlen); position_ids alike, from 0 on unless given."""
        made: Tensor = self.word_embeddings(input_ids)
        if self.project_in is not None:
            made = self.project_in(made)
        if self.max_position_embeddings > 0:
            made = made + self.position_embeddings(_positions(input_ids, position_ids))
        return made


class BertEmbeddings(torch.nn.Module):
    """Embeddings of words, of positions and of kinds of token; a number of 0 is none of these."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        type_vocab_size: int,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.word_embeddings = torch.nn.Embedding(vocab_size, embed_dim, padding_idx, **where)
        self.max_position_embeddings, self.type_vocab_size = max_position_embeddings, type_vocab_size
        if max_position_embeddings > 0:
            self.position_embeddings = torch.nn.Embedding(max_position_embeddings, embed_dim, **where)
        if type_vocab_size > 0:
            self.token_type_embeddings = torch.nn.Embedding(type_vocab_size, embed_dim, **where)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """(batch, seqlen, embed_dim) of three tensors (batch, seqlen); positions from 0 on, kinds 0 unless given."""
        made: Tensor = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            made = made + self.position_embeddings(_positions(input_ids, position_ids))
        if self.type_vocab_size > 0:
            kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            made = made + self.token_type_embeddings(kinds)
        return made


def _share(name: str, number: int, process_group: Any) -> int:
    """The part of a number that each process has."""
    world = 1 if process_group is None else torch.distributed.get_world_size(process_group)
    if number % world:
        raise FaceArgumentError(f"{name}: was {number}, must be a multiple of {world}, the number of processes")
    return number // world


class VocabParallelEmbedding(torch.nn.Embedding):
    """An embedding of which each process has a part of the rows; the sum of what they give is that of the whole."""

    def __init__(
        self, num_embeddings: int, *args: Any, process_group: Any = None, padding_idx: int | None = None, **kwargs: Any
    ) -> None:
        rows = _share("num_embeddings", num_embeddings, process_group)
        if rows != num_embeddings and padding_idx is not None:
            raise FaceArgumentError(
                f"padding_idx: was {padding_idx}, must be None where several processes have the rows"
            )
        kwargs["padding_idx"] = padding_idx
        super().__init__(rows, *args, **kwargs)
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Rows of zeros for what another process has."""
        if self.process_group is None:
            return super().forward(input)
        own = input - torch.distributed.get_rank(self.process_group) * self.num_embeddings
        other = (own < 0) | (own >= self.num_embeddings)
        return super().forward(own.masked_fill(other, 0)).masked_fill(other[..., None], 0.0)


class ColumnParallelEmbedding(torch.nn.Embedding):
    """An embedding of which each process has a part of the columns."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *args: Any, process_group: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(num_embeddings, _share("embedding_dim", embedding_dim, process_group), *args, **kwargs)
        self.process_group = process_group


class ParallelGPT2Embeddings(torch.nn.Module):
    """GPT2Embeddings of which each process has a part of the words and a part of the positions' columns."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        process_group: Any,
        padding_idx: int | None = None,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"process_group": process_group, "device": device, "dtype": dtype}
        self.process_group, self.sequence_parallel = process_group, sequence_parallel
        self.word_embeddings = VocabParallelEmbedding(vocab_size, embed_dim, padding_idx=padding_idx, **where)
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = ColumnParallelEmbedding(max_position_embeddings, embed_dim, **where)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, combine_batch_seqlen_dim: bool = False
    ) -> Tensor:
        """As GPT2Embeddings, of the same input_ids in every process; with sequence_parallel a part of dimension 0.

        combine_batch_seqlen_dim: (batch seqlen, embed_dim), of which that part then is.
        """
        made: Tensor = self.word_embeddings(input_ids)
        world = torch.distributed.get_world_size(self.process_group)
        if self.max_position_embeddings > 0:
            placed = self.position_embeddings(_positions(input_ids, position_ids))
            width = placed.shape[-1]
            before = torch.distributed.get_rank(self.process_group) * width
            made = made + torch.nn.functional.pad(placed, (before, (world - 1) * width - before))
        if combine_batch_seqlen_dim:
            made = made.flatten(0, 1)
        if world == 1:
            return made
        return (reduce_scatter if self.sequence_parallel else all_reduce)(made, self.process_group)
