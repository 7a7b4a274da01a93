# SPDX-License-Identifier: MIT
"""Blocks of numbers that share a power of two (OCP Microscaling Formats, 2023): MXFP4 and fp8."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ._rows import divided, rows
from .utility import dtypes

_STEPS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Half-way between 0, .5, 1, 1.5, 2, 3, 4 and 6, the numbers of e2m1."""


def _exponents(most: Tensor, largest: float, power: int, mode: int) -> Tensor:
    """Exponents of scales, int32, of blocks with these largest numbers; a format's largest power of two is 2^power."""
    if mode == 1:
        mantissa, exponent = torch.frexp(most / largest)
        made = exponent - (mantissa == 0.5).int()
    elif mode in (0, 3):
        mantissa, exponent = torch.frexp(most)
        up = (mantissa > 0.5).int() if mode == 3 else 0
        made = exponent - 1 - power + up
    else:
        raise ArgumentError(f"round_mode: was {mode!r}, must be 0 (down), 1 (up) or 3 (ceil)")
    return torch.where(most > 0, made, -127).clamp(-127, 127)


def _block(x: Tensor, group: int) -> Tensor:
    return rows("x", x, group).float()


def f4_blocks(x: Tensor, mode: int) -> tuple[Tensor, Tensor]:
    """MXFP4 of x (..., n): packed (..., n / 2), the even element low, and exponents, float8_e8m0fnu (rows, n / 32)."""
    blocks = _block(x, 32)
    exponent = _exponents(blocks.abs().amax(-1, keepdim=True), 6.0, 2, mode)
    y = torch.ldexp(blocks, -exponent)
    steps = torch.tensor(_STEPS, device=x.device)
    size = y.abs()
    lower, upper = torch.bucketize(size, steps), torch.bucketize(size, steps, right=True)
    code = torch.where(lower % 2 == 0, lower, upper).int()  # half-way: to the even code
    code = (code | (torch.signbit(y).int() << 3)).to(torch.uint8).view(-1, 2)
    packed = (code[:, 0] | code[:, 1] << 4).view(*x.shape[:-1], x.shape[-1] // 2)
    return packed.view(dtypes.fp4x2), _e8m0(exponent).view(-1, x.shape[-1] // 32)


def _e8m0(exponent: Tensor) -> Tensor:
    return (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def f8_blocks(x: Tensor, group: int, dtype: torch.dtype, scale_type: torch.dtype) -> tuple[Tensor, Tensor]:
    """fp8 of x (..., n) by blocks: (like x, exponents, float8_e8m0fnu (rows, n / group))."""
    if scale_type != torch.float8_e8m0fnu or dtype != torch.float8_e4m3fn:
        raise ArgumentError(
            f"scale_type: was {scale_type} of {dtype}, must be torch.float32, or of torch.float8_e4m3fn "
            "torch.float8_e8m0fnu"
        )
    blocks = _block(x, group)
    exponent = _exponents(blocks.abs().amax(-1, keepdim=True), 448.0, 8, 1)
    y = divided(torch.ldexp(blocks, -exponent), torch.ones(1, device=x.device), dtype)
    return y.view(x.shape), _e8m0(exponent).view(-1, x.shape[-1] // group)
