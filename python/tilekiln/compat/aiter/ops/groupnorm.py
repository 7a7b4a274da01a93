# SPDX-License-Identifier: MIT
"""aiter.ops.groupnorm: group norms, whose groups are rows of the layer norm's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from ...._core.native import ArgumentError
from ..._modules import errors_as_upstream
from .._run import run

__all__ = ["GroupNorm", "groupnorm_run"]


@errors_as_upstream(x="input")
def groupnorm_run(input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) weight + bias, both of each group of channels, like input; without gradient.

    input (batch, channels, ...), fp32, fp16 or bf16, weight and bias (channels); computed in fp32 and rounded once.
    """
    if input.dim() < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ArgumentError(
            f"num_groups: was {num_groups}, must divide the channels of input, which was of shape {tuple(input.shape)}"
        )
    groups = input.float().reshape(input.shape[0] * num_groups, -1)
    made = run("layernorm2d", (groups, torch.ones_like(groups[0]), None), {"epsilon": eps})
    with torch.no_grad():
        channels = (1, -1, *[1] * (input.dim() - 2))
        y = torch.addcmul(bias.float().view(channels), made.view(input.shape), weight.float().view(channels))
        return y.to(input.dtype)


class GroupNorm(torch.nn.Module):
    """A group norm by `groupnorm_run`; where a gradient is recorded, without affine and with use_torch PyTorch's."""

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_groups, self.eps, self.affine = num_groups, eps, affine
        ones = torch.ones(num_channels, device=device, dtype=dtype)
        self.register_parameter("weight", torch.nn.Parameter(ones) if affine else None)
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros_like(ones)) if affine else None)

    def forward(self, x: Tensor, use_torch: bool = False) -> Tensor:
        """x (batch, channels, ...)."""
        weight, bias = self.weight, self.bias
        records = torch.is_grad_enabled() and any(one.requires_grad for one in (x, *self.parameters()))
        if use_torch or weight is None or bias is None or records:
            return torch.nn.functional.group_norm(x, self.num_groups, weight, bias, self.eps)
        return groupnorm_run(x, self.num_groups, weight, bias, self.eps)
