# SPDX-License-Identifier: MIT
"""Attention with score and mask functions in float64: expressions that kernels are generated from, by NumPy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..api.functions.expression import Node
from . import masks

Array = NDArray[Any]


def _wrapped(x: Any) -> Any:
    """The integer of 32 bits that x wraps to."""
    return (x + 2**31) % 2**32 - 2**31


Float = NDArray[np.float64]

_UNARY = {"neg": np.negative, "abs": np.abs, "exp": np.exp, "tanh": np.tanh, "not": np.logical_not}
_BINARY: dict[str, Any] = {
    "shl": lambda a, by: np.left_shift(a, np.clip(by, 0, 31)),
    "shr": lambda a, by: np.right_shift(a, np.clip(by, 0, 31)),
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "floordiv": np.floor_divide,
    "mod": np.mod, "lt": np.less, "le": np.less_equal, "eq": np.equal, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


@np.errstate(all="ignore")  # NaN and infinities give what IEEE arithmetic says
def evaluate(node: Node, names: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """A node for arrays of q, k, h, b and score, which broadcast: in float64, int64 or bool.

    An index of a tensor below 0 is 0, one past the last is the last.
    """
    known = dict[Node, Any]()

    def of(one: Node) -> Any:
        if one not in known:
            known[one] = make(one)
        return known[one]

    def make(one: Node) -> Any:
        if one.op == "name":
            return names[str(one.value)]
        if one.op == "constant":
            return {"float": np.float64, "int": np.int64, "truth": np.bool_}[one.kind](one.value)
        given = [of(operand) for operand in one.operands]
        if one.op == "element":
            tensor = np.asarray(tensors[str(one.value)])
            tensor = tensor.astype(np.float64 if one.kind == "float" else np.int64)
            return tensor[tuple(np.clip(at, 0, size - 1) for at, size in zip(given, tensor.shape, strict=True))]
        if one.op == "where":
            return np.where(*given)
        if one.op == "float":
            return np.asarray(given[0], np.float64)
        result = _UNARY[one.op](given[0]) if len(given) == 1 else _BINARY[one.op](*given)
        return _wrapped(result) if one.kind == "int" else result

    return of(node)


@np.errstate(all="ignore")
def pull_back(node: Node, names: Mapping[str, Any], tensors: Mapping[str, Any], dout: Float) -> tuple[Any, Any]:
    """(gradient of the score, of each fp32 tensor by name) where that of a node, broadcast to `dout`, is `dout`.

    Of equal operands min and max give theirs to the first; abs has none at 0. Where dout is 0, so are they.
    """
    score, of_tensors = np.zeros_like(dout), dict[str, Float]()

    def value(one: Node) -> Any:
        return evaluate(one, names, tensors)

    def visit(one: Node, g: Float) -> None:
        nonlocal score
        if one.kind != "float":
            return
        operands = one.operands
        if one.op in ("name", "element"):
            g = np.where(dout == 0, 0, g)
        if one.op == "name":
            score = score + g
        elif one.op == "element":
            shape = np.shape(tensors[str(one.value)])
            places = [np.clip(value(at), 0, size - 1) for at, size in zip(operands, shape, strict=True)]
            total = of_tensors.setdefault(str(one.value), np.zeros(shape))
            np.add.at(total, tuple(np.broadcast_to(at, g.shape) for at in places), g)
        elif one.op == "where":
            chosen = value(operands[0])
            visit(operands[1], np.where(chosen, g, 0))
            visit(operands[2], np.where(chosen, 0, g))
        elif one.op in ("min", "max"):
            a, b = map(value, operands)
            first = a <= b if one.op == "min" else a >= b
            visit(operands[0], np.where(first, g, 0))
            visit(operands[1], np.where(first, 0, g))
        elif one.op == "div":
            visit(operands[0], g / value(operands[1]))
            visit(operands[1], -g * value(one) / value(operands[1]))
        elif one.op == "mul":
            visit(operands[0], g * value(operands[1]))
            visit(operands[1], g * value(operands[0]))
        elif one.op in ("add", "sub"):
            visit(operands[0], g)
            visit(operands[1], g if one.op == "add" else -g)
        elif one.op in ("neg", "exp", "tanh", "abs"):
            by = {"neg": lambda: -1, "exp": lambda: value(one), "tanh": lambda: 1 - value(one) ** 2}
            visit(operands[0], g * by.get(one.op, lambda: np.sign(value(operands[0])))())

    visit(node, dout)
    return score, of_tensors


def visible(
    mask: Node | None, b: int, h: int, shape: tuple[int, int], tensors: Mapping[str, Any], **window: Any
) -> NDArray[np.bool_]:
    """The pairs (seqlen_q, seqlen_k) of a head that mask and window show."""
    seen = masks.visible(*shape, **window)
    if mask is not None:
        q, k = np.arange(shape[0])[:, None], np.arange(shape[1])[None]
        seen = seen & np.asarray(evaluate(mask, {"q": q, "k": k, "h": h, "b": b}, tensors), bool)
    return seen


def tiles(mask: Node, shape: tuple[int, int, int, int], tensors: Mapping[str, Any]) -> NDArray[np.int8]:
    """Blocks of 64 x 64 pairs of (batch, nhead, seqlen_q, seqlen_k) of which a mask shows 0 nothing, 1 a part, 2 all.

    (batch, nhead, blocks of queries, blocks of keys); 64 x seqlen_k pairs are looked at, at a time.
    """
    batch, nhead, seqlen_q, seqlen_k = shape
    starts = np.arange(0, seqlen_k, 64)
    made = np.zeros((batch, nhead, -(-seqlen_q // 64), len(starts)), np.int8)
    k = np.arange(seqlen_k)[None]
    for b, h, row in np.ndindex(made.shape[:3]):
        q = np.arange(row * 64, min(row * 64 + 64, seqlen_q))[:, None]
        seen = np.broadcast_to(evaluate(mask, {"q": q, "k": k, "h": h, "b": b}, tensors), (len(q), seqlen_k))
        if len(starts):
            whole, some = np.logical_and.reduceat(seen.all(0), starts), np.logical_or.reduceat(seen.any(0), starts)
            made[b, h, row] = np.where(whole, 2, some)
    return made


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Node | None = None,
    mask: Node | None = None,
    tensors: Mapping[str, Any] | None = None,
    softmax_scale: float | None = None,
    **window: Any,
) -> tuple[Float, Float]:
    """softmax(score(softmax_scale q k^T)) v: out (batch, seqlen_q, nhead_q, hdim_v), lse (batch, nhead_q, seqlen_q).

    A pair that the mask hides, or whose score is -inf, has weight 0; a row without another gives out = 0, lse = -inf.
    """
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.zeros((q.shape[0], q.shape[2], q.shape[1]))
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
        weight, total, lse[b, h], _ = weights(q, k, b, h, score, mask, tensors or {}, softmax_scale, **window)
        values = v[b, :, h * k.shape[2] // q.shape[2]]
        seen = weight != 0
        for d in range(v.shape[3]):
            out[b, :, h, d] = np.where(seen, weight * np.where(seen, values[:, d], 0), 0).sum(1)
        out[b, :, h] /= np.where(total == 0, 1, total)[:, None]
    return out, lse


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Node | None = None,
    mask: Node | None = None,
    tensors: Mapping[str, Any] | None = None,
    softmax_scale: float | None = None,
    **window: Any,
) -> tuple[Float, Float, Float, dict[str, Float]]:
    """The gradients of sum(dout out) of `attention`: dq, dk, dv, and those of the fp32 tensors that the score reads.

    Pairs of weight 0 take no part.
    """
    dout, q, k, v = (np.asarray(array, np.float64) for array in (dout, q, k, v))
    dq, dk, dv, of_tensors = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), dict[str, Float]()
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
        of = h * k.shape[2] // q.shape[2]
        weight, total, _, raw = weights(q, k, b, h, score, mask, tensors or {}, softmax_scale, **window)
        p = weight / np.where(total == 0, 1, total)[:, None]
        dp = dout[b, :, h] @ v[b, :, of].T
        dt = np.where(p == 0, 0, p * (dp - (p * dp).sum(1, keepdims=True)))
        ds = dt
        if score is not None:
            place = {"q": np.arange(len(raw))[:, None], "k": np.arange(raw.shape[1])[None], "h": h, "b": b}
            ds, parts = pull_back(score, {**place, "score": raw}, tensors or {}, dt)
            for name, part in parts.items():
                of_tensors[name] = of_tensors.get(name, 0) + part
        dq[b, :, h] = scale * ds @ k[b, :, of]
        dk[b, :, of] += scale * ds.T @ q[b, :, h]
        dv[b, :, of] += p.T @ dout[b, :, h]
    return dq, dk, dv, of_tensors


@np.errstate(all="ignore")
def weights(
    q: Float,
    k: Float,
    b: int,
    h: int,
    score: Node | None,
    mask: Node | None,
    tensors: Mapping[str, Any],
    softmax_scale: float | None,
    **window: Any,
) -> tuple[Float, Float, Float, Float]:
    """Of a head: weights before they are divided by their sum, the sum, lse and the scores before the function."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    rows, keys = q[b, :, h], k[b, :, h * k.shape[2] // q.shape[2]]
    raw = scale * (rows @ keys.T)
    place = {"q": np.arange(len(rows))[:, None], "k": np.arange(len(keys))[None], "h": h, "b": b, "score": raw}
    logits = (
        raw if score is None else np.broadcast_to(np.asarray(evaluate(score, place, tensors), np.float64), raw.shape)
    )
    logits = np.where(visible(mask, b, h, raw.shape, tensors, **window), logits, -np.inf)
    most = np.max(logits, axis=1, initial=-np.inf)
    weight = np.where(logits == -np.inf, 0.0, np.exp(logits - most[:, None]))
    total = weight.sum(1)
    return weight, total, np.where(total == 0, -np.inf, most + np.log(total)), raw
