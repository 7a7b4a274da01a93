# SPDX-License-Identifier: MIT
"""Calls of the kernels with torch tensors. Compatibility modules stand on these.

Arguments have the names, shapes, dtypes and errors of the Library functions; rng_state, int64 (2,) = (seed, offset), is
in place of rng. A call that nothing watches (no grad, no transform, no tracing) goes straight to the facade; one with
grad goes there through autograd; a traced one (torch.compile, torch.export, fake tensors) becomes the custom operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from tilekiln._generated.tables import OPERATORS
from tilekiln.api.operators import _call

from . import derivatives, lower_calls, operators
from .lower_calls import backward, traced
from .random_bytes import random_bytes
from .watchers import transformed, untouched

if TYPE_CHECKING:
    from ._declared import FmhaFwdArguments

__all__ = [
    "appendkv", "as_operator", "attention", "autocast", "backend", "backward", "batch_prefill", "draw_rng_state",
    "forward", "pagedkv", "splitkv", "stores_bytes", "untouched", "watched", "without_grad",
]  # fmt: skip

recorded_attention: Callable[..., tuple[Tensor, Tensor] | None] | None = None
"""`recorded.attention`, which that module puts here: it stands above this one."""


def backend(tensor: Tensor) -> str:
    """The backend, by the name that targets have for it, whose kernels read a tensor's device."""
    if tensor.is_cpu:
        return "cpu"
    return "hip" if tensor.is_cuda and torch.version.hip else tensor.device.type


def draw_rng_state() -> Tensor:
    """int64 (2,): a seed and an offset from torch's default generator of the CPU."""
    return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device="cpu")


def autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """As torch's own attention is cast: floating tensors other than fp64, to the dtype of their device's autocast."""
    dtype = torch.get_autocast_dtype(next(tensor.device.type for tensor in tensors if tensor is not None))
    return tuple(
        tensor.to(dtype) if tensor is not None and tensor.dtype in operators.FLOATS else tensor for tensor in tensors
    )


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = True, return_randval: bool = False,
    deterministic: bool | None = None, **arguments: Unpack[FmhaFwdArguments],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """(out, lse, randval, rng_state) of `Library.fmha_fwd`, differentiable in q, k, v, bias and sink.

    lse is None without return_lse, and never differentiable; randval, uint8, is None without return_randval; kernels of
    GPUs store none, so it is drawn apart there. rng_state:
    with dropout_p and None a new one is drawn from torch's default generator; it is returned (None without dropout_p).
    deterministic is for the backward; None is what torch.are_deterministic_algorithms_enabled() says. Under autocast
    q, k, v and bias are cast. out is for calls that record no gradient.
    """
    others: dict[str, Any] = dict(arguments)
    if torch.is_autocast_enabled("cuda" if q.is_cuda else "cpu"):
        q, k, v, bias = autocast(q, k, v, others.get("bias"))
        if bias is not None:
            others["bias"] = bias
    rng_state = others.pop("rng_state", None)
    if others.get("dropout_p"):
        rng_state = others["rng_state"] = draw_rng_state() if rng_state is None else rng_state
    else:
        rng_state = None
    apart = return_randval and not stores_bytes(q) and rng_state is not None and not torch.compiler.is_compiling()
    if return_randval and not apart:
        others["return_randval"] = True
    bits = random_bytes(q, k, rng_state, others) if apart and rng_state is not None else None
    if (torch.is_grad_enabled() and _requires_grad(q, k, v, others)) or not untouched(
        q, k, v, others.get("bias"), others.get("sink")
    ):
        out, lse, randval = watched(q, k, v, others, deterministic, return_lse)
        return out, lse, bits if apart else randval, rng_state
    if return_lse:
        others["return_lse"] = True
    out, lse, randval = lower_calls.run_forward(q, k, v, operators.facade_arguments(others))
    return out, lse, bits if apart else randval, rng_state


def stores_bytes(q: Tensor) -> bool:
    """Do the kernels of a tensor's device store dropout's random bytes?"""
    return q.is_cpu


def attention(q: Tensor, k: Tensor, v: Tensor, deterministic: bool | None, arguments: Any) -> Any:
    """As `tilekiln.attention`, for inputs of which some require grad."""
    others = dict(arguments)
    return_lse = others.pop("return_lse", False)
    out, lse, _ = watched(q, k, v, others, deterministic, return_lse)
    return (out, lse) if return_lse else out


def _requires_grad(q: Tensor, k: Tensor, v: Tensor, others: dict[str, Any]) -> bool:
    if q.requires_grad or k.requires_grad or v.requires_grad:
        return True
    return any(getattr(others.get(name), "requires_grad", False) for name in ("bias", "sink", "alibi_slopes"))


