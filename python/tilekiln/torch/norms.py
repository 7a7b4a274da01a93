# SPDX-License-Identifier: MIT
"""Modules in place of torch.nn.RMSNorm, torch.nn.LayerNorm and the RMSNorm of Transformers' models.

    model.norm = tilekiln.torch.RMSNorm.like(model.norm)

Their parameters have the names of those, so state dicts load. They compute with the operators rmsnorm2d and layernorm2d
of whatever libraries are available, and their gradients with rmsnorm2d_bwd and layernorm2d_bwd. A gradient that may
be differentiated again (create_graph, torch.func.grad) is PyTorch's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from tilekiln.api.operators import _call

from . import twice_differentiable
from .watchers import untouched

Rounding = Literal["pytorch", "transformers"]
ROUNDINGS: tuple[Rounding, ...] = ("transformers", "pytorch")  # of fp32 they are the same


_is_grad_enabled, _is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling


def _recorded(*tensors: Tensor | None) -> bool:
    if not _is_grad_enabled():
        return False
    found = False
    for one in tensors:  # not any(): a generator costs a microsecond
        found = found or (one is not None and one.requires_grad)
    return found


def _rows(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """(rows, columns), the last dimension contiguous; columns are as many dimensions as the weight has, or one."""
    many = 1 if weight is None else weight.dim()
    if many == 1 and x.dim() == 2 and x.is_contiguous():
        return x
    if weight is not None and many > 1 and x.shape[-many:] != weight.shape:
        raise ValueError(f"x: was {tuple(x.shape)}, must end with {tuple(weight.shape)}, the shape of weight")
    rows = x if many == 1 and x.dim() == 2 else x.reshape(-1, x.shape[-many:].numel())
    return rows if rows.stride(-1) == 1 or rows.shape[-1] < 2 else rows.contiguous()


def _run(operator: str, tensors: tuple[Tensor | None, ...], options: dict[str, Any]) -> Any:
    """Results of an operator: straight from the facade where nothing watches, for the dispatcher takes 10 us a call."""
    if untouched(*tensors):
        return _call(operator, tensors, options)
    return getattr(torch.ops.tilekiln, operator)(*tensors, **options)


def _first(made: Any) -> Tensor:
    """y: alone from the facade, before results that were not asked for from the custom operator."""
    y: Tensor = made if isinstance(made, Tensor) else made[0]
    return y


def directly(function: Any) -> Callable[..., Any]:
    """y of a Function, for tensors that nothing watches: functorch's binding of arguments takes 25 us of a call.

    `made` and `gradients` of the function take what runs an operator; `keep` takes what was made past y; `again` gives
    gradients that PyTorch can differentiate.
    """

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            y, *others = function.made(_call, *inputs)
            function.keep(ctx, inputs, others)
            return y

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            if _is_grad_enabled():  # it is differentiated again
                return function.again(ctx, given[0])
            return function.gradients(_call if untouched(given[0]) else _run, ctx, given[0])

    Direct.__name__ = Direct.__qualname__ = function.__name__
    apply: Callable[..., Any] = super(torch.autograd.Function, Direct).apply
    return apply


class _RMSNorm(torch.autograd.Function):
    """(y, inv_rms) of rows."""

    generate_vmap_rule = True

    @staticmethod
    def made(run: Any, rows: Tensor, weight: Tensor, eps: float, rounding: str) -> Any:
        made = run("rmsnorm2d", (rows, weight), {"epsilon": eps, "rounding": rounding, "return_inv_rms": True})
        return made[0], made[-1]

    @staticmethod
    def gradients(run: Any, ctx: Any, dy: Tensor) -> Any:
        dx, dweight = run("rmsnorm2d_bwd", (_rows(dy), *ctx.saved_tensors), {})
        return dx, dweight, None, None

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, eps: float, rounding: str) -> Any:
        return _RMSNorm.made(_run, rows, weight, eps, rounding)

    @staticmethod
    def keep(ctx: Any, inputs: Any, others: Any) -> None:
        ctx.eps = inputs[2]
        ctx.save_for_backward(inputs[0], inputs[1], others[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        _RMSNorm.keep(ctx, inputs, output[1:])

    @staticmethod
    def again(ctx: Any, dy: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        dx, each = twice_differentiable.of_norm(x, dy, weight, (-1,), ctx.eps, False)
        return dx, each.sum(0).to(weight.dtype), None, None

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        return _RMSNorm.again(ctx, dy) if _is_grad_enabled() else _RMSNorm.gradients(_run, ctx, dy)


class _LayerNorm(torch.autograd.Function):
    """(y, mean, inv_std) of rows."""

    generate_vmap_rule = True

    @staticmethod
    def made(run: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Any:
        asked = {"epsilon": eps, "return_mean": True, "return_inv_std": True}
        made = run("layernorm2d", (rows, weight, bias), asked)
        return made[0], made[-2], made[-1]

    @staticmethod
    def gradients(run: Any, ctx: Any, dy: Tensor) -> Any:
        made = run("layernorm2d_bwd", (_rows(dy), *ctx.saved_tensors), {"return_dbeta": ctx.biased})
        return made[0], made[1], made[2] if ctx.biased else None, None

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Any:
        return _LayerNorm.made(_run, rows, weight, bias, eps)

    @staticmethod
    def keep(ctx: Any, inputs: Any, others: Any) -> None:
        ctx.biased, ctx.eps = inputs[2] is not None, inputs[3]
        ctx.save_for_backward(inputs[0], inputs[1], *others)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        _LayerNorm.keep(ctx, inputs, output[1:])

    @staticmethod
    def again(ctx: Any, dy: Tensor) -> Any:
        x, weight, *_ = ctx.saved_tensors
        dx, each = twice_differentiable.of_norm(x, dy, weight, (-1,), ctx.eps, True)
        return dx, each.sum(0).to(weight.dtype), dy.sum(0) if ctx.biased else None, None

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        return _LayerNorm.again(ctx, dy) if _is_grad_enabled() else _LayerNorm.gradients(_run, ctx, dy)


_rms_norm_directly, _layer_norm_directly = directly(_RMSNorm), directly(_LayerNorm)


def _shape(module: Any) -> tuple[int, ...]:
    """The shape of the weight of a norm."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not weight.dim():
        raise ValueError(f"module: was {type(module).__name__} without a weight, must have one")
    return tuple(weight.shape)


