# SPDX-License-Identifier: MIT
"""Attention with score and mask functions in PyTorch: a custom operator, its derivative, and calls that it watches.

The operator has the text of both functions, so that what torch.compile and torch.export keep of a call needs nothing of
this process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError
from tilekiln.api.functions import call

from ..operators import DEVICES, check_tangents
from ..watchers import untouched

_WINDOW = (
    "float? softmax_scale=None, bool causal=False, int window_left=-1, int window_right=-1, "
    "str mask_origin='bottom_right', int sink_size=0, int num_threads=0, bool weighs=False"
)
_FUNCTIONS = "Tensor[] tensors, str[] names, str score, str mask"
_ARGUMENTS = ("softmax_scale", "causal", "window_left", "window_right", "mask_origin", "sink_size", "num_threads")
"""Those of the kernel. weighs, after them: the score is the weight of a value, in place of a softmax."""
_INTS = {torch.int32: "int32", torch.float32: "fp32"}


@functools.lru_cache(maxsize=1024)
def _pair(
    score: str, mask: str, names: tuple[str, ...], dtypes: tuple[torch.dtype, ...], weighs: bool = False
) -> call.Pair:
    words = {}
    for name, dtype in zip(names, dtypes, strict=True):
        if dtype not in _INTS:
            raise ArgumentError(f"{name}: dtype was {dtype}, must be torch.float32 or torch.int32")
        words[name] = _INTS[dtype]
    made_mask = call.MaskFunction(mask, words, shared=True) if mask else None
    kind = call.WeightFunction if weighs else call.ScoreFunction
    return call.pair_of(kind(score, words, shared=True) if score else None, made_mask)


def _weighs(values: Sequence[Any]) -> bool:
    return len(values) > len(_ARGUMENTS) and values[len(_ARGUMENTS)]


def _arguments(values: Sequence[Any]) -> dict[str, Any]:
    given: dict[str, Any] = dict(zip(_ARGUMENTS, values, strict=False))
    window = given.pop("window_left", -1), given.pop("window_right", -1)
    given["window"] = window
    return {name: value for name, value in given.items() if value is not None}


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [one if one.stride(-1) == 1 or one.shape[-1] < 2 else one.contiguous() for one in tensors]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], names: Sequence[str], score: str, mask: str, *rest: Any
) -> tuple[Tensor, Tensor]:
    check_tangents(q, k, v, *tensors)
    weighs = _weighs(rest)
    pair = _pair(score, mask, tuple(names), tuple(one.dtype for one in tensors), weighs)
    arguments = {**dict(zip(names, tensors, strict=True)), **_arguments(rest), "return_lse": not weighs}
    q, k, v = _contiguous(q, k, v)
    made = call.forward(pair.functions(q, v), q, k, v, arguments)
    return (made, q.new_zeros(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)) if weighs else made


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    batch, seqlen_q, nhead = q.shape[:3]
    return q.new_empty(batch, seqlen_q, nhead, v.shape[3]), q.new_empty(batch, nhead, seqlen_q, dtype=torch.float32)


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    tensors: Sequence[Tensor],
    names: Sequence[str],
    score: str,
    mask: str,
    wanted: Sequence[str],
    *rest: Any,
) -> list[Tensor]:
    pair = _pair(score, mask, tuple(names), tuple(one.dtype for one in tensors), _weighs(rest))
    given = dict(zip(names, tensors, strict=True))
    made = {name: torch.empty_like(given[name], memory_format=torch.contiguous_format) for name in wanted}
    arguments = {**given, **{f"gradient_{name}": one for name, one in made.items()}, **_arguments(rest)}
    arrays = *_contiguous(dout, q, k, v, out), lse
    of_inputs = call.backward(pair.functions(q, v, frozenset(wanted)), arrays, arguments)
    return [*of_inputs, *made.values()]


def _fake_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, tensors: Any, names: Any, score: str,
    mask: str, wanted: Sequence[str], *rest: Any, **_: Any,
) -> list[Tensor]:  # fmt: skip
    given = dict(zip(names, tensors, strict=True))
    return [one.new_empty(one.shape) for one in (q, k, v, *(given[name] for name in wanted))]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, tensors, names, score, mask, *rest = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, *tensors)
    ctx.functions, ctx.rest = (names, score, mask), rest
    learned = _pair(score, mask, tuple(names), tuple(one.dtype for one in tensors), _weighs(rest)).learned()
    ctx.wanted = [name for name, one in zip(names, tensors, strict=True) if one.requires_grad and name in learned]


def _differentiate(ctx: Any, dout: Tensor | None, _: Any) -> tuple[Any, ...]:
    none = (None,) * (len(ctx.needs_input_grad) - 4)  # trailing defaults are left out
    names = ctx.functions[0]
    if dout is None:
        return None, None, None, [None] * len(names), *none
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    names, score, mask = ctx.functions
    made = torch.ops.tilekiln.function_attention_bwd(
        dout, q, k, v, out, lse, tensors, names, score, mask, ctx.wanted, *ctx.rest
    )
    of_tensors = dict(zip(ctx.wanted, made[3:], strict=True))
    return *made[:3], [of_tensors.get(name) for name in names], *none


def _no_second(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "tilekiln.function_attention has no second derivative: its gradients cannot be differentiated again"
    )


def _no_vmap(info: Any, in_dims: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "tilekiln.function_attention has no rule of vmap: its functions know a batch by b; call it with a longer batch"
    )


def _register() -> None:
    forward = f"(Tensor q, Tensor k, Tensor v, {_FUNCTIONS}, {_WINDOW}) -> (Tensor, Tensor)"
    arrays = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse"
    backward = f"({arrays}, {_FUNCTIONS}, str[] wanted, {_WINDOW}) -> Tensor[]"
    for name, schema, run, fake, derivative, save in (
        ("tilekiln::function_attention", forward, _forward, _fake_forward, _differentiate, _save),
        ("tilekiln::function_attention_bwd", backward, _backward, _fake_backward, _no_second, None),
    ):
        torch.library.define(name, schema)
        for device in DEVICES:
            torch.library.impl(name, device)(run)
        torch.library.register_fake(name, fake)
        torch.library.register_autograd(name, derivative, setup_context=save)
        torch.library.register_vmap(name, _no_vmap)


_register()


def attention(
    q: Tensor, k: Tensor, v: Tensor, score: Any, mask: Any, tensors: Any, arguments: Mapping[str, Any]
) -> Any:
    """As `tilekiln.function_attention`, by the operator where autograd records the call or something transforms it."""
    if not needs_operator(q, k, v, *tensors.values()):
        return None
    return by_operator(q, k, v, dict(tensors), score, mask, arguments, isinstance(score, call.WeightFunction))


def needs_operator(*tensors: Any) -> bool:
    """Does autograd record a call with these, or something transform it?"""
    check_tangents(*tensors)
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    return learns or not untouched(*tensors)


def named_of(score: Any, mask: Any, tensors: Mapping[str, Any] | None) -> dict[str, Any]:
    named = dict(tensors or {})
    for one in (score, mask):
        if one is not None and not isinstance(one, str):
            named.update({name: call.read_bound(array) for name, array in one.bound.items()})
    return named


def by_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    named: dict[str, Any],
    score: Any,
    mask: Any,
    arguments: Mapping[str, Any],
    weighs: bool = False,
) -> Any:
    """out, or (out, lse), by torch.ops.tilekiln.function_attention."""
    given = dict(arguments)
    for name in ("out", "lse", "stream"):
        if given.pop(name, None) is not None:
            raise ArgumentError(
                f"{name}: was given, must be absent where an input requires grad or a call is traced or transformed"
            )
    lse = given.pop("return_lse", False)
    left, right = given.pop("window", (-1, -1))
    texts = ["" if one is None else one if isinstance(one, str) else one.source for one in (score, mask)]
    made = torch.ops.tilekiln.function_attention(
        q, k, v, [*named.values()], [*named], *texts, window_left=left, window_right=right, weighs=weighs, **given
    )
    return made if lse else made[0]


def _traced(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Any = None,
    mask: Any = None,
    weight: Any = None,
    tensors: Any = None,
    **arguments: Any,
) -> Any:
    """`tilekiln.function_attention` while torch.compile traces."""
    if weight is not None:
        call.check_weight(weight, score, arguments)
        score = weight
    return by_operator(q, k, v, named_of(score, mask, tensors), score, mask, arguments, weight is not None)


call.function_attention._torchdynamo_inline = _traced  # type: ignore[attr-defined]  # what is traced in place of it
