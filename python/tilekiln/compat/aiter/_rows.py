# SPDX-License-Identifier: MIT
"""Rows of aiter's tensors as Tilekiln's operators take them: (rows, columns), and what quantises them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ._run import run

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Of the dtypes that rows are quantised to."""


def rows(name: str, x: Tensor, columns: int | None = None) -> Tensor:
    """x (..., columns) as (rows, columns) of the same memory; columns: another number of them, which divides x's."""
    if columns is None:
        if x.dim() == 2:
            return x
        columns = x.shape[-1] if x.dim() else 0
    if columns < 1 or x.shape[-1] % columns:
        raise ArgumentError(f"{name}: was of shape {tuple(x.shape)}, must have a multiple of {columns} columns")
    try:
        return x.view(-1, columns)
    except RuntimeError as error:
        raise ArgumentError(
            f"{name}: was of strides {x.stride()}, must be rows of one stride each: call contiguous()"
        ) from error


def factors(name: str, scale: Tensor, count: int) -> Tensor:
    """scale, fp32 and contiguous, as (count)."""
    if scale.dim() == 1:  # which the kernels check themselves
        return scale
    if scale.dtype != torch.float32 or scale.numel() != count or not scale.is_contiguous():
        raise ArgumentError(
            f"{name}: was {scale.dtype} of shape {tuple(scale.shape)}, must be contiguous torch.float32 of {count} "
            "elements"
        )
    return scale.view(-1)


def off(name: str, value: Any, instead: str) -> None:
    """Refusal of an argument that has no kernel here unless it is false, 0 or None."""
    if isinstance(value, Tensor) or value:
        was = "a tensor" if isinstance(value, Tensor) else repr(value)
        raise ArgumentError(f"{name}: was {was}, must be absent here: {instead}")


def quantise(out: Tensor, x: Tensor, scale: Tensor, group: int = 0, smooth: Tensor | None = None) -> None:
    """out (..., columns), int8 or fp8, and scale of x (..., columns): one a row, or one of each `group` columns.

    scale is max |x| / 127, of fp8 / 448; out scale is x again to half a step, and 0 where a row is 0.
    smooth, fp32 (columns): what x is multiplied by first.
    """
    given = rows("input", x, group or None)
    taken = factors("scales", scale, given.shape[0])
    run("smoothquant", (given, smooth), {"y": rows("out", out, group or None), "y_scale": taken})


def divided(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x / scale, fp32, to the nearest number of dtype, at most its largest."""
    most = 57344.0 if dtype == torch.float8_e5m2 else LARGEST.get(dtype)
    if most is None:
        raise ArgumentError(f"quant_dtype: was {dtype}, must be one of {', '.join(map(str, LARGEST))}")
    y = x.float() / scale
    return (y.round_() if dtype == torch.int8 else y).clamp_(-most, most).to(dtype)
