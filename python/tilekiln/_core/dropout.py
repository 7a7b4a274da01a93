# SPDX-License-Identifier: MIT
"""Dropout whose mean has no bias, out of kernels that draw a byte for each probability."""

from __future__ import annotations

__all__ = ["unbiased"]


def unbiased(dropout_p: float) -> float:
    """p' that keeps the same bytes as dropout_p, and is exactly the share of those that it drops; 0 where that is none.

    Kernels keep bytes up to floor(255 (1 - p)), as flash_attn and CK do, and multiply what they keep by 1 / (1 - p):
    its share of 256 bytes is near 1 - p, not equal, so that the mean of out is 1.6 times too large at p = 0.995. With
    n of 256 bytes kept, p' = 1 - n / 256 has the same threshold and the factor 256 / n.
    """
    kept = int(_fp32(_fp32(1.0 - _fp32(dropout_p)) * 255.0)) + 1  # as kernels compute it, in fp32
    return 1.0 - kept / 256.0


def _fp32(x: float) -> float:
    """x rounded to 24 bits, by operations that compilers of Python trace."""
    high = x * (2.0**29 + 1.0)
    return high - (high - x)
