# SPDX-License-Identifier: MIT
"""Rotary embedding and loss of Transformers' models in training, forward and backward an operator each."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..api.operators import _call
from .fused_layers import agree, angles_of, give_back
from .watchers import untouched

ASKED = "apply_rotary_pos_emb"


Angles = tuple[Tensor, Tensor, dict[str, Any]]
"""cos and sin as the operator takes them, and its further options."""


class _Rotated(torch.autograd.Function):
    """q and k (batch, heads, tokens, hdim) turned by angles, or the other way round."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, angles: Angles, conjugate: bool) -> Any:
        ctx.save_for_backward(*angles[:2])
        ctx.more, ctx.conjugate = angles[2], conjugate
        return _turned(q, angles, conjugate), _turned(k, angles, conjugate)

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> Any:
        given = (*ctx.saved_tensors, ctx.more), not ctx.conjugate
        if torch.is_grad_enabled():  # it is differentiated again
            return *_rotated(dq, dk, *given), None, None
        return _turned(dq, *given), _turned(dk, *given), None, None


_rotated: Any = super(torch.autograd.Function, _Rotated).apply
"""Without functorch's binding of arguments, for tensors that nothing watches."""


def _turned(x: Tensor, angles: Angles, conjugate: bool) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    cos, sin, more = angles
    turned: Tensor = _call("rotary", (x.transpose(1, 2), cos, sin), {"conjugate": conjugate, **more})
    return turned.transpose(1, 2)


class _Made(NamedTuple):
    """Angles of cos and sin, as they were."""

    cos: Any
    sin: Any
    key: Any
    angles: Angles


_last: _Made | None = None


def _angles(cos: Tensor, sin: Tensor, like: Tensor) -> Angles:
    """Of (1 or batch, tokens, hdim), each angle twice, for (batch, heads, tokens, hdim): made once for all layers."""
    global _last
    if cos.is_inference() or sin.is_inference():  # they have no versions
        return angles_of(cos, sin, like.transpose(1, 2))
    last, key = _last, (cos._version, sin._version, like.dtype, like.shape[0])
    if last is None or last.cos() is not cos or last.sin() is not sin or last.key != key:
        _last = last = _Made(weakref.ref(cos), weakref.ref(sin), key, angles_of(cos, sin, like.transpose(1, 2)))
    return last.angles


def _rotary(theirs: Any) -> Any:
    """A function that a model calls for its queries and keys in place of its own."""

    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> Any:
        plain = not more and not named and cos.dim() == 3 and cos.shape[-1] == q.shape[-1] and not cos.requires_grad
        if not plain or torch.compiler.is_compiling() or not untouched(q, k, cos, sin) or q.dtype != k.dtype:
            return theirs(q, k, cos, sin, *more, **named)
        return _rotated(q, k, _angles(cos, sin, q), False)

    return turned


@functools.cache
def _forward(kind: Any) -> Any:
    """The forward of a class of attention that asks for our rotary; ValueError where it asks for none."""
    forward: Any = inspect.unwrap(kind.forward)
    if getattr(forward, "__closure__", True) is not None or ASKED not in forward.__code__.co_names:
        raise ValueError(f"does not ask {ASKED}")
    own = {**forward.__globals__, ASKED: _rotary(forward.__globals__[ASKED])}
    copied = types.FunctionType(forward.__code__, own, forward.__name__, forward.__defaults__)
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied


def attention_forward(self: Any, *args: Any, **named: Any) -> Any:
    kind: Any = type(self)
    if torch.compiler.is_compiling():  # which finds globals by the name of their module, where they are the class's
        return kind.forward(self, *args, **named)
    return _forward(kind)(self, *args, **named)


def fuse_rotary(module: Any, undo: list[Any]) -> str:
    """Of an attention module; ValueError says why not, and nothing is changed."""
    kind: Any = type(module)
    forward = _forward(kind)
    theirs, ours = (one.__globals__[ASKED] for one in (inspect.unwrap(kind.forward), forward))
    weight = module.o_proj.weight
    random = torch.Generator("cpu").manual_seed(0)
    q, angle = (torch.randn(*shape, generator=random, device="cpu").to(weight.device)
                for shape in ((2, 2, 3, module.head_dim), (2, 3, module.head_dim // 2)))  # fmt: skip
    q, angle = q.to(weight.dtype), torch.cat([angle, angle], -1)
    cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
    with torch.no_grad():
        for expected, made in zip(theirs(q, q, cos, sin), ours(q, q, cos, sin), strict=True):
            agree(expected, made)
    undo.append(functools.partial(give_back, module))
    module.forward = functools.partial(attention_forward, module)
    return "rotary, forward and backward"


class _Losses(torch.autograd.Function):
    """The loss of each row of logits, fp32, 0 where its label is ignore_index."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        losses, lse = _call("cross_entropy", (logits, labels), {"ignore_index": ignore_index, "return_lse": True})
        ctx.save_for_backward(logits, labels, lse)
        ctx.ignore_index = ignore_index
        return losses  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> Any:
        given = dloss.float().contiguous(), *ctx.saved_tensors
        return _call("cross_entropy_bwd", given, {"ignore_index": ctx.ignore_index}), None, None


def causal_loss(
    theirs: Any, logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100,
    shift_labels: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """Transformers' ForCausalLMLoss, `theirs`, without logits of fp32."""
    rows = logits.reshape(-1, logits.shape[-1])
    if more or torch.compiler.is_compiling() or not untouched(rows) or rows.shape[1] != vocab_size:
        return theirs(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **more)
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    shift_labels = shift_labels.reshape(-1).to(rows.device)
    loss = _Losses.apply(rows, shift_labels, ignore_index).sum()
    if num_items_in_batch is None:
        return loss / (shift_labels != ignore_index).sum()
    return loss / (num_items_in_batch.to(loss.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch)


def learning_forward(self: Any, *args: Any, **named: Any) -> Any:
    """The forward of a model; `positions_unsaid` while one is compiled whose caller says no positions."""
    from ..transformers import positions_unsaid as unsaid

    if args or named.get("position_ids") is not None or not torch.compiler.is_compiling():
        return type(self).forward(self, *args, **named)
    unsaid[0] = True
    try:
        return type(self).forward(self, *args, **named)
    finally:
        unsaid[0] = False


def fuse_loss(model: Any, undo: list[Any]) -> str:
    """Of a model whose loss is that of a causal language model; ValueError says why not."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    if getattr(model, "loss_function", None) is not ForCausalLMLoss:
        raise ValueError("loss: is another than ForCausalLMLoss")
    had = "_loss_function" in model.__dict__
    undo.append(functools.partial(model.__dict__.__setitem__, "_loss_function", ForCausalLMLoss) if had
                else functools.partial(model.__dict__.pop, "_loss_function"))  # fmt: skip
    model.loss_function = functools.partial(causal_loss, ForCausalLMLoss)
    if "forward" not in model.__dict__:
        undo.append(functools.partial(model.__dict__.pop, "forward", None))
        bound = functools.partial(learning_forward, model)
        bound.__wrapped__ = type(model).forward.__get__(model)  # type: ignore[attr-defined]  # of inspect.signature
        model.forward = bound
    return "cross_entropy, forward and backward"