def _columns(one: Tensor) -> Tensor:
    """A weight or a bias of one dimension, contiguous."""
    return one.contiguous().view(-1)


def _rms_norm(x: Tensor, weight: Tensor, eps: float, rounding: Rounding, offset: float = 0.0) -> Tensor:
    """PyTorch's own, in either rounding; offset as of `RMSNorm`."""
    if offset:
        return _rms_norm(x.float(), weight.float() + offset, eps, "pytorch").to(x.dtype)
    if rounding == "pytorch":
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, rounding: Rounding = "pytorch") -> Tensor:
    """`RMSNorm` as a function: x (..., columns) and weight (columns) of one dtype, y like x.

    A weight of several dimensions says that as many of x are its columns.
    """
    rows, weight = _rows(x, weight), _columns(weight)
    direct = untouched(rows, weight)
    y: Tensor
    if _recorded(x, weight):
        given = (rows, weight, eps, rounding)
        y = _rms_norm_directly(*given) if direct else _RMSNorm.apply(*given)[0]
    elif direct:
        y = _call("rmsnorm2d", (rows, weight), {"epsilon": eps, "rounding": rounding})
    else:
        y = _first(torch.ops.tilekiln.rmsnorm2d(rows, weight, epsilon=eps, rounding=rounding))
    return y if rows is x else y.view_as(x)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """`LayerNorm` as a function: x (..., columns), weight and bias (columns), y like x; dimensions as in `rms_norm`."""
    rows, weight, bias = _rows(x, weight), _columns(weight), None if bias is None else _columns(bias)
    direct = untouched(rows, weight, bias)
    y: Tensor
    if _recorded(x, weight, bias):
        given = (rows, weight, bias, eps)
        y = _layer_norm_directly(*given) if direct else _LayerNorm.apply(*given)[0]
    elif direct:
        y = _call("layernorm2d", (rows, weight, bias), {"epsilon": eps})
    else:
        y = _first(torch.ops.tilekiln.layernorm2d(rows, weight, bias, epsilon=eps))
    return y if rows is x else y.view_as(x)


def _sizes(columns: int | Sequence[int]) -> tuple[int, ...]:
    return (columns,) if isinstance(columns, int) else tuple(columns)


def _said(weight: Tensor) -> str:
    return str(weight.shape[0] if weight.dim() == 1 else tuple(weight.shape))


def parameter(module: torch.nn.Module, name: str) -> Any:
    """A parameter of a module; torch.nn.Module's own __getattr__ takes most of a microsecond for it."""
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def _far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


