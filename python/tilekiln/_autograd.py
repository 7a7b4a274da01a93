"""torch autograd through `tilekiln.attention`. The only module here that imports torch, and only torch's users do."""

from __future__ import annotations

from typing import Any

import torch

from . import operators
from ._native import ArgumentError

FORWARD_ONLY = ("out", "lse", "randval", "out_dtype", "return_lse", "min_seqlen_q", "instance")
"""Arguments of the forward that its backward does not take."""


def enabled() -> bool:
    """Is this thread recording what it computes?"""
    return bool(torch.is_grad_enabled())


def attention(q: Any, k: Any, v: Any, deterministic: bool | None, arguments: Any) -> Any:
    """As `operators.attention`, for inputs of which some require grad."""
    _check(arguments)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    rest = dict(arguments)
    bias, sink = rest.pop("bias", None), rest.pop("sink", None)
    return_lse = rest.pop("return_lse", False)
    out, lse = _Attention.apply(q, k, v, bias, sink, deterministic, rest)
    return (out, lse) if return_lse else out


def _check(arguments: Any) -> None:
    because = "when an input requires grad: call it under torch.no_grad(), or detach the inputs"
    for name in ("out", "lse"):
        if arguments.get(name) is not None:
            raise ArgumentError(f"{name}: was given, must be absent {because}; autograd needs results of its own")
    for name in ("q_descale", "k_descale", "v_descale"):
        if arguments.get(name) is not None:
            raise ArgumentError(f"{name}: was given, must be absent {because}; fp8 has no backward")
    if arguments.get("stream") is not None:
        raise ArgumentError(f"stream: was given, must be absent {because}; autograd does not know this stream")
    if arguments.get("min_seqlen_q"):
        raise ArgumentError(
            f"min_seqlen_q: was {arguments['min_seqlen_q']}, must be 0 {because}; the backward skips no sequence"
        )


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """Autograd hands over expanded gradients, such as that of sum(), whose last dimension is not contiguous."""
    return gradient if gradient.stride(-1) == 1 or gradient.shape[-1] < 2 else gradient.contiguous()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any, sink: Any, deterministic: bool, rest: Any) -> Any:
        plain = [None if array is None else array.detach() for array in (q, k, v, bias, sink)]
        out, lse = operators.attention(*plain[:3], bias=plain[3], sink=plain[4], return_lse=True, **rest)
        ctx.save_for_backward(q, k, v, bias, sink, out, lse)
        ctx.arguments = {name: value for name, value in rest.items() if name not in FORWARD_ONLY}
        ctx.arguments["deterministic"] = deterministic
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, _: Any) -> Any:
        inputs = *ctx.saved_tensors[:5], dout
        gradients = _first_derivative(ctx, dout.detach())
        if torch.is_grad_enabled():  # create_graph=True
            gradients = _NoSecondDerivative.apply(len(inputs), *inputs, *gradients)
        return *gradients, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError("tilekiln.attention has no forward-mode derivative, only the backward")


def _first_derivative(ctx: Any, dout: torch.Tensor) -> tuple[Any, ...]:
    q, k, v, bias, sink, out, lse = (None if array is None else array.detach() for array in ctx.saved_tensors)
    wants_bias, wants_sink = ctx.needs_input_grad[3:5]
    arguments = dict(ctx.arguments)
    if wants_bias:
        arguments["dbias"] = True
    if wants_sink:
        arguments["d_sink"] = True
    dq, dk, dv, *more = operators.attention_backward(_dense(dout), q, k, v, out, lse, bias=bias, sink=sink, **arguments)
    dbias = more.pop(0).sum_to_size(bias.shape) if wants_bias and bias is not None else None
    return dq, dk, dv, dbias, more.pop(0) if wants_sink else None


class _NoSecondDerivative(torch.autograd.Function):
    """Hands gradients on, and says why no gradient of them exists."""

    @staticmethod
    def forward(ctx: Any, inputs: int, *tensors: Any) -> Any:
        return tensors[inputs:]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(
            "tilekiln.attention has no second derivative: its gradients cannot be differentiated again. Use "
            "torch.nn.functional.scaled_dot_product_attention with the math backend for that"
        )
