# SPDX-License-Identifier: MIT
"""Gradients of norms and gates by operators that PyTorch differentiates: of a penalty on gradients, of torch.func."""

from __future__ import annotations

import torch
from torch import Tensor


def of_norm(
    x: Tensor, dy: Tensor, weight: Tensor | None, dims: tuple[int, ...], eps: float, centred: bool
) -> tuple[Tensor, Tensor]:
    """(dx, dy times the normalised x), by operators that PyTorch differentiates; fp32 inside, dx of the dtype of x.

    dims: those that were normalised; centred: by their mean, too. weight is broadcast against x, None is 1.
    """
    wide, narrow = x.float(), dy.float()
    if centred:
        wide = wide - wide.mean(dims, keepdim=True)
    inverse = torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)
    normal = wide * inverse
    scaled = narrow if weight is None else narrow * weight.float()
    dx = scaled - normal * (scaled * normal).mean(dims, keepdim=True)
    if centred:
        dx = dx - scaled.mean(dims, keepdim=True)
    return (inverse * dx).to(x.dtype), narrow * normal


def slope_of_silu(x: Tensor) -> Tensor:
    """Its derivative; aten's silu_backward has none of its own."""
    part = torch.sigmoid(x)
    return part * (1 + x * (1 - part))


def of_gate(dy: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """(dgate, dup) by operators that PyTorch differentiates; fp32 inside."""
    wide, narrow = gate.float(), dy.float()
    if activation == "silu":
        dgate = narrow * up.float() * slope_of_silu(wide)
        return dgate.to(gate.dtype), (narrow * torch.nn.functional.silu(wide)).to(up.dtype)
    how = {"approximate": "tanh" if activation == "gelu_tanh" else "none"}
    dgate = torch.ops.aten.gelu_backward(narrow * up.float(), wide, **how)
    return dgate.to(gate.dtype), (narrow * torch.nn.functional.gelu(wide, **how)).to(up.dtype)