class RMSNorm(torch.nn.Module):
    """y = x / sqrt(mean(x^2) + eps) weight over the last dimension of x (..., columns), of fp32, fp16 or bf16.

    weight (columns), dtype of x; several columns mean as many last dimensions. rounding: pytorch rounds once, as
    torch.nn.RMSNorm; transformers rounds x / sqrt(..) to the dtype of x before it is multiplied, as LlamaRMSNorm and
    T5LayerNorm. offset: added to the weight, 1 for the norms of Gemma; then rows are computed in fp32 and rounded once.
    Errors: those of `Library.rmsnorm2d`.
    """

    def __init__(
        self,
        columns: int | Sequence[int],
        eps: float = 1e-6,
        rounding: Rounding = "pytorch",
        offset: float = 0.0,
        **where: Any,
    ) -> None:
        super().__init__()
        if rounding not in ROUNDINGS:
            raise ValueError(f"rounding: was {rounding!r}, must be 'pytorch' or 'transformers'")
        self.eps, self.rounding, self.offset = eps, rounding, offset
        self.weight = torch.nn.Parameter(torch.full(_sizes(columns), 1.0 - offset, **where))

    @classmethod
    def like(cls, module: torch.nn.Module) -> RMSNorm:
        """In place of a torch.nn.RMSNorm, or of one of Transformers; shares its weight.

        The module is tried on some rows, which say how it rounds, and whether its factor is 1 + weight, as in Gemma.
        ValueError for one that computes something else.
        """
        columns = _shape(module)
        weight: Any = module.weight
        eps: Any = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if eps is None:  # torch.nn.RMSNorm computes 16 bits in fp32, and takes its
            eps = torch.finfo(torch.float32).eps
        with torch.no_grad():
            rows = torch.randn(16, *columns, generator=torch.Generator().manual_seed(0), device="cpu").to(weight)
            theirs = module(rows)
            far = {(kind, 0.0): _far(_rms_norm(rows, weight, eps, kind), theirs) for kind in ROUNDINGS}
            far["pytorch", 1.0] = _far(_rms_norm(rows, weight, eps, "pytorch", 1.0), theirs)
            rounding, offset = min(far, key=far.__getitem__)
            most = 2 * torch.finfo(weight.dtype).eps * theirs.abs().max().item()
        if not far[rounding, offset] <= most:
            raise ValueError(
                f"module: {type(module).__name__} computes something else than x / sqrt(mean(x^2) + eps) weight"
            )
        made = cls(columns, float(eps), rounding, offset, device="meta")
        made.weight = weight
        return made

    def forward(self, x: Tensor) -> Tensor:
        if self.training and _is_compiling():  # the compiler fuses it, forward and backward, with what is beside it
            return _rms_norm(x, self.weight, self.eps, self.rounding, self.offset)
        if self.offset:
            return rms_norm(x.float(), self.weight.float() + self.offset, self.eps).to(x.dtype)
        return rms_norm(x, parameter(self, "weight"), self.eps, self.rounding)

    def extra_repr(self) -> str:
        offset = f", offset={self.offset}" if self.offset else ""
        return f"{_said(self.weight)}, eps={self.eps}, rounding={self.rounding!r}{offset}"


class LayerNorm(torch.nn.Module):
    """y = (x - mean(x)) / sqrt(variance(x) + eps) weight + bias over the last dimension of x (..., columns).

    weight and bias (columns), dtype of x: fp32, fp16 or bf16; several columns mean as many last dimensions. Errors are
    those of `Library.layernorm2d`.
    """

    bias: torch.nn.Parameter | None

    def __init__(self, columns: int | Sequence[int], eps: float = 1e-5, bias: bool = True, **where: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(_sizes(columns), **where))
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros(_sizes(columns), **where)) if bias else None)

    @classmethod
    def like(cls, module: torch.nn.Module) -> LayerNorm:
        """In place of a torch.nn.LayerNorm; shares its weight and bias."""
        if not isinstance(module, torch.nn.LayerNorm):
            raise ValueError(f"module: was {type(module).__name__}, must be a torch.nn.LayerNorm")
        columns = _shape(module)
        theirs: Any = module
        made = cls(columns, float(theirs.eps), False, device="meta")
        made.weight, made.bias = theirs.weight, theirs.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        if self.training and _is_compiling():
            return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return layer_norm(x, parameter(self, "weight"), parameter(self, "bias"), self.eps)

    def extra_repr(self) -> str:
        return f"{_said(self.weight)}, eps={self.eps}, bias={self.bias is not None}"
