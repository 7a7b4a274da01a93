# SPDX-License-Identifier: MIT
"""torch.nn.functional's layer_norm and group_norm with Tilekiln's kernels, and in their place inside `use`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import NoKernelError
from tilekiln.api import operators as facade
from tilekiln.api.operators import _call

from . import norms, operators, twice_differentiable
from .inside import depth
from .watchers import untouched


class _GroupNorm(torch.autograd.Function):
    """y of images (batch, channels, positions) or, with layout nhwc, (batch, positions, channels).

    The gradient is PyTorch's native_group_norm_backward, of the mean and 1 / standard deviation that the kernel found;
    one that may be differentiated again is PyTorch's arithmetic.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, silu: bool, layout: str
    ) -> Any:
        given = {**_options(groups, eps, silu, layout), "return_mean": True, "return_inv_std": True}
        return norms._run("group_norm", (x, weight, bias), given)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, bias, *ctx.said = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, bias, *output[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        return (_GroupNorm.again if torch.is_grad_enabled() else _GroupNorm.once)(ctx, dy)

    @staticmethod
    def again(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias, *_ = ctx.saved_tensors
        groups, eps, silu, layout = ctx.said
        if layout == "nhwc":
            x, dy = x.transpose(1, 2), dy.transpose(1, 2)
        if silu:
            dy = dy * twice_differentiable.slope_of_silu(_OWN["group_norm"](x, groups, weight, bias, eps))
        shape = (x.shape[0], groups, -1, x.shape[2])
        own = None if weight is None else weight.view(1, groups, -1, 1)
        dx, each = twice_differentiable.of_norm(x.reshape(shape), dy.reshape(shape), own, (2, 3), eps, True)
        dx = dx.reshape(x.shape)
        dweight = None if weight is None else each.sum((0, 3)).view(-1).to(weight.dtype)
        dbias = None if bias is None else dy.sum((0, 2)).to(bias.dtype)
        return dx.transpose(1, 2) if layout == "nhwc" else dx, dweight, dbias, None, None, None, None

    @staticmethod
    def once(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        groups, eps, silu, layout = ctx.said
        if silu:  # of what it was taken of, which nothing keeps
            before = norms._first(norms._run("group_norm", (x, weight, bias), _options(groups, eps, False, layout)))
            dy = torch.ops.aten.silu_backward(dy, before)
        if layout == "nhwc":
            x, dy = x.transpose(1, 2), dy.transpose(1, 2)
        batch, channels, positions = x.shape
        wide = None if weight is None else weight.float()  # statistics of 16 bits are fp32, and so must it be
        asked = [ctx.needs_input_grad[0], weight is not None, bias is not None]
        given = (dy.contiguous(), x.contiguous(), mean, inverse, wide, batch, channels, positions, groups, asked)
        dx, dweight, dbias = torch.ops.aten.native_group_norm_backward(*given)
        if layout == "nhwc" and dx is not None:
            dx = dx.transpose(1, 2)
        of = [
            None if one is None or own is None else one.to(own.dtype) for one, own in ((dweight, weight), (dbias, bias))
        ]
        return dx, *of, None, None, None, None


def _options(groups: int, eps: float, silu: bool, layout: str) -> dict[str, Any]:
    return {"groups": groups, "epsilon": eps, "activation": "silu" if silu else "none", "layout": layout}


def _channels_last(x: Tensor) -> bool:
    """Do the channels of every position lie side by side, and those not of every channel?"""
    return x.dim() > 2 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str = "none",
) -> Tensor:
    """torch.nn.functional.group_norm, then silu with activation "silu", in one pass; on CPUs.

    x (batch, channels, ...) of fp32, fp16 or bf16, weight and bias (channels) of its dtype or None; y like x, channels
    last in memory where those of x are. Other strides are copied. Differentiable in x, weight and bias. Errors
    are those of `Library.group_norm`; it says `gamma` for weight and `beta` for bias.
    """
    if activation not in ("none", "silu"):
        raise ValueError(f"activation: was {activation!r}, must be 'none' or 'silu'")
    if x.dim() < 2:
        raise ValueError(f"x: had {x.dim()} dimensions, must have 2 or more, (batch, channels, ...)")
    last = _channels_last(x)
    rows = x.movedim(1, -1).flatten(1, -2) if last else x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    layout, silu = "nhwc" if last else "nchw", activation == "silu"
    weight, bias = (None if one is None else one.contiguous() for one in (weight, bias))
    if norms._recorded(x, weight, bias):
        y = norms._first(_GroupNorm.apply(rows, weight, bias, groups, eps, silu, layout))
    elif untouched(rows, weight, bias):
        y = _call("group_norm", (rows, weight, bias), _options(groups, eps, silu, layout))
    else:
        given = _options(groups, eps, silu, layout)
        y = norms._first(torch.ops.tilekiln.group_norm(rows, weight, bias, **given))
    if not last:
        return y.view(x.shape)
    return y.view(x.shape[0], *x.shape[2:], x.shape[1]).movedim(-1, 1)


own: dict[str, Callable[..., Tensor]] = {}
"""torch's functions by name, while `use` has replaced them."""


def _routed(name: str, x: Any, *args: Any, **named: Any) -> Any:
    if depth.value and not torch.compiler.is_compiling() and isinstance(x, Tensor):
        made = (_layer_norm if name == "layer_norm" else _grouped)(x, *args, **named)
        if made is not None:
            return made
    return own.get(name, _OWN[name])(x, *args, **named)


def functional_layer_norm(input: Any, *args: Any, **named: Any) -> Any:  # noqa: A002  torch's name
    """Replaces torch.nn.functional.layer_norm while a thread is in `use`."""
    return _routed("layer_norm", input, *args, **named)


def functional_group_norm(input: Any, *args: Any, **named: Any) -> Any:  # noqa: A002  torch's name
    """Replaces torch.nn.functional.group_norm while a thread is in `use`."""
    return _routed("group_norm", input, *args, **named)


REPLACED = {"layer_norm": functional_layer_norm, "group_norm": functional_group_norm}
_OWN: dict[str, Callable[..., Tensor]] = {name: getattr(torch.nn.functional, name) for name in REPLACED}


def _fit(x: Tensor, *others: Any) -> bool:
    """May the kernels have them? Else PyTorch's own function does, or says what is wrong."""
    if x.dtype not in operators.FLOATS or not x.is_cpu or not x.numel() or torch.is_autocast_enabled("cpu"):
        return False
    if torch.autograd.forward_ad._current_level >= 0 or not untouched(x, *others):
        return False
    return all(one is None or (one.dtype == x.dtype and one.is_cpu) for one in others)


@functools.cache
def _has(name: str, dtype: torch.dtype, biased: bool, records: bool) -> bool:
    """Do the available libraries have the kernels of such a call, its gradient's too where it is recorded?"""
    one = torch.ones(1, dtype=dtype, device="cpu")
    row, columns, statistic = one.view(1, 1), one, torch.ones(1, device="cpu")
    try:
        if name == "group_norm":
            facade._choose(name, (one.view(1, 1, 1), None, None), {"groups": 1})
            return True
        asked = {"return_mean": True, "return_inv_std": True} if records else {}
        facade._choose(name, (row, columns, columns if biased else None), asked)
        if records:
            given = (row, row, columns, statistic, statistic)
            facade._choose("layernorm2d_bwd", given, {"return_dbeta": biased})
    except NoKernelError:
        return False
    return True


def _layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor | None:
    shape = tuple(normalized_shape)
    if weight is None or not shape or tuple(x.shape[-len(shape) :]) != shape or not _fit(x, weight, bias):
        return None
    if tuple(weight.shape) != shape or not (bias is None or tuple(bias.shape) == shape):
        return None
    if not _has("layernorm2d", x.dtype, bias is not None, norms._recorded(x, weight, bias)):
        return None
    return norms.layer_norm(x, weight, bias, eps)


def _grouped(x: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor | None:
    if x.dim() < 2 or not _fit(x, weight, bias) or num_groups < 1 or x.shape[1] % num_groups:
        return None
    if any(one is not None and tuple(one.shape) != (x.shape[1],) for one in (weight, bias)):
        return None
    if x.numel() <= x.shape[0] * num_groups:  # a number a group, which PyTorch refuses
        return None
    if not _has("group_norm", x.dtype, False, False):
        return None
    return group_norm(x, num_groups, weight, bias, eps)
