# SPDX-License-Identifier: MIT
"""Calls below the derivative of attention: the facade's forward, its backward, and the custom operators.

`derivatives` stands on these, `calls` on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from tilekiln._generated.tables import OPERATORS
from tilekiln.api._refusals import wrong_argument
from tilekiln.api.operators import _call

from . import batching, operators
from .watchers import transformed, untouched

if TYPE_CHECKING:
    from ._declared import FmhaBwdArguments


def run_forward(q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """(out, lse or None, randval or None) through the facade, with its arguments and return_randval."""
    if arguments.get("return_randval"):
        return operators.run("fmha_fwd", (q, k, v), arguments)
    arguments.pop("return_randval", None)
    made = _call("fmha_fwd", (q, k, v), arguments)
    return (*made, None) if arguments.get("return_lse") else (made, None, None)


def tensor_dims(rest: dict[str, Any], dims: dict[str, Any] | None) -> dict[str, Any]:
    """Of vmap's dims, which has something for each number too, those of tensors."""
    return {name: dims[name] if dims and isinstance(value, Tensor) else None for name, value in rest.items()}


NO_SECOND = (
    "tilekiln.attention has no second derivative: its gradients cannot be differentiated again. Use "
    "torch.nn.functional.scaled_dot_product_attention with the math backend for that"
)


class AttentionBackward(torch.autograd.Function):
    """(dq, dk, dv, dbias or None, d_sink or None) of (dout, q, k, v, out, lse, the facade's other arguments)."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return operators.run("fmha_bwd", inputs[:6], operators.facade_arguments(inputs[6]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(NO_SECOND)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        names = ("dout", "q", "k", "v", "out", "lse")
        given = {**dict(zip(names, inputs, strict=False)), **inputs[6]}
        dims = {**dict(zip(names, in_dims, strict=False)), **tensor_dims(inputs[6], in_dims[6])}

        def call(arguments: dict[str, Any]) -> Any:
            others = {name: value for name, value in arguments.items() if name not in names}
            return AttentionBackward.apply(*(arguments[name] for name in names), others)

        return batching.one_by_one(call, info.batch_size, given, dims)


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, dq: Tensor | None = None,
    dk: Tensor | None = None, dv: Tensor | None = None, dbias: bool = False, d_sink: bool = False,
    deterministic: bool | None = False, **arguments: Unpack[FmhaBwdArguments],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """(dq, dk, dv, dbias, d_sink) of `Library.fmha_bwd`; the last two are None unless asked for with True.

    dq, dk, dv: where to write, shapes and dtypes of q, k and v. dbias has the full shape (batch, nhead_q, seqlen_q,
    seqlen_k), group (nhead_q, total_q, max_seqlen_k), also when bias is broadcast. Give rng_state as the forward
    returned it. deterministic: None is what torch.are_deterministic_algorithms_enabled() says.
    """
    others: dict[str, Any] = dict(arguments)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if deterministic:
        others["deterministic"] = True
    if dbias:
        others["dbias"] = True
    if d_sink:
        others["d_sink"] = True
    arrays = (dout, q, k, v, out, lse)
    places = {name: place for name, place in (("dq", dq), ("dk", dk), ("dv", dv)) if place is not None}
    direct = untouched(*arrays, others.get("bias"), others.get("sink"), dq, dk, dv)
    records = torch.is_grad_enabled() and not places and any(one.requires_grad for one in arrays)
    if direct and not records:
        return operators.run("fmha_bwd", arrays, {**operators.facade_arguments(others), **places})
    if direct or transformed():
        made = AttentionBackward.apply(*arrays, others)
    else:
        made = traced("fmha_bwd", arrays, others)
    return (
        made[0] if dq is None else dq.copy_(made[0]),
        made[1] if dk is None else dk.copy_(made[1]),
        made[2] if dv is None else dv.copy_(made[2]),
        made[3] if dbias else None,
        made[4] if d_sink else None,
    )


def traced(name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    """All results, through the custom operator."""
    table = OPERATORS[name]
    given = {argument: value for argument, value in arguments.items() if value is not None}
    for pair, fields in table.pairs.items():
        if pair in given:
            given |= {field: value for (field, _), value in zip(fields, given.pop(pair), strict=True)}
    out = given.pop(table.twin, None) if table.twin else None
    known = [argument for argument, _ in operators.ARGUMENTS[name]]
    for argument in given:
        if argument not in known:
            raise wrong_argument(
                argument, f"was given, must be absent while the call is traced: tilekiln::{name} has no such argument"
            )
    if out is None:
        made = getattr(torch.ops.tilekiln, name)(*arrays, **given)
        return made if isinstance(made, tuple) else (made,)
    others = getattr(torch.ops.tilekiln, name + "_out")(out, *arrays, **given)
    return (out, *others) if isinstance(others, tuple) else (out,) if others is None else (out, others)
