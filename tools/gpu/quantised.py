# SPDX-License-Identifier: MIT
"""Experts of int4 and int8 for bench_experts, made on the GPU."""

from __future__ import annotations

import math
from typing import Any

import torch

GROUP = 128
"""Numbers of int4 that share a factor."""


def in_panels(numbers: Any, kind: str) -> Any:
    """Whole numbers (experts, rows, columns) as panels: int4 of -8 to 7, or int8."""
    count, rows, columns = numbers.shape
    if kind == "int8":
        words = (numbers ^ -128).view(count, rows // 64, 64, columns // 4, 4)
    else:
        halves = (numbers + 8).to(torch.uint8).view(count, rows // 64, 64, columns // 8, 8)
        words = halves[..., :4] | halves[..., 4:] << 4
    return words.permute(0, 1, 3, 2, 4).contiguous()


def quantised(shape: tuple[int, int, int], kind: str, group: int) -> tuple[Any, Any, Any]:
    """Random experts as bf16, as panels, and their factors, one power of two."""
    count, rows, columns = shape
    least, most = (-127, 128) if kind == "int8" else (-8, 8)
    numbers = torch.randint(least, most, shape, device="cuda", dtype=torch.int8)
    factor = 2.0 ** -round(math.log2(columns) / 2 + (6 if kind == "int8" else 2))
    scale = torch.full((count, rows // 64, -(-columns // group), 64), factor, device="cuda")
    return numbers.to(torch.bfloat16) * factor, in_panels(numbers, kind), scale
