# SPDX-License-Identifier: MIT
"""Derivatives of `torch.ops.tilekiln.conv_fwd`, conv_bwd_data and conv_bwd_weight, each by the two others.

Of conv_fwd with activation none or relu; the bias' gradient is the sum of that of y over images and pixels, and the
residual's is that of y. All three are linear in each of their arrays, so there are derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilekiln._core.native import ArgumentError

from . import operators

ACTIVATIONS = ("none", "relu")
"""Activations whose derivative y alone says."""
BACKWARD = ("conv_bwd_data", "conv_bwd_weight")
WINDOW = ("stride", "dilation", "padding", "groups")


def register() -> None:
    """Makes the operators differentiable."""
    ops = torch.ops.tilekiln
    arguments = [name for name, _ in operators.ARGUMENTS["conv_fwd"]]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given = dict(zip(arguments, inputs, strict=True))
        if given["activation"] not in ACTIVATIONS:
            raise ArgumentError(
                f"activation: was {given['activation']!r}, must be 'none' or 'relu' when an input requires grad:"
                " apply it after the convolution"
            )
        if given["scale"] is not None:
            raise ArgumentError("scale: was given, must be None when an input requires grad; int8 has no gradient")
        relu = given["activation"] == "relu"
        ctx.window = {name: given[name] for name in WINDOW}
        ctx.save_for_backward(given["x"], given["weight"], *([output] if relu else []))

    def differentiate(ctx: Any, dy: Any) -> Any:
        x, weight, *y = ctx.saved_tensors
        needs = dict(zip(arguments, ctx.needs_input_grad, strict=False))
        if y:
            dy = dy * (y[0] > 0)
        made = {}
        if needs.get("x"):
            made["x"] = ops.conv_bwd_data(dy, weight, lengths=list(x.shape[2:]), **ctx.window)
        if needs.get("weight"):
            made["weight"] = ops.conv_bwd_weight(x, dy, filter=list(weight.shape[2:]), **ctx.window)
        if needs.get("bias"):
            made["bias"] = dy.sum([0, *range(2, dy.ndim)], dtype=torch.float32)
        if needs.get("residual"):
            made["residual"] = dy
        return tuple(made.get(name) for name in arguments)

    def of_data(ctx: Any, ddx: Any) -> Any:
        dy, weight = ctx.saved_tensors
        asked = ctx.needs_input_grad
        of_dy = ops.conv_fwd(ddx, weight, **ctx.window) if asked[0] else None
        of_weight = ops.conv_bwd_weight(ddx, dy, filter=list(weight.shape[2:]), **ctx.window) if asked[1] else None
        return (of_dy, of_weight, *[None] * (ctx.count - 2))

    def of_filters(ctx: Any, ddweight: Any) -> Any:
        x, dy = ctx.saved_tensors
        asked = ctx.needs_input_grad
        of_x = ops.conv_bwd_data(dy, ddweight, lengths=list(x.shape[2:]), **ctx.window) if asked[0] else None
        of_dy = ops.conv_fwd(x, ddweight, **ctx.window) if asked[1] else None
        return (of_x, of_dy, *[None] * (ctx.count - 2))

    torch.library.register_autograd("tilekiln::conv_fwd", differentiate, setup_context=save)
    for name, function in zip(BACKWARD, (of_data, of_filters), strict=True):
        torch.library.register_autograd(f"tilekiln::{name}", function, setup_context=_keeper(name))


def _keeper(name: str) -> Callable[..., None]:
    """A setup_context that keeps both arrays and the window of a gradient's operator."""
    arguments = [one for one, _ in operators.ARGUMENTS[name]]

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given = dict(zip(arguments, inputs, strict=True))
        ctx.window, ctx.count = {one: given[one] for one in WINDOW}, len(inputs)
        ctx.save_for_backward(*inputs[:2])

    return keep
