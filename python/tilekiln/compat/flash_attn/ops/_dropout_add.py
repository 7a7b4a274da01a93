# SPDX-License-Identifier: MIT
"""Dropout, scales and the residual before a norm, for flash_attn.ops.rms_norm and layer_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....torch.norms import parameter
from ..._modules import FaceArgumentError, alias

Norm = Callable[[Tensor, Tensor, Tensor | None, float], Tensor]


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), which takes half a microsecond where there is nothing to do."""
    return x if x.dtype is dtype else x.to(dtype)


def in_widest(norm: Norm, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, to: torch.dtype) -> Tensor:
    """The norm of rows with a weight and bias of any dtypes, rounded once, to `to`.

    Kernels take rows, weight and bias of one dtype: that is the one that holds all three, fp32 for 16-bit rows with an
    fp32 weight, whose gradient then is of fp32 too.
    """
    wide = torch.promote_types(x.dtype, weight.dtype)
    if bias is not None:
        wide = torch.promote_types(wide, bias.dtype)
        bias = _as(bias, wide)
    return _as(norm(_as(x, wide), _as(weight, wide), bias, epsilon), to)


def like(name: str, given: Tensor | None, x: Tensor) -> Tensor | None:
    """Rows of a tensor in the shape of x, which has as many of them: others would be repeated, or repeat x."""
    if given is None or given.shape == x.shape:
        return given
    if given.shape[-1:] != x.shape[-1:] or given.numel() != x.numel():
        raise FaceArgumentError(f"{name}: shape was {tuple(given.shape)}, must be {tuple(x.shape)}, or as many rows")
    return given.reshape(x.shape)


def scale_of_rows(rowscale: Tensor | None, x: Tensor) -> Tensor | None:
    """A factor a row, to multiply x by."""
    if rowscale is None:
        return None
    if rowscale.numel() != x[..., :1].numel():
        raise FaceArgumentError(
            f"rowscale: shape was {tuple(rowscale.shape)}, must be {tuple(x.shape[:-1])}, a factor a row"
        )
    return rowscale.reshape(x.shape[:-1])[..., None]


def _dropped(x0: Tensor, dropout_p: float, *scales: Tensor | float | None) -> tuple[Tensor, Tensor | None]:
    """x0 by the scales, of which dropout keeps a part, and what it keeps: in fp32 where anything is done to x0."""
    if not 0.0 <= dropout_p <= 1.0:
        raise FaceArgumentError(f"dropout_p: was {dropout_p}, must be in [0, 1]")
    x, mask = x0, None
    for scale in scales:
        if scale is not None:
            x = x.float() * scale
    if dropout_p > 0.0:
        x, mask = torch.native_dropout(x.float(), dropout_p, train=True)
    return x, mask


def _sum(parts: tuple[Tensor, ...], residual: Tensor | None, to: torch.dtype) -> Tensor:
    """parts + residual, rounded once."""
    total, *others = parts if residual is None else (residual, *parts)
    for part in others:
        total = total + part if total.dtype is part.dtype and len(others) == 1 else total.float() + part.float()
    return _as(total, to)


def _dtype_of_sum(x0: Tensor, residual: Tensor | None, residual_in_fp32: bool) -> torch.dtype:
    return residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x0.dtype


def _bytes(mask: Tensor | None, x0: Tensor) -> Tensor:
    """Mask of elements that dropout kept, uint8: all of them without dropout."""
    return torch.ones(x0.shape, dtype=torch.uint8, device=x0.device) if mask is None else mask.to(torch.uint8)


