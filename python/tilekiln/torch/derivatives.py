# SPDX-License-Identifier: MIT
"""Derivatives: that of attention, one formula for eager mode, functorch and the custom operator, and those declared.

Eager calls go through `Attention`, an autograd.Function that calls the facade (4 times faster than an operator with
registered autograd) and that functorch can transform; traced ones through the operator's registered derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tilekiln._core import outside
from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln._generated.tables import OPERATORS
from tilekiln.api._refusals import wrong_argument
from tilekiln.api.launcher import BackwardLauncher

from . import batching, convolution, lower_calls, operators
from .lower_calls import NO_SECOND, tensor_dims

KEEPS_ORDER = "keeps_order"
"""With the arguments of `Attention`: results lie in memory as the arrays they belong to, heads inside tokens or not."""
_FORWARD, _BACKWARD = ({name for name, _ in operators.ARGUMENTS[operator]} for operator in ("fmha_fwd", "fmha_bwd"))
FORWARD_ONLY = {"instance", *(one.name for one in OPERATORS["fmha_fwd"].results), *(_FORWARD - _BACKWARD)}
"""Arguments of the forward that its backward does not take."""
INPUTS = ("q", "k", "v", "bias", "sink")
"""Arrays with a gradient."""


def record(q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any], keeps_order: bool) -> Tensor:
    """out of an eager call in batch mode without lengths, recorded by autograd."""
    if keeps_order:
        arguments[KEEPS_ORDER] = True
    made: Tensor = Attention.apply(q, k, v, None, None, torch.are_deterministic_algorithms_enabled(), arguments)[0]
    return made


def check_differentiable(arguments: dict[str, Any]) -> None:
    """Raise ArgumentError, naming it, for an argument of the forward that goes with no backward."""
    because = "when an input requires grad: call it under torch.no_grad(), or detach the inputs"
    for name, value in arguments.items():
        if name not in INPUTS and getattr(value, "requires_grad", False):
            raise wrong_argument(name, "required grad, must not: attention has no gradient of it")
    for name in ("out", "lse"):
        if arguments.get(name) is not None:
            raise wrong_argument(name, f"was given, must be absent {because}; autograd needs results of its own")
    for name in ("q_descale", "k_descale", "v_descale"):
        if arguments.get(name) is not None:
            raise wrong_argument(name, f"was given, must be absent {because}; fp8 has no backward")
    if arguments.get("stream") is not None:
        raise wrong_argument("stream", f"was given, must be absent {because}; autograd does not know this stream")
    if arguments.get("min_seqlen_q"):
        raise wrong_argument(
            "min_seqlen_q", f"was {arguments['min_seqlen_q']}, must be 0 {because}; the backward skips no sequence"
        )


@functools.cache
def _backward(**problem: Any) -> BackwardLauncher:
    return BackwardLauncher(**problem)


def check_backward(q: Tensor, v: Tensor, arguments: Mapping[str, Any], wants_bias: bool) -> None:
    """NoKernelError at the forward where the backward of a call on a device has no kernel. Asked once a signature.

    On the host every library that has the forward for training has its backward.
    """
    if q.device.type != "cuda" or q.dtype not in operators.NAMES:
        return
    given = {name: value for name, value in arguments.items() if value is not None}
    bias = "elementwise" if "bias" in given else "alibi" if "alibi_slopes" in given else "none"
    window = given.get("window", (given.get("window_left", -1), given.get("window_right", -1)))
    masked = bool(given.get("causal")) or tuple(window) != (-1, -1)
    try:
        _backward(
            dtype=operators.NAMES[q.dtype],
            hdim_q=int(q.shape[-1]),  # of a traced call with sizes that vary, a number from here on
            hdim_v=int(v.shape[-1]),
            nhead_q=1,
            batch=1,
            seqlen_q=1,
            seqlen_k=1,
            mode="batch" if q.dim() == 4 else "group",
            mask="window" if masked else "none",
            bias=bias,
            dbias=wants_bias and bias == "elementwise",
            dropout="none" if not given.get("dropout_p") else "store" if given.get("return_randval") else "apply",
            softcap=bool(given.get("softcap")),
            sink="sink" in given or (given.get("sink_size", 0) > 0 and window[0] >= 0),
            deterministic=bool(given.get("deterministic")),
            device=(10 if torch.version.hip else 2, q.device.index or 0),  # DLPack's kDLROCM, kDLCUDA
        )
    except NoKernelError as error:
        raise NoKernelError(
            f"{error}\n  an input requires grad: without a gradient call it under torch.no_grad()"
        ) from None


def _save(ctx: Any, inputs: tuple[Any, ...], out: Tensor, lse: Tensor, rest: dict[str, Any]) -> None:
    ctx.set_materialize_grads(False)
    backward = {name: value for name, value in rest.items() if name not in FORWARD_ONLY and value is not None}
    ctx.arrays = tuple(name for name, value in backward.items() if isinstance(value, Tensor))
    ctx.plain = {name: value for name, value in backward.items() if name not in ctx.arrays}
    ctx.save_for_backward(*inputs, out, lse, *(backward[name] for name in ctx.arrays))


def _gradients(ctx: Any, dout: Tensor | None, wants_bias: bool, wants_sink: bool) -> tuple[Any, ...]:
    """Of q, k, v, bias and sink."""
    if dout is None:
        return (None,) * len(INPUTS)
    q, k, v, bias, sink, out, lse, *arrays = ctx.saved_tensors
    rest = dict(zip(ctx.arrays, arrays, strict=True)) | ctx.plain
    if rest.pop(KEEPS_ORDER, False):
        rest["dq"], rest["dk"], rest["dv"] = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    wants_bias, wants_sink = wants_bias and bias is not None, wants_sink and sink is not None
    dq, dk, dv, dbias, d_sink = lower_calls.backward(
        dout, q, k, v, out, lse, bias=bias, sink=sink, dbias=wants_bias, d_sink=wants_sink, **rest
    )
    return dq, dk, dv, dbias.sum_to_size(bias.shape) if dbias is not None else None, d_sink


class Attention(torch.autograd.Function):
    """(out, lse, randval or None) of (q, k, v, bias, sink, deterministic, the facade's other arguments)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = TransformedAttention.forward(*inputs)
        TransformedAttention.setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, dout: Any, *_: Any) -> Any:
        return *_gradients(ctx, dout, *ctx.needs_input_grad[3:5]), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError("tilekiln has no forward-mode derivative of attention, only the backward")


