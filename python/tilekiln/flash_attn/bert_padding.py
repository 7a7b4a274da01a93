"""flash_attn.bert_padding: from padded batches to packed tokens and back, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["index_first_axis", "pad_input", "unpad_input"]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:  # noqa: A002
    """The rows of input (rows, ...) at indices (n), integers: (n, ...)."""
    return input.index_select(0, indices)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens that the masks mark, packed one after another.

    hidden_states (batch, seqlen, ...). attention_mask, unused_mask: bool or integers (batch, seqlen), 1 for tokens, and
    for tokens that keep their place without being used.
    Returns (tokens (total, ...), their places in batch x seqlen, int64 (total), cu_seqlens, int32 (batch + 1), the
    length of the longest sequence, the used tokens of each sequence, int32 (batch)).
    """
    all_masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = all_masks.sum(-1, dtype=torch.int32)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    indices = all_masks.flatten().nonzero().flatten()
    longest = int(lengths.max()) if lengths.numel() else 0
    used = attention_mask.sum(-1, dtype=torch.int32)
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The inverse of unpad_input: tokens (total, ...) to (batch, seqlen, ...), zeros elsewhere.

    indices: int64 or int32 (total), distinct places in batch x seqlen.
    """
    rows = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    padded: Tensor = rows.index_copy(0, indices.long(), hidden_states).unflatten(0, (batch, seqlen))
    return padded