def watched(
    q: Tensor, k: Tensor, v: Tensor, others: dict[str, Any], deterministic: bool | None, return_lse: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(out, lse or None, randval or None) of a call that autograd records, functorch transforms or torch traces."""
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    bias, sink = others.get("bias"), others.get("sink")
    direct = untouched(q, k, v, bias, sink)
    records = torch.is_grad_enabled() and _requires_grad(q, k, v, others)
    if records and direct and sink is None and (bias is None or not bias.requires_grad):
        rest = {name: value for name, value in others.items() if name != "bias"} if "bias" in others else others
        made = recorded_attention and recorded_attention(q, k, v, bias, deterministic, rest)
        if made is not None:
            return made[0], made[1] if return_lse else None, None
    if records:
        derivatives.check_differentiable(others)
        # torch.compile does not trace this, which asks the disk: there it is asked where the derivative is set up.
        if q.device.type != "cpu" and not torch.compiler.is_compiling():
            bias = others.get("bias")
            derivatives.check_backward(
                q, v, {**others, "deterministic": deterministic}, bias is not None and bias.requires_grad
            )
    if direct or transformed():
        attention = derivatives.Attention if direct else derivatives.TransformedAttention
        rest = {name: value for name, value in others.items() if name not in ("bias", "sink")}
        out, lse, randval = attention.apply(q, k, v, bias, sink, deterministic, rest)
    else:
        arguments = {**others, "return_lse": return_lse or records, "deterministic": deterministic}
        out, lse, randval = traced("fmha_fwd", (q, k, v), arguments)
    return out, lse if return_lse else None, randval if others.get("return_randval") else None


def splitkv(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Any:
    """out, or (out, lse) with return_lse, of `Library.fmha_fwd_splitkv`; no result has a gradient."""
    return without_grad("fmha_fwd_splitkv", (q, k, v), arguments)


def pagedkv(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
    """out of `Library.fmha_fwd_pagedkv`; it has no gradient."""
    made: Tensor = without_grad("fmha_fwd_pagedkv", (q, k, v), arguments)
    return made


def appendkv(q: Tensor | None, k: Tensor, v: Tensor, knew: Tensor, vnew: Tensor, **arguments: Any) -> Any:
    """out, (out, lse) with return_lse, or None, of `Library.fmha_fwd_appendkv`; no result has a gradient.

    Writes k and v, and rotates q in place when rotary_cos and rotary_sin are given.
    """
    return without_grad("fmha_fwd_appendkv", (q, k, v, knew, vnew), arguments)


def batch_prefill(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Any:
    """out, or (out, lse) with return_lse, of `Library.fmha_batch_prefill`; no result has a gradient.

    With dropout_p and no rng_state, one is drawn; `draw_rng_state` gives one to keep.
    """
    if arguments.get("dropout_p") and arguments.get("rng_state") is None:
        arguments["rng_state"] = draw_rng_state()
    return without_grad("fmha_batch_prefill", (q, k, v), arguments)


def without_grad(name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    """The results of any operator as `Library.<name>` gives them; none has a gradient."""
    if untouched(*arrays):
        return _call(name, arrays, operators.facade_arguments(arguments))
    return as_operator(name, arrays, arguments)


def as_operator(name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    """The results of `Library.<name>`, whose arguments these are, by `torch.ops.tilekiln.<name>`."""
    table = OPERATORS[name]
    arguments = dict(arguments)
    for argument, state in table.states.items():
        if arguments.get(argument) is not None:
            numbers = map(int, arguments.pop(argument))  # of 64 bits without a sign, whose bits int64 has
            signed = [one - 2**64 if one >= 2**63 else one for one in numbers]
            arguments[state] = torch.tensor(signed, dtype=torch.int64, device="cpu")
    if name == "fmha_fwd" and transformed():  # which has the derivative that torch.func.grad wants
        return_lse = arguments.pop("return_lse", False)
        q, k, v = arrays
        out, lse, _ = watched(q, k, v, arguments, None, return_lse)
        return (out, lse) if return_lse else out
    asked = table.asked({**dict(zip(table.arrays, arrays, strict=True)), **arguments})
    places = {
        one.name: arguments.pop(one.name)
        for one in table.results
        if one.name != table.twin and isinstance(arguments.get(one.name), Tensor)
    }
    asks = {one.asked_by: True for one in table.results if one.name in places and one.asked_by}
    if not table.results:
        traced(name, arrays, arguments)
        return None
    made = []
    for one, wanted, result in zip(table.results, asked, traced(name, arrays, arguments | asks), strict=True):
        place = places.get(one.name)
        copied = result if place is None else _copied(place, result)
        if wanted:
            made.append(copied)
    return tuple(made) if len(made) > 1 else made[0] if made else None


def _copied(place: Tensor, result: Tensor) -> Tensor:
    """A result in a place of the caller's, which need not have room for rows behind the last sequence, or has more."""
    if place.shape == result.shape:
        return place.copy_(result)
    both = tuple(slice(min(lengths)) for lengths in zip(place.shape, result.shape, strict=True))
    place[both].copy_(result[both])
    return place
