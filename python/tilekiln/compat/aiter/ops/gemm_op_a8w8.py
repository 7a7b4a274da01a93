# SPDX-License-Identifier: MIT
"""aiter.ops.gemm_op_a8w8: products of int8 and fp8 (e4m3) with scales by row, tensor and block.

XQ (m, k), WQ (n, k), Out (m, n) of fp16, bf16 or fp32: XQ x_scale (WQ w_scale)^T + bias (n). x_scale, fp32, has one
element or m, w_scale one or n. blockscale, of fp8: x_scale (m, k / 128), w_scale (n / 128, k / 128), both rounded up.
bpreshuffle: WQ is what `ops.shuffle.shuffle_weight` makes, and the memory of a contiguous x_scale of blocks that of
its transpose. kernelName and splitK change nothing. Results have no gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ... import _absent
from ..._modules import alias, errors_as_upstream
from .._products import blocks, in_order, scaled, turned
from .._shapes import (
    gemm_a8w8_blockscale_bpreshuffle_fake,
    gemm_a8w8_blockscale_fake,
    gemm_a8w8_bpreshuffle_fake,
    gemm_a8w8_fake,
    gen_gemm_a8w8_blockscale_ck_fake_tensors,
    gen_gemm_a8w8_blockscale_tune_fake_tensors,
    gen_gemm_a8w8_bpreshuffle_ck_fake_tensors,
    gen_gemm_a8w8_bpreshuffle_cktile_fake_tensors,
    gen_gemm_a8w8_ck_fake_tensors,
    gen_gemm_a8w8_tune_fake_tensors,
)

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
    "gemm_a8w8_blockscale_bpreshuffle_cktile_tune",
    "gemm_a8w8_blockscale_bpreshuffle_fake",
    "gemm_a8w8_blockscale_bpreshuffle_tune",
    "gemm_a8w8_blockscale_ck",
    "gemm_a8w8_blockscale_cktile",
    "gemm_a8w8_blockscale_cktile_tune",
    "gemm_a8w8_blockscale_fake",
    "gemm_a8w8_blockscale_tune",
    "gemm_a8w8_bpreshuffle",
    "gemm_a8w8_bpreshuffle_ck",
    "gemm_a8w8_bpreshuffle_cktile",
    "gemm_a8w8_bpreshuffle_cktile_tune",
    "gemm_a8w8_bpreshuffle_fake",
    "gemm_a8w8_bpreshuffle_flydsl",
    "gemm_a8w8_bpreshuffle_tune",
    "gemm_a8w8_ck",
    "gemm_a8w8_fake",
    "gemm_a8w8_tune",
    "gen_gemm_a8w8_blockscale_ck_fake_tensors",
    "gen_gemm_a8w8_blockscale_tune_fake_tensors",
    "gen_gemm_a8w8_bpreshuffle_ck_fake_tensors",
    "gen_gemm_a8w8_bpreshuffle_cktile_fake_tensors",
    "gen_gemm_a8w8_ck_fake_tensors",
    "gen_gemm_a8w8_tune_fake_tensors",
    "get_zero_bias_buf",
    "get_zero_bias_buf_keyed",
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


gemm_a8w8_CK = alias(__name__, "gemm_a8w8_CK", gemm_a8w8)  # noqa: N816 upstream's name


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


@_named
def gemm_a8w8_bpreshuffle_flydsl(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, config: dict[str, Any]
) -> Tensor:
    """`gemm_a8w8_bpreshuffle` into Out; config chooses among kernels of another compiler, and changes nothing."""
    return scaled(XQ, in_order(WQ), x_scale, w_scale, None, Out.dtype, Out)


@_named
def gemm_a8w8_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8_ck`; kernelId changes nothing: `tilekiln tune` times the kernels here."""
    return scaled(XQ, WQ, x_scale, w_scale, None, Out.dtype, Out)


@_named
def gemm_a8w8_blockscale_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8_blockscale_ck`, likewise."""
    return blocks(XQ, WQ, x_scale, w_scale, Out.dtype, Out)


@_named
def gemm_a8w8_blockscale_cktile_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0,
    preshuffleB: bool = False,
) -> Tensor:  # fmt: skip
    """`gemm_a8w8_blockscale_cktile` with isBpreshuffled as preshuffleB says."""
    made: Tensor = gemm_a8w8_blockscale_cktile(XQ, WQ, x_scale, w_scale, Out, preshuffleB)
    return made


@_named
def gemm_a8w8_blockscale_bpreshuffle_cktile_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0,
    preshuffleB: bool = True,
) -> Tensor:  # fmt: skip
    """The same, of a shuffled weight unless preshuffleB is False."""
    made: Tensor = gemm_a8w8_blockscale_cktile(XQ, WQ, x_scale, w_scale, Out, preshuffleB)
    return made


@_named
def gemm_a8w8_bpreshuffle_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8_bpreshuffle_ck`, likewise."""
    return scaled(XQ, in_order(WQ), x_scale, w_scale, None, Out.dtype, Out)


@_named
def gemm_a8w8_blockscale_bpreshuffle_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, kernelId: int = 0, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8_blockscale_bpreshuffle_ck`, likewise."""
    return blocks(XQ, in_order(WQ), turned(x_scale, XQ), w_scale, Out.dtype, Out)


@_named
def gemm_a8w8_bpreshuffle_cktile_tune(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor, kernelId: int, splitK: int = 0
) -> Tensor:
    """`gemm_a8w8_bpreshuffle_cktile`, likewise."""
    return scaled(XQ, in_order(WQ), x_scale, w_scale, None, out.dtype, out)


@functools.lru_cache(maxsize=1024)
def get_zero_bias_buf_keyed(device: torch.device, stream_id: int, out_shape: int) -> Tensor:
    """A bias of zeros, fp32 (1, out_shape), the same tensor for the same arguments."""
    return torch.zeros(1, out_shape, dtype=torch.float32, device=device)


def get_zero_bias_buf(B: Tensor) -> Tensor:
    """get_zero_bias_buf_keyed for a weight B (n, k), of the stream of its device; no product here needs one."""
    stream = torch.cuda.current_stream(B.device).cuda_stream if B.is_cuda else 0
    return get_zero_bias_buf_keyed(B.device, stream, B.shape[0])