def dropout_add_norm(
    norm: Norm,
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """The norm of dropout(x0 rowscale layerscale) + residual.

    x0, residual (..., columns), weight, bias, layerscale (columns), rowscale (...), of any of fp32, fp16 and bf16.
    prenorm: (out, the sum). The sum has the dtype of residual; without one x0's, or fp32 with residual_in_fp32; before
    it is rounded to that everything is computed in fp32. return_dropout_mask: one more result, uint8.
    """
    residual = like("residual", residual, x0)
    x, mask = _dropped(x0, dropout_p, scale_of_rows(rowscale, x0), layerscale)
    total = _sum((x,), residual, _dtype_of_sum(x0, residual, residual_in_fp32))
    out = in_widest(norm, total, weight, bias, epsilon, x0.dtype)
    if not prenorm and not return_dropout_mask:
        return out
    return (out, *([total] if prenorm else []), *([_bytes(mask, x0)] if return_dropout_mask else []))


def _rows_of(name: str, subset: Tensor, rows: int) -> Tensor:
    """Rows that a subset names, int64, counted from 1: 0 is none. Those of a device are not read here."""
    places = subset.reshape(-1).long()
    if places.is_cpu and len(places) and not 0 <= int(places.min()) <= int(places.max()) <= rows:
        raise FaceArgumentError(
            f"{name}: had entries from {int(places.min())} to {int(places.max())}, must be from 0 to {rows}: 0, or the "
            "number of a row, of which the first is 1"
        )
    return places


def dropout_add_norm_subset(
    norm: Norm,
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    layerscale: Tensor | None = None,
    x0_subset: Tensor | None = None,
    out_subset: Tensor | None = None,
    rowscale_const: float = 1.0,
    out_numrows: int = 0,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """dropout_add_norm where some rows have no x0, as with stochastic depth, and some no out.

    x0 (rows_x0, columns). x0_subset, an integer for each row of the sum: the row of x0 that it takes, counted from 1;
    0: none, so that it is residual alone. out_subset likewise: the row of out that it gives; 0: none. out (out_numrows,
    columns). rowscale_const: a factor of x0. Without a subset every row is in it.
    """
    x, mask = _dropped(x0, dropout_p, layerscale, None if rowscale_const == 1.0 else rowscale_const)
    x = x.reshape(-1, x.shape[-1])
    if x0_subset is not None:
        given = _rows_of("x0_subset", x0_subset, len(x))
        x = torch.cat((x.new_zeros(1, x.shape[-1]), x))[given]
    rows = None if residual is None else residual.reshape(-1, residual.shape[-1])
    if rows is not None and rows.shape != x.shape:
        raise FaceArgumentError(
            f"residual: had {rows.shape[0]} rows of {rows.shape[1]}, must have {x.shape[0]} of {x.shape[1]}, those of "
            f"{'x0' if x0_subset is None else 'x0_subset'}"
        )
    total = _sum((x,), rows, _dtype_of_sum(x0, residual, residual_in_fp32))
    wanted = total
    if out_subset is not None:
        places = _rows_of("out_subset", out_subset, out_numrows)
        if len(places) != len(total):
            raise FaceArgumentError(f"out_subset: had {len(places)} entries, must have {len(total)}, one a row")
        order = places.new_zeros(out_numrows + 1).scatter(0, places, torch.arange(len(places), device=places.device))
        wanted = total[order[1:]]
    shape = (-1, *x0.shape[1:])
    out = in_widest(norm, wanted, weight, bias, epsilon, x0.dtype).reshape(shape)
    if not prenorm and not return_dropout_mask:
        return out
    return (out, *([total.reshape(shape)] if prenorm else []), *([_bytes(mask, x0)] if return_dropout_mask else []))


def dropout_add_norm_parallel_residual(
    norm: Norm,
    x0: Tensor,
    x1: Tensor | None,
    residual: Tensor | None,
    weight0: Tensor,
    bias0: Tensor | None,
    weight1: Tensor | None,
    bias1: Tensor | None,
    dropout_p: float,
    epsilon: float,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """Two norms of dropout(x0) + dropout(x1) + residual: (out0, out1), out1 None without weight1.

    x0, x1, residual (..., columns), weights and biases (columns). prenorm: the sum is one more result, of the dtype
    that dropout_add_norm says. return_dropout_mask: two more, of x0 and of x1.
    """
    x1, residual = like("x1", x1, x0), like("residual", residual, x0)
    dropped = [_dropped(x, dropout_p) for x in (x0, x1) if x is not None]
    total = _sum(tuple(x for x, _ in dropped), residual, _dtype_of_sum(x0, residual, residual_in_fp32))
    out0 = in_widest(norm, total, weight0, bias0, epsilon, x0.dtype)
    out1 = None if weight1 is None else in_widest(norm, total, weight1, bias1, epsilon, x0.dtype)
    masks = [*(mask for _, mask in dropped), None][:2]
    kept = [_bytes(mask, x0) for mask in masks] if return_dropout_mask else []
    return (out0, out1, *([total] if prenorm else []), *kept)


def of_norm(module: str, norm: Norm, own: str) -> list[Any]:
    """dropout_add_norm, _subset and _parallel_residual of one norm, by upstream's names: own is that of the first."""
    return [
        alias(module, own + one.__name__.removeprefix("dropout_add_norm"), one,
              str(one.__doc__).replace("dropout_add_norm", own), norm=norm)
        for one in (dropout_add_norm, dropout_add_norm_subset, dropout_add_norm_parallel_residual)
    ]  # fmt: skip


class DropoutAddNorm(torch.nn.Module):
    """The module of either; `norm` is the class's own."""

    norm: Norm
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.p, self.eps, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        p = self.p if self.training else 0.0
        if residual is None and p == 0.0 and not self.prenorm and not self.residual_in_fp32:
            weight = parameter(self, "weight")
            if x0.dtype is weight.dtype:  # the norm alone
                return type(self).norm(x0, weight, parameter(self, "bias"), self.eps)
        more = None, None, self.prenorm, self.residual_in_fp32, False
        weight, bias = parameter(self, "weight"), parameter(self, "bias")
        return dropout_add_norm(type(self).norm, x0, residual, weight, bias, p, self.eps, *more)
