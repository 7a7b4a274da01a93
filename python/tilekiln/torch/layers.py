# SPDX-License-Identifier: MIT
"""Layers in place of a model's own by Hugging Face's `kernels`: RMSNorm and SiluAndMul, forward and backward.

`kernels.kernelize` puts the forward of such a class into a module of the model, whose weights and numbers it then uses:
the classes have no state. The repository that `scons hf-kernels` writes has them under `layers`. Without `kernels`,
`module.forward = types.MethodType(layers.RMSNorm.forward, module)` does the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError
from tilekiln.api.operators import _call

from . import twice_differentiable
from .norms import _is_grad_enabled, _recorded, _rows, _run, directly, parameter, rms_norm
from .watchers import untouched

GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "silu": ("silu_and_mul", {}),
    "gelu": ("gelu_and_mul", {}),
    "gelu_tanh": ("gelu_and_mul", {"approximate": "tanh"}),
}
"""By activation the operator of act(gate) up, and its arguments."""


class _ActAndMul(torch.autograd.Function):
    """act(gate) up of rows."""

    generate_vmap_rule = True

    @staticmethod
    def made(run: Any, gate: Tensor, up: Tensor, activation: str) -> Any:
        operator, how = GATES[activation]
        return (run(operator, (gate, up), how),)

    @staticmethod
    def gradients(run: Any, ctx: Any, dy: Tensor) -> Any:
        operator, how = GATES[ctx.activation]
        return *run(f"{operator}_bwd", (_rows(dy), *ctx.saved_tensors), how), None

    @staticmethod
    def forward(gate: Tensor, up: Tensor, activation: str) -> Any:
        return _ActAndMul.made(_run, gate, up, activation)[0]

    @staticmethod
    def keep(ctx: Any, inputs: Any, others: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.activation = inputs[2]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _ActAndMul.keep(ctx, inputs, ())

    @staticmethod
    def again(ctx: Any, dy: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        return *twice_differentiable.of_gate(dy, gate, up, ctx.activation), None

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return _ActAndMul.again(ctx, dy) if _is_grad_enabled() else _ActAndMul.gradients(_run, ctx, dy)


class _Halves:
    """The same of the halves of rows that nothing watches, whose gradients are written where they belong."""

    @staticmethod
    def made(run: Any, x: Tensor) -> Any:
        halves = x.chunk(2, -1)
        return run("silu_and_mul", halves, {}), *halves

    @staticmethod
    def keep(ctx: Any, inputs: Any, others: Any) -> None:
        ctx.save_for_backward(inputs[0], *others)

    @staticmethod
    def gradients(run: Any, ctx: Any, dy: Tensor) -> Any:
        _, gate, up = ctx.saved_tensors
        dy = _rows(dy)
        if run is not _call:
            return torch.cat(run("silu_and_mul_bwd", (dy, gate, up), {}), -1)
        rows, columns = dy.shape
        dx = torch.empty(rows, 2 * columns, dtype=dy.dtype, device=dy.device)
        dgate, dup = dx.chunk(2, -1)
        _call("silu_and_mul_bwd", (dy, gate, up), {"dgate": dgate, "dup": dup})
        return dx

    @staticmethod
    def again(ctx: Any, dy: Tensor) -> Tensor:
        gate, up = ctx.saved_tensors[0].chunk(2, -1)  # those of forward have no history
        return torch.cat(twice_differentiable.of_gate(dy, gate, up, "silu"), -1)


_act_directly, _halves_directly = directly(_ActAndMul), directly(_Halves)


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) up, of tensors (..., columns) of fp32, fp16 or bf16; errors are those of `Library.silu_and_mul`."""
    return act_and_mul(gate, up, "silu")


def gelu_and_mul(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    """gelu(gate) up, exact or with approximate="tanh", as `silu_and_mul`; errors of `Library.gelu_and_mul`."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"approximate: was {approximate!r}, must be 'none' or 'tanh'")
    return act_and_mul(gate, up, "gelu" if approximate == "none" else "gelu_tanh")


def act_and_mul(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """act(gate) up by an activation of GATES."""
    rows = _rows(gate), _rows(up)
    operator, how = GATES[activation]
    if _recorded(gate, up):
        y: Tensor = (_act_directly if untouched(*rows) else _ActAndMul.apply)(*rows, activation)
    else:
        y = _run(operator, rows, how)
    return y if gate.dim() == 2 else y.view(gate.shape)


class RMSNorm(torch.nn.Module):
    """The RMSNorm of Transformers' models, which round x / sqrt(..) before they multiply it."""

    can_torch_compile = True
    has_backward = True
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, parameter(self, "weight"), self.variance_epsilon, "transformers")


class SiluAndMul(torch.nn.Module):
    """silu(a) b of x (..., 2 columns), a its first half and b its second."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        if not untouched(x):
            gate, up = x.chunk(2, -1)
            return silu_and_mul(gate, up)
        rows = x if x.dim() == 2 and x.is_contiguous() else _rows(x)
        if x.requires_grad and _is_grad_enabled():
            y: Tensor = _halves_directly(rows)
        else:  # nothing watches the halves, so they need not know whose they are: a quarter of a microsecond less
            y = _call("silu_and_mul", rows.unsafe_chunk(2, -1), {})
        return y if rows is x else y.view(*x.shape[:-1], -1)


def activation_of(function: Any) -> str:
    """silu, gelu or gelu_tanh; ValueError for another."""
    rows = torch.linspace(-3, 3, 7, device="cpu")
    if torch.allclose(function(rows), torch.nn.functional.silu(rows)):
        return "silu"
    if torch.allclose(function(rows), torch.nn.functional.gelu(rows)):
        return "gelu"
    if torch.allclose(function(rows), torch.nn.functional.gelu(rows, approximate="tanh")):
        return "gelu_tanh"
    raise ValueError(f"has an activation other than silu and gelu: {type(function).__name__}")


def like_linear(module: Any) -> str:
    """The reason to leave a module that multiplies by a weight and is no torch.nn.Linear; "" of others."""
    if type(module).__name__ == "Conv1D" and getattr(getattr(module, "weight", None), "ndim", 0) == 2:
        return "has its weight transposed (Conv1D of Transformers): only torch.nn.Linear is packed"
    if isinstance(module, torch.nn.Linear) and type(module) is not torch.nn.Linear:
        return "is a subclass of torch.nn.Linear, which may compute something else"
    return ""
