# SPDX-License-Identifier: MIT
"""flash_attn.bert_padding: from padded batches to packed tokens and back, differentiable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "IndexFirstAxis",
    "IndexFirstAxisResidual",
    "IndexPutFirstAxis",
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:  # noqa: A002
    """The rows of input (rows, ...) at indices (n), integers: (n, ...)."""
    return input.index_select(0, indices)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:  # noqa: A002
    """(index_first_axis(input, indices), input): the second shares input's memory, and gradients of both add up."""
    return index_first_axis(input, indices), input.view_as(input)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """(first_axis_dim, ...) of zeros, with values (n, ...) in the rows at indices (n), distinct, int64 or int32."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices.long(), values)


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
    cu_seqlens, longest = _packed(all_masks.sum(-1, dtype=torch.int32))
    indices = all_masks.flatten().nonzero().flatten()
    used = attention_mask.sum(-1, dtype=torch.int32)
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest, used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """unpad_input where a row of the batch holds several sequences, one behind the other, then padding.

    hidden_states (batch, seqlen, ...). attention_mask_in_length: integers (batch, seqlen): of each row the lengths of
    its sequences, and zeros. Returns the first four results of unpad_input, for these sequences.
    """
    there = torch.arange(
        attention_mask_in_length.shape[1], device=attention_mask_in_length.device
    ) < attention_mask_in_length.sum(-1, keepdim=True)
    indices = there.flatten().nonzero().flatten()
    cu_seqlens, longest = _packed(attention_mask_in_length[attention_mask_in_length != 0])
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def _packed(lengths: Tensor) -> tuple[Tensor, int]:
    """cu_seqlens of sequences of these lengths, int32 (batch + 1), and the longest."""
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return cu_seqlens, int(lengths.max()) if lengths.numel() else 0


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The inverse of unpad_input: tokens (total, ...) to (batch, seqlen, ...), zeros elsewhere.

    indices: int64 or int32 (total), distinct places in batch x seqlen.
    """
    padded: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
    return padded


class IndexFirstAxis:
    """index_first_axis for callers of upstream's autograd function: `IndexFirstAxis.apply`."""

    apply = staticmethod(index_first_axis)


class IndexFirstAxisResidual:
    """index_first_axis_residual for callers of upstream's autograd function."""

    apply = staticmethod(index_first_axis_residual)


class IndexPutFirstAxis:
    """index_put_first_axis for callers of upstream's autograd function."""

    apply = staticmethod(index_put_first_axis)


def __getattr__(name: str) -> Any:
    """rearrange is einops' own: upstream has it here because it depends on einops, and callers import it from here."""
    if name != "rearrange":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from einops import rearrange
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"flash_attn.bert_padding.rearrange is that of einops, which is not there ({error}): pip install einops",
            name=error.name,
        ) from None
    return rearrange
