# SPDX-License-Identifier: MIT
"""aiter.tuned_gemm: linear layers, x W^T + bias."""

from __future__ import annotations

import torch
from torch import Tensor

from .._modules import errors_as_upstream
from ._products import in_order, plain, scaled
from ._rows import off, rows

__all__ = ["TunedGemm", "gemm_a16w16", "tgemm"]


@errors_as_upstream(a="A", b="B", WQ="B", dtype="otype", input="A", x_scale="scale_a", w_scale="scale_b")
def gemm_a16w16(
    A: Tensor, B: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None, scale_a: Tensor | None = None,
    scale_b: Tensor | None = None, scale_c: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A (..., k) B^T + bias (n), B (n, k), of fp32, fp16 or bf16; of fp8 with scale_a, scale_b. otype: of the result.

    A weight of `shuffle_weight` is known by its attribute is_shuffled.
    """
    off("scale_c", scale_c, "divide the result by it")
    flat, weight = rows("A", A), in_order(B) if getattr(B, "is_shuffled", False) else B
    if scale_a is None and scale_b is None and A.dtype != torch.float8_e4m3fn:
        made = plain(flat, weight, bias, otype or A.dtype)
    else:
        one = torch.ones(1, dtype=torch.float32, device=A.device)
        factors = (one if scale_a is None else scale_a, one if scale_b is None else scale_b)
        made = scaled(flat, weight, *factors, bias, otype or torch.bfloat16)
    return made if made.dim() == A.dim() else made.view(*A.shape[:-1], B.shape[0])


class TunedGemm:
    """`gemm_a16w16` as a method."""

    def mm(
        self, inp: Tensor, weights: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None,
        scale_a: Tensor | None = None, scale_b: Tensor | None = None, scale_c: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """`gemm_a16w16`."""
        made: Tensor = gemm_a16w16(inp, weights, bias, otype, scale_a, scale_b, scale_c)
        return made


tgemm = TunedGemm()
