"""aiter.ops.gemm_op_a8w8: products of int8 and fp8 (e4m3) with scales by row, tensor and block.

XQ (m, k), WQ (n, k), Out (m, n) of fp16, bf16 or fp32: XQ x_scale (WQ w_scale)^T + bias (n). x_scale, fp32, has one
element or m, w_scale one or n. blockscale, of fp8: x_scale (m, k / 128), w_scale (n / 128, k / 128), both rounded up.
bpreshuffle: WQ is what `ops.shuffle.shuffle_weight` makes, and the memory of a contiguous x_scale of blocks that of
its transpose. kernelName and splitK change nothing. Results have no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _absent
from ..._modules import errors_as_upstream
from .._products import blocks, in_order, scaled, turned

__all__ = [
    "gemm_a8w8",
    "gemm_a8w8_ASM",
    "gemm_a8w8_CK",
    "gemm_a8w8_asm",
    "gemm_a8w8_blockscale",
    "gemm_a8w8_blockscale_bpreshuffle",
    "gemm_a8w8_blockscale_bpreshuffle_asm",
    "gemm_a8w8_blockscale_bpreshuffle_ck",
    "gemm_a8w8_blockscale_bpreshuffle_cktile",
    "gemm_a8w8_blockscale_ck",
    "gemm_a8w8_blockscale_cktile",
    "gemm_a8w8_bpreshuffle",
    "gemm_a8w8_bpreshuffle_ck",
    "gemm_a8w8_bpreshuffle_cktile",
    "gemm_a8w8_ck",
    "is_flydsl_available",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(
    a="XQ", b="WQ", out="Out", row_scale="x_scale", column_scale="w_scale", a_scale="x_scale", b_scale="w_scale"
)


@_named
def gemm_a8w8(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None, dtype: torch.dtype =
    torch.bfloat16, splitK: int | None = None,
) -> Tensor:  # fmt: skip
    """The product in a new tensor."""
    return scaled(XQ, WQ, x_scale, w_scale, bias, dtype)


@_named
def gemm_a8w8_CK(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None, dtype: torch.dtype =
    torch.bfloat16, splitK: int | None = None,
) -> Tensor:  # fmt: skip
    """`gemm_a8w8`."""
    return scaled(XQ, WQ, x_scale, w_scale, bias, dtype)


@_named
def gemm_a8w8_ck(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, bias: Tensor | None = None, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8` into Out."""
    return scaled(XQ, WQ, x_scale, w_scale, bias, Out.dtype, Out)


@_named
def gemm_a8w8_asm(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelName: str = "", bias: Tensor | None =
    None, bpreshuffle: bool | None = True, splitK: int | None = None,
) -> Tensor:  # fmt: skip
    """`gemm_a8w8` into Out; bpreshuffle: of tiles of layout (32, 16)."""
    weight = in_order(WQ, (32, 16)) if bpreshuffle else WQ
    return scaled(XQ, weight, x_scale, w_scale, bias, Out.dtype, Out)


@_named
def gemm_a8w8_ASM(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor, dtype: torch.dtype = torch.bfloat16,
    check: bool = False,
) -> Tensor:  # fmt: skip
    """`gemm_a8w8` of tiles of layout (32, 16)."""
    return scaled(XQ, in_order(WQ, (32, 16)), x_scale, w_scale, bias, dtype)


@_named
def gemm_a8w8_bpreshuffle(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None, dtype: torch.dtype =
    torch.bfloat16, check: bool = False,
) -> Tensor:  # fmt: skip
    """`gemm_a8w8` of tiles of layout (16, 16)."""
    return scaled(XQ, in_order(WQ), x_scale, w_scale, bias, dtype)


@_named
def gemm_a8w8_bpreshuffle_ck(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8_bpreshuffle` into Out."""
    return scaled(XQ, in_order(WQ), x_scale, w_scale, None, Out.dtype, Out)


@_named
def gemm_a8w8_bpreshuffle_cktile(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8_bpreshuffle` into out."""
    return scaled(XQ, in_order(WQ), x_scale, w_scale, None, out.dtype, out)


@_named
def gemm_a8w8_blockscale(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype = torch.bfloat16, isBpreshuffled:
    bool = False,
) -> Tensor:  # fmt: skip
    """The product with factors of blocks in a new tensor."""
    if isBpreshuffled:
        return blocks(XQ, in_order(WQ), turned(x_scale, XQ), w_scale, dtype)
    return blocks(XQ, WQ, x_scale, w_scale, dtype)


@_named
def gemm_a8w8_blockscale_ck(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, splitK: int = 0, kernelName: str = ""
) -> Tensor:
    """`gemm_a8w8_blockscale` into Out."""
    return blocks(XQ, WQ, x_scale, w_scale, Out.dtype, Out)


@_named
def gemm_a8w8_blockscale_cktile(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, isBpreshuffled: bool = False, splitK: int =
    0, kernelName: str = "",
) -> Tensor:  # fmt: skip
    """`gemm_a8w8_blockscale` into Out."""
    if isBpreshuffled:
        return blocks(XQ, in_order(WQ), turned(x_scale, XQ), w_scale, Out.dtype, Out)
    return blocks(XQ, WQ, x_scale, w_scale, Out.dtype, Out)


@_named
def gemm_a8w8_blockscale_bpreshuffle(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype = torch.bfloat16, out: Tensor | None
    = None,
) -> Tensor:  # fmt: skip
    """`gemm_a8w8_blockscale` of a shuffled weight, into out if given."""
    return blocks(XQ, in_order(WQ), turned(x_scale, XQ), w_scale, dtype, out)


@_named
def gemm_a8w8_blockscale_bpreshuffle_ck(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelName: str = ""
) -> Tensor:
    """`gemm_a8w8_blockscale_bpreshuffle` into Out."""
    return blocks(XQ, in_order(WQ), turned(x_scale, XQ), w_scale, Out.dtype, Out)


@_named
def gemm_a8w8_blockscale_bpreshuffle_cktile(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, isBpreshuffled: bool = True, kernelName:
    str = "",
) -> Tensor:  # fmt: skip
    """`gemm_a8w8_blockscale_cktile`."""
    made: Tensor = gemm_a8w8_blockscale_cktile(XQ, WQ, x_scale, w_scale, Out, isBpreshuffled)
    return made


@errors_as_upstream(a="A", b="B", a_scale="A_scale", b_scale="B_scale", WQ="B")
def gemm_a8w8_blockscale_bpreshuffle_asm(
    A: Tensor, B: Tensor, out: Tensor, A_scale: Tensor, B_scale: Tensor, bias: Tensor | None = None,
    splitK: int | None = None, kernelName: str | None = None, bpreshuffle: bool | None = True,
    zero_bias_buf: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`gemm_a8w8_blockscale_bpreshuffle` into out, + bias (n), with bpreshuffle False of a weight in order."""
    weight = in_order(B) if bpreshuffle else B
    return blocks(A, weight, turned(A_scale, A) if bpreshuffle else A_scale, B_scale, out.dtype, out, bias)


def is_flydsl_available() -> bool:
    """False: kernels of another compiler."""
    return False
