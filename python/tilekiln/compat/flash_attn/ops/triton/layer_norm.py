# SPDX-License-Identifier: MIT
"""flash_attn.ops.triton.layer_norm: layer and RMS normalisation behind dropout and a residual, without Triton.

Of tensors on the CPU of fp32, fp16 or bf16, differentiable. Errors are those of `Library.layernorm2d` and
`Library.rmsnorm2d`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .... import _absent
from ...._modules import FaceArgumentError, alias
from .._dropout_add import _as, _dropped, _sum, in_widest, like, scale_of_rows
from ..layer_norm import _norm as _layer
from ..rms_norm import _norm as _rms

__all__ = [
    "LayerNormFn",
    "LayerNormLinearFn",
    "RMSNorm",
    "layer_norm_fn",
    "layer_norm_linear_fn",
    "layer_norm_ref",
    "maybe_contiguous",
    "maybe_contiguous_lastdim",
    "rms_norm_fn",
    "rms_norm_ref",
]

__getattr__ = _absent.sentences(__name__)


def _normed(
    total: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, centered: bool, rms: bool, to: torch.dtype
) -> Tensor:
    if centered:
        weight = weight.float() + 1
    if not rms:
        return in_widest(_layer, total, weight, bias, epsilon, to)
    if bias is None:
        return in_widest(_rms, total, weight, None, epsilon, to)
    return _as(in_widest(_rms, total.float(), weight, None, epsilon, torch.float32) + bias, to)


def _placed(name: str, made: Tensor, place: Tensor | None) -> Tensor:
    """A result, or the tensor of the caller's that it is written to."""
    if place is None:
        return made
    if place.shape != made.shape:
        raise FaceArgumentError(f"{name}: shape was {tuple(place.shape)}, must be {tuple(made.shape)}, that of x")
    return place.copy_(made)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:
    """The norm of dropout(x rowscale) + dropout(x1) + residual, and of the same sum with weight1 and bias1.

    x, x1, residual (..., columns), weight, bias, weight1, bias1 (columns), rowscale (...), which has no x1 beside it,
    of any of fp32, fp16 and bf16. The sum has the dtype of residual; without one x's, or fp32 with residual_in_fp32;
    before it is rounded to that everything is computed in fp32. Norms have out_dtype, else x's dtype.
    zero_centered_weight: by 1 + weight. is_rms_norm: x / sqrt(mean(x^2) + eps) weight + bias.
    Results: the norm, that with weight1 if there is one, with prenorm the sum, with return_dropout_mask what dropout
    keeps of x and of x1, bool, None where nothing is dropped; a tuple if there are several.
    out, residual_out: where to write the norm and the sum, of their shape.
    """
    if rowscale is not None and x1 is not None:
        raise FaceArgumentError("rowscale: was given, must be absent beside x1: scale x before")
    x1, residual, scale = like("x1", x1, x), like("residual", residual, x), scale_of_rows(rowscale, x)
    dropped = [_dropped(one, dropout_p, by) for one, by in ((x, scale), (x1, None)) if one is not None]
    to = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype
    total = _sum(tuple(one for one, _ in dropped), residual, to)
    of_out = x.dtype if out_dtype is None else out_dtype
    made = [_placed("out", _normed(total, weight, bias, eps, zero_centered_weight, is_rms_norm, of_out), out)]
    if weight1 is not None:
        made.append(_normed(total, weight1, bias1, eps, zero_centered_weight, is_rms_norm, of_out))
    written = _placed("residual_out", total, residual_out)
    masks = [*(mask for _, mask in dropped), None][:2] if return_dropout_mask else []
    results = (*made, *([written] if prenorm else []), *masks)
    return results if len(results) > 1 else results[0]


rms_norm_fn = alias(__name__, "rms_norm_fn", layer_norm_fn, "`layer_norm_fn` with is_rms_norm.", is_rms_norm=True)


class RMSNorm(torch.nn.Module):
    """rms_norm_fn with a weight (hidden_size); dropout while training."""

    bias: None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.zero_centered_weight = eps, zero_centered_weight
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        dropout_p = self.drop.p if self.drop is not None and self.training else 0.0
        return rms_norm_fn(
            x, self.weight, self.bias, residual=residual, eps=self.eps, dropout_p=dropout_p, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight,
        )  # fmt: skip


class LayerNormFn:
    """`LayerNormFn.apply(...)` is layer_norm_fn."""

    apply = staticmethod(layer_norm_fn)


def layer_norm_linear_fn(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """A linear layer, PyTorch's, of layer_norm_fn's norm; with prenorm (out, the sum).

    linear_weight (out_features, columns), linear_bias (out_features), which is brought to the weight's dtype.
    """
    normed, total = layer_norm_fn(
        x, norm_weight, norm_bias, residual=residual, eps=eps, prenorm=True, residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
    )  # fmt: skip
    bias = None if linear_bias is None else _as(linear_bias, linear_weight.dtype)
    out = functional.linear(_as(normed, linear_weight.dtype), linear_weight, bias)
    return (out, total) if prenorm else out


class LayerNormLinearFn:
    """`LayerNormLinearFn.apply(...)` is layer_norm_linear_fn."""

    apply = staticmethod(layer_norm_linear_fn)


def maybe_contiguous_lastdim(x: Tensor | None) -> Tensor | None:
    """x, copied where elements of its last dimension do not lie beside each other."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def maybe_contiguous(x: Tensor | None) -> Tensor | None:
    """x, copied where it is not contiguous."""
    return None if x is None else x.contiguous()


def _reference(
    kind: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    zero_centered_weight: bool = False,
    dropout_mask: Tensor | None = None,
    dropout_mask1: Tensor | None = None,
    upcast: bool = False,
) -> Any:
    """layer_norm_fn by PyTorch, for tests, step by step, each rounded to the dtype it has; upcast: in fp32.

    dropout_mask, dropout_mask1: kept parts of x and x1.
    """
    weights, masks = [(weight, bias), (weight1, bias1)], (dropout_mask, dropout_mask1)
    dtype = x.dtype
    if upcast:
        x, residual, x1 = (None if one is None else one.float() for one in (x, residual, x1))  # type: ignore[assignment]
        weights = [tuple(None if one is None else one.float() for one in pair) for pair in weights]  # type: ignore[misc]
    parts = [x if rowscale is None else x * rowscale[..., None], *([] if x1 is None else [x1])]
    if dropout_p > 0.0:
        parts = [
            functional.dropout(one, dropout_p) if mask is None else one.masked_fill(~mask, 0.0) / (1.0 - dropout_p)
            for one, mask in zip(parts, masks, strict=False)
        ]
    total = parts[0] if x1 is None else parts[0] + parts[1]
    if residual is not None:
        total = (total + residual).to(total.dtype)
    made = []
    for scale, shift in weights:
        if scale is not None:
            rows = total.to(scale.dtype)
            scale = scale + 1.0 if zero_centered_weight else scale
            if kind == "layer":
                one = functional.layer_norm(rows, rows.shape[-1:], scale, shift, eps)
            else:
                one = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * scale
                one = one if shift is None else one + shift
            made.append(one.to(dtype))
    results = (*made, *([total] if prenorm else []))
    return results if len(results) > 1 else results[0]


layer_norm_ref = alias(__name__, "layer_norm_ref", _reference, str(_reference.__doc__), kind="layer")
rms_norm_ref = alias(
    __name__, "rms_norm_ref", _reference, "`layer_norm_ref` of the root of the mean square.", kind="rms"
)
