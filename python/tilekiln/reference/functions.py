"""Attention with score and mask functions in float64: expressions that kernels are generated from, by NumPy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..api.functions.expression import Node
from . import masks

Array = NDArray[Any]
Float = NDArray[np.float64]

_UNARY = {"neg": np.negative, "abs": np.abs, "exp": np.exp, "tanh": np.tanh, "not": np.logical_not}
_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "and": np.logical_and, "or": np.logical_or,
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
            return np.float64(one.value) if one.kind == "float" else np.int64(one.value)
        given = [of(operand) for operand in one.operands]
        if one.op == "element":
            tensor = np.asarray(tensors[str(one.value)])
            tensor = tensor.astype(np.float64 if one.kind == "float" else np.int64)
            return tensor[tuple(np.clip(at, 0, size - 1) for at, size in zip(given, tensor.shape, strict=True))]
        if one.op == "where":
            return np.where(*given)
        if one.op == "float":
            return np.asarray(given[0], np.float64)
        return _UNARY[one.op](given[0]) if len(given) == 1 else _BINARY[one.op](*given)

    return of(node)


def visible(
    mask: Node | None, b: int, h: int, shape: tuple[int, int], tensors: Mapping[str, Any], **window: Any
) -> NDArray[np.bool_]:
    """The pairs (seqlen_q, seqlen_k) of a head that mask and window show."""
    seen = masks.visible(*shape, **window)
    if mask is not None:
        q, k = np.arange(shape[0])[:, None], np.arange(shape[1])[None]
        seen = seen & np.asarray(evaluate(mask, {"q": q, "k": k, "h": h, "b": b}, tensors), bool)
    return seen


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
