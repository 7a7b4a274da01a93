"""Layers in place of a model's own by Hugging Face's `kernels`: RMSNorm and SiluAndMul, forward and backward.

`kernels.kernelize` puts the forward of such a class into a module of the model, whose weights and numbers it then uses:
the classes have no state. The repository that `scons hf-kernels` writes has them under `layers`. Without `kernels`,
`module.forward = types.MethodType(layers.RMSNorm.forward, module)` does the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .norms import _recorded, _rows, _run, rms_norm


class _SiluAndMul(torch.autograd.Function):
    """silu(gate) up of rows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gate: Tensor, up: Tensor) -> Any:
        return _run("silu_and_mul", (gate, up))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        return _run("silu_and_mul_bwd", (_rows(dy), *ctx.saved_tensors))


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) up, of tensors (..., columns) of fp32, fp16 or bf16; errors are those of `Library.silu_and_mul`."""
    rows = _rows(gate), _rows(up)
    y: Tensor = _SiluAndMul.apply(*rows) if _recorded(gate, up) else _run("silu_and_mul", rows)
    return y.view(gate.shape)


class RMSNorm(torch.nn.Module):
    """The RMSNorm of Transformers' models, which round x / sqrt(..) before they multiply it."""

    can_torch_compile = True
    has_backward = True
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon, "transformers")


class SiluAndMul(torch.nn.Module):
    """silu(a) b of x (..., 2 columns), a its first half and b its second."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return silu_and_mul(gate, up)
