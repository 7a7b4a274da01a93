# SPDX-License-Identifier: MIT
"""The derivative of matrix products: `tilekiln.matmul` and `tilekiln.linear` where a gradient is recorded.

out = alpha a b + beta c + bias has da = alpha dout b^T, db = alpha a^T dout, dc = beta dout and dbias = the sum of
dout's rows. An activation is PyTorch's own, of the rounded product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from tilekiln._core.native import ArgumentError

from . import operators  # noqa: F401  torch.ops.tilekiln

ACTIVATIONS: dict[str, Any] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "hardswish": functional.hardswish,
}


class Product(torch.autograd.Function):
    """alpha a b + beta c + bias."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, alpha: float, beta: float, threads: int
    ) -> Tensor:
        """a (m, k), b (k, n), c (m, n), or with a batch before; bias (n), fp32."""
        ctx.save_for_backward(a, b)
        ctx.factors, ctx.threads, ctx.bias = (alpha, beta), threads, bias is not None
        return _multiply(a, b, threads, c=c, bias=bias, alpha=alpha, beta=beta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Of a, b, c and bias."""
        a, b = ctx.saved_tensors
        (alpha, beta), wants = ctx.factors, ctx.needs_input_grad
        dout = dout.contiguous()
        da = _multiply(dout, b.mT, ctx.threads, alpha=alpha) if wants[0] else None
        if not wants[1]:
            db = None
        elif b.stride(-1) == 1:
            db = _multiply(a.mT, dout, ctx.threads, alpha=alpha)
        else:  # the weight of a layer: its gradient is contiguous, too
            db = _multiply(dout.mT, a, ctx.threads, alpha=alpha).mT
        dc = beta * dout if wants[2] else None
        dbias = dout.reshape(-1, dout.shape[-1]).sum(0, dtype=torch.float32) if ctx.bias and wants[3] else None
        return da, db, dc, dbias, None, None, None


def product(a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, arguments: Any) -> Tensor:
    """As the product of these arguments, recorded by autograd."""
    because = "when a gradient is recorded: call it under torch.no_grad(), or detach what requires grad"
    if arguments.get("stream") is not None:
        raise ArgumentError(f"stream: was given, must be absent {because}")
    for name in arguments:
        if name not in ("alpha", "beta", "activation", "clamp_min", "clamp_max", "num_threads", "stream"):
            raise ArgumentError(f"{name}: was given, must be absent {because}")
    activation = arguments.get("activation", "none")
    if activation not in (*ACTIVATIONS, "none", "clamp"):
        raise ArgumentError(f"activation: was {activation!r}, must be none, clamp, {', '.join(ACTIVATIONS)}")
    alpha, beta = float(arguments.get("alpha", 1)), float(arguments.get("beta", 1))
    out: Tensor = Product.apply(a, b, c, bias, alpha, beta, int(arguments.get("num_threads", 0)))
    if activation == "clamp":
        return out.clamp(arguments.get("clamp_min", 0.0), arguments.get("clamp_max", 6.0))
    made: Tensor = ACTIVATIONS[activation](out) if activation != "none" else out
    return made


def _multiply(a: Tensor, b: Tensor, threads: int, **others: Any) -> Tensor:
    operator = torch.ops.tilekiln.batched_gemm if a.ndim == 3 else torch.ops.tilekiln.gemm
    made: Tensor = operator(_matrix(a), _matrix(b), num_threads=threads, **others)
    return made


def _matrix(x: Tensor) -> Tensor:
    """With a contiguous row or column."""
    return x if 1 in x.stride()[-2:] else x.contiguous()
