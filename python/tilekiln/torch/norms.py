"""Modules in place of torch.nn.RMSNorm, torch.nn.LayerNorm and the RMSNorm of Transformers' models.

    model.norm = tilekiln.torch.RMSNorm.like(model.norm)

Their parameters have the names of those, so state dicts load. They compute with the operators rmsnorm2d and layernorm2d
of whatever libraries are at hand. Those have no backward: where a gradient would be recorded, PyTorch computes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Rounding = Literal["pytorch", "transformers"]


def _recorded(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def _columns(module: Any) -> int:
    """The length of the weight of a norm over the last dimension alone."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        shape = None if weight is None else tuple(weight.shape)
        raise ValueError(f"module: was {type(module).__name__} of weight {shape}, must have a weight of one dimension")
    return weight.shape[0]


class RMSNorm(torch.nn.Module):
    """y = x / sqrt(mean(x^2) + eps) weight over the last dimension of x (..., columns), of fp32, fp16 or bf16.

    weight (columns), dtype of x. rounding: pytorch rounds once, as torch.nn.RMSNorm; transformers rounds x / sqrt(..)
    to the dtype of x before it is multiplied, as LlamaRMSNorm and T5LayerNorm. Errors: those of `Library.rmsnorm2d`.
    """

    def __init__(self, columns: int, eps: float = 1e-6, rounding: Rounding = "pytorch", **where: Any) -> None:
        super().__init__()
        if rounding not in ("pytorch", "transformers"):
            raise ValueError(f"rounding: was {rounding!r}, must be 'pytorch' or 'transformers'")
        self.eps, self.rounding = eps, rounding
        self.weight = torch.nn.Parameter(torch.ones(columns, **where))

    @classmethod
    def like(cls, module: torch.nn.Module) -> RMSNorm:
        """In place of a torch.nn.RMSNorm, or of one of Transformers (with variance_epsilon); shares its weight."""
        columns, theirs = _columns(module), hasattr(module, "variance_epsilon")
        eps: Any = module.variance_epsilon if theirs else getattr(module, "eps", None)
        weight: Any = module.weight
        if eps is None:  # torch.nn.RMSNorm computes 16 bits in fp32, and takes its
            eps = torch.finfo(torch.float32).eps
        made = cls(columns, float(eps), "transformers" if theirs else "pytorch", device="meta")
        made.weight = weight
        return made

    def forward(self, x: Tensor) -> Tensor:
        if not _recorded(x, self.weight):
            rows = x.reshape(-1, x.shape[-1])
            made = torch.ops.tilekiln.rmsnorm2d(rows, self.weight, epsilon=self.eps, rounding=self.rounding)
            y: Tensor = made[0].view(x.shape)
            return y
        if self.rounding == "pytorch":
            return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, rounding={self.rounding!r}"


class LayerNorm(torch.nn.Module):
    """y = (x - mean(x)) / sqrt(variance(x) + eps) weight + bias over the last dimension of x (..., columns).

    weight and bias (columns), dtype of x: fp32, fp16 or bf16. Errors are those of `Library.layernorm2d`.
    """

    bias: torch.nn.Parameter | None

    def __init__(self, columns: int, eps: float = 1e-5, bias: bool = True, **where: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(columns, **where))
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros(columns, **where)) if bias else None)

    @classmethod
    def like(cls, module: torch.nn.Module) -> LayerNorm:
        """In place of a torch.nn.LayerNorm over the last dimension; shares its weight and bias."""
        columns = _columns(module)
        theirs: Any = module
        made = cls(columns, float(theirs.eps), False, device="meta")
        made.weight, made.bias = theirs.weight, theirs.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        if _recorded(x, self.weight, self.bias):
            return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = torch.ops.tilekiln.layernorm2d(rows, self.weight, self.bias, epsilon=self.eps)[0].view(x.shape)
        return y

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, bias={self.bias is not None}"
