# SPDX-License-Identifier: MIT
"""aiter.ops.shuffle: weights in the tiles of aiter's kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...._core.native import ArgumentError
from ..._modules import errors_as_upstream
from .._rows import off

__all__ = ["shuffle_weight"]


@errors_as_upstream()
def shuffle_weight(
    x: Tensor, layout: tuple[int, int] = (16, 16), use_int4: bool = False, is_guinterleave: bool = False,
    gate_up: bool = False, pad_k_to: int = 0,
) -> Tensor:  # fmt: skip
    """x (..., n, k) in tiles of layout[0] rows and 2 layout[1] numbers, as the functions with bpreshuffle take it.

    The tiles are those of other hardware: here these functions put the rows in order first, which copies the weight
    in each call. A weight that is not shuffled is read as it lies.
    """
    off("use_int4", use_int4, "tilekiln.QuantisedWeight has weights of 4 bits")
    off("is_guinterleave", is_guinterleave, "tilekiln.PackedExperts packs experts")
    off("pad_k_to", pad_k_to, "pad the weight before")
    high, wide = layout[0], layout[1] * 2
    lanes = 16 // x.element_size()
    n, k = x.shape[-2:]
    if n % high or k % wide or wide % lanes:
        raise ArgumentError(
            f"x: was of shape {tuple(x.shape)}, must have a multiple of {high} rows and of {wide} columns, layout "
            f"{layout}"
        )
    tiles = x.reshape(-1, n // high, high, k // wide, wide // lanes, lanes)
    made: Any = tiles.permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape)
    made.is_shuffled = True
    shuffled: Tensor = made
    return shuffled
