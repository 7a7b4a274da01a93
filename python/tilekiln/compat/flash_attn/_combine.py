# SPDX-License-Identifier: MIT
"""One result of attention from those of parts of the keys."""

from __future__ import annotations

import torch
from torch import Tensor

from .._modules import FaceArgumentError


def combined(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None, out_dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """(out, lse) of out_partial (parts, ..., nheads, headdim) and lse_partial (parts, ..., nheads), -inf for no key.

    lse, fp32 (..., nheads), is the logarithm of the sum of the parts' exponentials, and out the mean of the parts with
    those exponentials as weights, computed in fp32: 0 where no part sees a key. out: where to write it. out_dtype: its
    dtype, that of out_partial where None.
    """
    if lse_partial.shape != out_partial.shape[:-1]:
        raise FaceArgumentError(
            f"lse_partial: shape was {tuple(lse_partial.shape)}, must be {tuple(out_partial.shape[:-1])}, that of "
            "out_partial without its last dimension"
        )
    dtype = out_partial.dtype if out_dtype is None else out_dtype
    shape = out_partial.shape[1:]
    if out is not None and (out.shape != shape or out.dtype is not dtype):
        raise FaceArgumentError(
            f"out: was {out.dtype} of {tuple(out.shape)}, must be {dtype} of {tuple(shape)}, without the parts"
        )
    parts = lse_partial.float()
    lse = torch.logsumexp(parts, 0)
    weights = (parts - lse.masked_fill(lse.isneginf(), 0.0)).exp()
    # A part without keys may hold anything, and 0 of that is not always 0.
    kept = out_partial.float().masked_fill(weights[..., None] == 0, 0.0)
    made = (weights[..., None] * kept).sum(0).to(dtype)
    return made if out is None else out.copy_(made), lse
