# SPDX-License-Identifier: MIT
"""aiter.ops.batched_gemm_op_bf16: batches of products of 16 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _absent
from ..._modules import errors_as_upstream
from .._run import run
from .._shapes import gen_batched_gemm_bf16_tune_fake_tensor

__all__ = [
    "batched_gemm_bf16",
    "batched_gemm_bf16_CK",
    "batched_gemm_bf16_tune",
    "gen_batched_gemm_bf16_tune_fake_tensor",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(a="XQ", b="WQ", c="bias")


@_named
def batched_gemm_bf16(XQ: Tensor, WQ: Tensor, out: Tensor, bias: Tensor | None = None, splitK: int = 0) -> Tensor:
    """out (b, m, n): XQ (b, m, k) times WQ (b, n, k) transposed, + bias, (n) or (b, 1, n); of fp32, fp16 or bf16."""
    given: dict[str, Any] = {"out": out}
    if bias is not None and bias.dim() == 1:
        given["bias"] = bias.float()
    elif bias is not None:
        given["c"] = bias.to(out.dtype).view(out.shape[0], 1, -1).expand(out.shape)
    made: Tensor = run("batched_gemm", (XQ, WQ.mT), given)
    return made


@errors_as_upstream(a="XQ", b="WQ", c="bias", out="dtype")
def batched_gemm_bf16_CK(
    XQ: Tensor, WQ: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16, splitK: int | None = None
) -> Tensor:
    """`batched_gemm_bf16` in a new tensor; dtype is that of XQ."""
    out = torch.empty(*XQ.shape[:2], WQ.shape[1], dtype=dtype, device=XQ.device)
    made: Tensor = batched_gemm_bf16(XQ, WQ, out, bias)
    return made


@_named
def batched_gemm_bf16_tune(XQ: Tensor, WQ: Tensor, out: Tensor, kernelId: int, splitK: int = 0) -> Tensor:
    """`batched_gemm_bf16`; kernelId changes nothing: `tilekiln tune` times the kernels here."""
    made: Tensor = batched_gemm_bf16(XQ, WQ, out)
    return made
