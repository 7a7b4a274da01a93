# SPDX-License-Identifier: MIT
"""Distance of a client with our attention from the same client with PyTorch's."""

from collections.abc import Iterable

import torch
from torch import Tensor

CLOSE = {torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}
"""Of the largest value of a tensor: both sides round, each in its own order."""


def agree(made: Iterable[Tensor], right: Iterable[Tensor], what: str, dtype: torch.dtype | None = None) -> None:
    """Raises AssertionError that says how far apart tensors are. dtype: of the computation, if not the tensors'."""
    pairs = list(zip(made, right, strict=True))
    assert pairs
    for i, (mine, its) in enumerate(pairs):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        size = its.float().abs().max().item()
        assert size > 0, f"{what}: result {i} is all zero, which says nothing"
        error = (mine.float() - its.float()).abs().max().item() / size
        assert error <= CLOSE[dtype or mine.dtype], f"{what}: result {i} is {error:.3g} of the largest value off"
