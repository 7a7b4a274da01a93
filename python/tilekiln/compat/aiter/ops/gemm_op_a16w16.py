# SPDX-License-Identifier: MIT
"""aiter.ops.gemm_op_a16w16: products of 16 bits."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ... import _absent
from ..._modules import errors_as_upstream
from .._products import in_order, plain

__all__ = ["gemm_a16w16_asm", "get_semaphore_workspace"]

__getattr__ = _absent.sentences(__name__)


@errors_as_upstream(a="A", b="B", WQ="B")
def gemm_a16w16_asm(
    A: Tensor, B: Tensor, out: Tensor, bias: Tensor | None = None, splitK: int | None = None,
    kernelName: str | None = None, bpreshuffle: bool = False,
) -> Tensor:  # fmt: skip
    """out (m, n), fp32 or like A (m, k): A B^T + bias, B (n, k), with bpreshuffle as `shuffle_weight` makes it."""
    return plain(A, in_order(B) if bpreshuffle else B, bias, out.dtype, out)


@functools.lru_cache(maxsize=64)
def get_semaphore_workspace(device: torch.device) -> Tensor:
    """Zeros, uint32 (16, 64), the same tensor for the same device; no product here needs scratch memory."""
    return torch.zeros(16, 64, dtype=torch.uint32, device=device)
