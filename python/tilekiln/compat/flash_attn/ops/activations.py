# SPDX-License-Identifier: MIT
"""flash_attn.ops.activations: GELU of tanh, squared ReLU and SwiGLU, and their derivatives.

The gate of SwiGLU is the operator silu_and_mul; where no library has it, and all the others, PyTorch's functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ....api.operators import at_hand_has
from ....torch import calls, layers, operators

__all__ = [
    "FastGeLUFunction",
    "GeLUFunction",
    "SwiGLUFunction",
    "bias_gelu",
    "bias_gelu_back",
    "bias_gelu_impl",
    "fast_gelu_impl",
    "gelu_bwd",
    "gelu_fwd",
    "relu_bwd",
    "sqrelu_bwd",
    "sqrelu_fwd",
    "swiglu",
]


def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    """gelu(y + bias) of the tanh approximation, in y's dtype; y (..., columns), bias (columns)."""
    return functional.gelu(y + bias, approximate="tanh").to(y.dtype)


def bias_gelu_back(g: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of y and bias, in their dtypes, for g, that of bias_gelu."""
    dy = gelu_bwd(g, y + bias)
    return dy.to(y.dtype), dy.reshape(-1, dy.shape[-1]).sum(0, dtype=bias.dtype)


def gelu_fwd(x: Tensor) -> Tensor:
    """gelu(x) of the tanh approximation, x (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) / 2."""
    return functional.gelu(x, approximate="tanh")


def gelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Gradient of x for g, that of gelu_fwd, in x's dtype."""
    made: Tensor = torch.ops.aten.gelu_backward(g.to(x.dtype), x, approximate="tanh")
    return made


def relu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """g where x >= 0, else 0, in x's dtype."""
    return torch.where(x >= 0, g, 0.0).to(x.dtype)


def sqrelu_fwd(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return functional.relu(x).square()


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """2 g max(x, 0), in x's dtype."""
    return (2.0 * g * functional.relu(x)).to(x.dtype)


def bias_gelu_impl(input: Tensor, bias: Tensor) -> Tensor:  # noqa: A002
    """bias_gelu, differentiable."""
    return bias_gelu(input, bias)


def fast_gelu_impl(input: Tensor) -> Tensor:  # noqa: A002
    """gelu_fwd, differentiable."""
    return gelu_fwd(input)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) y, differentiable; x and y of one shape (..., columns)."""
    if _computes("silu_and_mul", x, y):
        return layers.silu_and_mul(x, y)
    return functional.silu(x) * y


class GeLUFunction:
    """`GeLUFunction.apply(input, bias)` is bias_gelu_impl."""

    apply = staticmethod(bias_gelu_impl)


class FastGeLUFunction:
    """`FastGeLUFunction.apply(input)` is fast_gelu_impl."""

    apply = staticmethod(fast_gelu_impl)


class SwiGLUFunction:
    """`SwiGLUFunction.apply(x, y)` is swiglu."""

    apply = staticmethod(swiglu)


def _computes(operator: str, gate: Tensor, up: Tensor) -> bool:
    return (
        calls.untouched(gate, up)
        and gate.shape == up.shape
        and gate.dtype == up.dtype
        and gate.device == up.device
        and gate.dtype in operators.FLOATS
        and gate.numel() > 0
        and at_hand_has(operator, calls.backend(gate))
    )


def _gated(y: Tensor, gate: Tensor, activation: Any) -> Tensor:
    """activation(gate) y, by a kernel where it is silu or the exact gelu."""
    if activation is functional.silu:
        return swiglu(gate, y)
    if activation is functional.gelu and _computes("gelu_and_mul", gate, y):
        return layers.gelu_and_mul(gate, y)
    made: Tensor = activation(gate) * y
    return made