class TransformedAttention(Attention):
    """The same as functorch needs it, which costs autograd 50 us a call more."""

    @staticmethod
    def forward(q: Any, k: Any, v: Any, bias: Any, sink: Any, deterministic: bool, rest: dict[str, Any]) -> Any:
        arguments = operators.facade_arguments({**rest, "bias": bias, "sink": sink, "return_lse": True})
        if arguments.pop(KEEPS_ORDER, False):
            arguments["out"] = torch.empty_like(q)
        return lower_calls.run_forward(q, k, v, arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *arrays, deterministic, rest = inputs
        out, lse, randval = output
        ctx.mark_non_differentiable(*(one for one in (lse, randval) if one is not None))
        _save(ctx, tuple(arrays), out, lse, {**rest, "deterministic": deterministic})

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        names = (*INPUTS, "deterministic", "rest")
        given = dict(zip(names, inputs, strict=True))
        dims = dict(zip(names, in_dims, strict=True))
        rest, deterministic = given.pop("rest"), given.pop("deterministic")
        rest_dims = tensor_dims(rest, dims.pop("rest"))
        del dims["deterministic"]

        def call(arguments: dict[str, Any]) -> Any:
            others = {name: value for name, value in arguments.items() if name not in INPUTS}
            return TransformedAttention.apply(*(arguments[name] for name in INPUTS), deterministic, others)

        return batching.folded("fmha_fwd", call, info.batch_size, {**given, **rest}, {**dims, **rest_dims})


def _register() -> None:
    arguments = [name for name, _ in operators.ARGUMENTS["fmha_fwd"]]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given = dict(zip(arguments, inputs, strict=True))
        check_differentiable(given)
        check_backward(given["q"], given["v"], given, given["bias"] is not None and given["bias"].requires_grad)
        if not given["return_lse"]:
            raise ArgumentError(
                "return_lse: was False, must be True when an input requires grad: the backward reads lse"
            )
        out, lse, randval = output
        ctx.mark_non_differentiable(lse, randval)
        arrays = tuple(given.pop(name) for name in INPUTS)
        _save(ctx, arrays, out, lse, given)

    def differentiate(ctx: Any, dout: Any, *_: Any) -> Any:
        needs = dict(zip(arguments, ctx.needs_input_grad, strict=False))  # trailing defaults are left out
        wants = needs.get("bias", False), needs.get("sink", False)
        gradients = dict(zip(INPUTS, _gradients(ctx, dout, *wants), strict=True))
        return tuple(gradients.get(name) for name in arguments)

    def no_second(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(NO_SECOND)

    torch.library.register_autograd("tilekiln::fmha_fwd", differentiate, setup_context=save)
    torch.library.register_autograd("tilekiln::fmha_bwd", no_second)
    for name in OPERATORS:
        define(name)


def _register_named(name: str) -> None:
    """The derivative of an operator whose `backward` names things as this does.

    It takes the arguments of the operator and `d<result>` for its results, and gives `d<argument>`: always, or asked by
    a flag.
    """
    table = OPERATORS[name]
    back = OPERATORS[table.backward]
    arguments = [one for one, _ in operators.ARGUMENTS[name]]
    taken = {one for one, _ in operators.ARGUMENTS[table.backward]} - {"instance", "stream"}

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given = {one: value for one, value in zip(arguments, inputs, strict=True) if value is not None and one in taken}
        ctx.set_materialize_grads(False)
        ctx.like = output[0].shape, output[0].dtype
        ctx.arrays = [one for one, value in given.items() if isinstance(value, Tensor)]
        ctx.plain = {one: value for one, value in given.items() if one not in ctx.arrays}
        ctx.save_for_backward(*(given[one] for one in ctx.arrays))

    def differentiate(ctx: Any, *gradients: Any) -> Any:
        given = dict(zip(ctx.arrays, ctx.saved_tensors, strict=True)) | ctx.plain
        of = {f"d{one.name}": dy for one, dy in zip(table.results, gradients, strict=True) if dy is not None}
        if not of:
            return (None,) * len(arguments)
        of = {one: dy if dy.stride(-1) == 1 else dy.contiguous() for one, dy in of.items()}
        if f"d{table.results[0].name}" not in of:
            of[f"d{table.results[0].name}"] = given[table.first].new_zeros(ctx.like[0], dtype=ctx.like[1])
        needs = dict(zip(arguments, ctx.needs_input_grad, strict=False))
        asks = {one.asked_by: needs.get(one.name[1:], False) for one in back.results if one.asked_by}
        made = getattr(torch.ops.tilekiln, table.backward)(**given, **of, **asks)
        named = {one.name[1:]: dx for one, dx in zip(back.results, made, strict=True)}
        return tuple(named.get(one) if needs.get(one) else None for one in arguments)

    def no_second(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(f"tilekiln has no second derivative of {name}, only the first")

    torch.library.register_autograd(f"tilekiln::{name}", differentiate, setup_context=save)
    torch.library.register_autograd(f"tilekiln::{table.backward}", no_second)


def define(name: str) -> None:
    """Registers the derivative of an operator other than attention; without one, a backward that says so."""
    have = [one for one, table in OPERATORS.items() if table.backward or one == "conv_fwd"]
    if name == "conv_fwd":
        convolution.register()
    elif name in have and name != "fmha_fwd":
        _register_named(name)
    backward = {OPERATORS[one].backward for one in have} | set(convolution.BACKWARD)
    if name in have or name in backward or OPERATORS[name].written:
        return

    def no_backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(f"tilekiln::{name} has no backward; operators that have one: {', '.join(have)}")

    torch.library.register_autograd(f"tilekiln::{name}", no_backward)


_register()
outside.followers.append(define)
