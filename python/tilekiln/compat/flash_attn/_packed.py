# SPDX-License-Identifier: MIT
"""Attention over tensors that hold q, k and v, or k and v, whose gradient is then one tensor too, written in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...torch import calls


def split(packed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """q, k and v of (q, k, v), (q, kv) or (qkv,): views."""
    return packed if len(packed) == 3 else (*packed[:-1], *packed[-1].unbind(-3))


def apart(packed: Tensor, dimensions: int, parts: int) -> bool:
    """May views of q, k and v be taken out of it? Not where a gradient is recorded, which is one tensor's."""
    if type(packed) is not Tensor or packed.dim() != dimensions or packed.size(-3) != parts:
        return False
    return not (packed.requires_grad and torch.is_grad_enabled())


def forward(
    packed: tuple[Tensor, ...], arguments: dict[str, Any], deterministic: bool, return_lse: bool, return_randval: bool
) -> Any:
    """`calls.forward` of (q, k, v), (q, kv) or (qkv,)."""
    watched = torch.is_grad_enabled() and packed[-1].requires_grad
    if (
        len(packed) < 3
        and watched
        and calls.untouched(*packed)
        and not torch.is_autocast_enabled("cuda" if packed[0].is_cuda else "cpu")
    ):
        return _Attention.apply(arguments, deterministic, return_randval, *packed)
    return calls.forward(
        *split(packed), **arguments, deterministic=deterministic or None, return_lse=return_lse,
        return_randval=return_randval,
    )  # fmt: skip


class _Attention(torch.autograd.Function):
    """Of (q, kv) or (qkv,). The packed tensor is saved once, and the kernels write to slices of its gradient."""

    @staticmethod
    def forward(ctx: Any, arguments: dict[str, Any], deterministic: bool, return_randval: bool, *packed: Tensor) -> Any:
        made = calls.forward(*split(packed), **arguments, return_randval=return_randval)
        out, lse, randval, rng_state = made
        ctx.names = tuple(name for name, value in arguments.items() if isinstance(value, Tensor))
        ctx.plain = {name: value for name, value in arguments.items() if name not in ctx.names}
        ctx.deterministic, ctx.packed = deterministic or None, len(packed)
        ctx.mark_non_differentiable(*(x for x in (lse, randval, rng_state) if x is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, lse, rng_state, *packed, *(arguments[name] for name in ctx.names))
        return made

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, *_others: None) -> Any:
        if dout is None:
            return (None,) * len(ctx.needs_input_grad)
        out, lse, rng_state, *saved = ctx.saved_tensors
        packed = tuple(saved[: ctx.packed])
        rest = {**ctx.plain, **dict(zip(ctx.names, saved[ctx.packed :], strict=True)), "rng_state": rng_state}
        q, k, v = split(packed)
        tensors = dout, q, k, v, out, lse
        if torch.is_grad_enabled():  # create_graph=True: calls say why there is no second derivative
            dq, dk, dv, *_ = calls.backward(*tensors, **rest, deterministic=ctx.deterministic)
            gradients: tuple[Tensor, ...] = (
                (torch.stack((dq, dk, dv), -3),) if ctx.packed == 1 else (dq, torch.stack((dk, dv), -3))
            )
        else:
            # Rows past the last sequence are written by nobody.
            new = torch.zeros_like if "cu_seqlens_q" in ctx.names else torch.empty_like
            gradients = tuple(new(x) for x in packed)
            dq, dk, dv = split(gradients)
            calls.backward(*tensors, dq=dq, dk=dk, dv=dv, **rest, deterministic=ctx.deterministic)
        return None, None, None, *gradients
