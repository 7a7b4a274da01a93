"""Dropout, scales and the residual before a norm, for flash_attn.ops.rms_norm and layer_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...torch.norms import parameter

Norm = Callable[[Tensor, Tensor, Tensor | None, float], Tensor]


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), which takes half a microsecond where there is nothing to do."""
    return x if x.dtype is dtype else x.to(dtype)


def dropout_add_norm(
    norm: Norm,
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None,
    layerscale: Tensor | None,
    prenorm: bool,
    residual_in_fp32: bool,
    return_dropout_mask: bool,
) -> Any:
    """norm(dropout(x0 rowscale layerscale) + residual) in x0's dtype; the sum has residual's, or fp32, or x0's."""
    mask = None
    x = x0
    if rowscale is not None:
        x = x * rowscale[..., None]
    if layerscale is not None:
        x = x * layerscale
    if dropout_p > 0.0:
        mask = torch.rand(x0.shape, device=x0.device) >= dropout_p
        x = x * mask / (1 - dropout_p)
    to = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x0.dtype
    total = _as(x, to) if residual is None else residual + _as(x, to)
    wide = None if bias is None else _as(bias, to)
    out = _as(norm(total, _as(weight, to), wide, epsilon), x0.dtype)
    if not prenorm and not return_dropout_mask:
        return out
    if return_dropout_mask and mask is None:
        mask = torch.ones(x0.shape, dtype=torch.bool, device=x0.device)
    results = [out, *([total] if prenorm else [])]
    if return_dropout_mask and mask is not None:
        results.append(mask.to(torch.uint8))
    return tuple(results) if len(results) > 1 else out


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
