# SPDX-License-Identifier: MIT
"""aiter's matrix products by the operators gemm and batched_gemm: x (m, k) by the rows of a weight (n, k)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ._run import run

OUTS = (torch.bfloat16, torch.float16, torch.float32)


def _factor(name: str, scale: Tensor, count: int) -> Tensor:
    """scale of one element or one for each of count, fp32, as (count)."""
    flat = scale.reshape(-1)
    if flat.dtype != torch.float32 or flat.numel() not in (1, count):
        raise ArgumentError(
            f"{name}: was {scale.dtype} of shape {tuple(scale.shape)}, must be torch.float32 of 1 or {count} elements"
        )
    return flat if flat.numel() == count else flat.expand(count).contiguous()


def _matrices(x: Tensor, weight: Tensor) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ArgumentError(
            f"WQ: was of shape {tuple(weight.shape)}, must be (n, k), k the columns of XQ, which was of shape "
            f"{tuple(x.shape)}"
        )


def _placed(x: Tensor, weight: Tensor, dtype: torch.dtype, out: Tensor | None) -> dict[str, Any]:
    """Place of a product, in words of gemm."""
    if out is not None:
        return {"out": out}
    if dtype not in OUTS:
        raise ArgumentError(f"dtype: was {dtype}, must be one of {', '.join(map(str, OUTS))}")
    return {"out": torch.empty(x.shape[0], weight.shape[0], dtype=dtype, device=x.device)}


def scaled(
    x: Tensor, weight: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, dtype: torch.dtype,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x x_scale (weight w_scale)^T + bias of int8 or fp8; scales of one element, or one a row."""
    _matrices(x, weight)
    given = _placed(x, weight, dtype, out)
    given["row_scale"] = _factor("x_scale", x_scale, x.shape[0])
    given["column_scale"] = _factor("w_scale", w_scale, weight.shape[0])
    if bias is not None:
        given["bias"] = bias.reshape(-1).float()
    made: Tensor = run("gemm", (x, weight.t()), given)
    return made


def blocks(
    x: Tensor, weight: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype, out: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same of fp8 with a factor for 128 numbers along k of a row of x, and for 128 x 128 of the weight."""
    _matrices(x, weight)
    given = {**_placed(x, weight, dtype, out), "a_scale": x_scale, "b_scale": w_scale}
    if bias is not None:
        given["bias"] = bias.reshape(-1).float()
    made: Tensor = run("gemm", (x, weight.t()), given)
    return made


def turned(x_scale: Tensor, x: Tensor) -> Tensor:
    """x_scale (m, k / 128) whose contiguous memory is that of its transpose; one with other strides is as it says."""
    if x_scale.dim() != 2 or not x_scale.is_contiguous() or 1 in x_scale.shape:
        return x_scale
    return x_scale.view(x_scale.shape[1], x_scale.shape[0]).t()


def in_order(weight: Tensor, layout: tuple[int, int] = (16, 16)) -> Tensor:
    """A weight (n, k) that `ops.shuffle.shuffle_weight` has put into tiles, its rows in order again: a copy."""
    high, wide = layout[0], layout[1] * 2
    lanes = 16 // weight.element_size()
    n, k = weight.shape[-2:]
    if weight.dim() != 2 or n % high or k % wide:
        raise ArgumentError(
            f"WQ: was of shape {tuple(weight.shape)}, must be (n, k), n a multiple of {high} and k of {wide}, shuffled"
        )
    tiles = weight.reshape(n // high, k // wide, wide // lanes, high, lanes)
    return tiles.permute(0, 3, 1, 2, 4).reshape(n, k)


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """x weight^T + bias of fp32, fp16 or bf16; 16 bits to their own dtype or fp32."""
    _matrices(x, weight)
    given = {} if out is None and dtype == x.dtype else _placed(x, weight, dtype, out)
    if bias is not None:
        given["bias"] = bias.reshape(-1).float()
    made: Tensor = run("gemm", (x, weight.t()), given)
    return made
