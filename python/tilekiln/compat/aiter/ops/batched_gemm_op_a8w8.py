# SPDX-License-Identifier: MIT
"""aiter.ops.batched_gemm_op_a8w8: batches of products of int8 and fp8 with scales."""

from __future__ import annotations

import torch
from torch import Tensor

from ...._core.native import ArgumentError
from ... import _absent
from ..._modules import errors_as_upstream
from .._products import scaled
from .._shapes import gen_batched_gemm_a8w8_fake_tensors, gen_batched_gemm_a8w8_tune_fake_tensors

__all__ = [
    "batched_gemm_a8w8",
    "batched_gemm_a8w8_CK",
    "batched_gemm_a8w8_tune",
    "gen_batched_gemm_a8w8_fake_tensors",
    "gen_batched_gemm_a8w8_tune_fake_tensors",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(a="XQ", b="WQ", row_scale="x_scale", column_scale="w_scale")


@_named
def batched_gemm_a8w8(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor, bias: Tensor | None = None, splitK: int = 0
) -> Tensor:
    """out (b, m, n): XQ (b, m, k) x_scale times WQ (b, n, k) w_scale transposed, + bias; a call of gemm for each.

    x_scale (b, m, 1) and w_scale (b, 1, n), fp32, or (b, 1, 1); bias (b, 1, n).
    """
    if XQ.dim() != 3 or WQ.dim() != 3 or XQ.shape[0] != WQ.shape[0]:
        raise ArgumentError(
            f"WQ: was of shape {tuple(WQ.shape)}, must be (b, n, k) for XQ (b, m, k), which was of shape "
            f"{tuple(XQ.shape)}"
        )
    for at in range(XQ.shape[0]):
        added = None if bias is None else bias[at]
        scaled(XQ[at], WQ[at], x_scale[at], w_scale[at], added, out.dtype, out[at])
    return out


@_named
def batched_gemm_a8w8_CK(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16, splitK: int | None = None,
) -> Tensor:  # fmt: skip
    """`batched_gemm_a8w8` in a new tensor."""
    out = torch.empty(*XQ.shape[:2], WQ.shape[1], dtype=dtype, device=XQ.device)
    made: Tensor = batched_gemm_a8w8(XQ, WQ, x_scale, w_scale, out, bias)
    return made


@_named
def batched_gemm_a8w8_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor, kernelId: int, splitK: int = 0
) -> Tensor:
    """`batched_gemm_a8w8`; kernelId changes nothing: `tilekiln tune` times the kernels here."""
    made: Tensor = batched_gemm_a8w8(XQ, WQ, x_scale, w_scale, out)
    return made
