# SPDX-License-Identifier: MIT
"""The derivative of `torch.ops.tilekiln.conv_fwd`: by conv_bwd_data and conv_bwd_weight.

With activation none or relu; the bias' gradient is the sum of that of y over images and pixels, and the residual's is
that of y.
"""

from __future__ import annotations

from typing import Any

import torch

from tilekiln._core.native import ArgumentError

from . import operators

ACTIVATIONS = ("none", "relu")
"""Activations whose derivative y alone says."""
BACKWARD = ("conv_bwd_data", "conv_bwd_weight")
WINDOW = ("stride", "dilation", "padding", "groups")


def register() -> None:
    """Makes the operator differentiable; a second derivative raises NotImplementedError."""
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
        ops, made = torch.ops.tilekiln, {}
        if needs.get("x"):
            made["x"] = ops.conv_bwd_data(dy, weight, lengths=list(x.shape[2:]), **ctx.window)
        if needs.get("weight"):
            made["weight"] = ops.conv_bwd_weight(x, dy, filter=list(weight.shape[2:]), **ctx.window)
        if needs.get("bias"):
            made["bias"] = dy.sum([0, *range(2, dy.ndim)], dtype=torch.float32)
        if needs.get("residual"):
            made["residual"] = dy
        return tuple(made.get(name) for name in arguments)

    def no_second(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("tilekiln has no second derivative of conv_fwd, only the first")

    torch.library.register_autograd("tilekiln::conv_fwd", differentiate, setup_context=save)
    for name in BACKWARD:
        torch.library.register_autograd(f"tilekiln::{name}", no_second)
