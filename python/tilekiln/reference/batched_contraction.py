# SPDX-License-Identifier: MIT
"""Contractions in float64, and how far a kernel may be from them: by the bound of a product of as many additions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature
from .gemm import Result, gemm

Array = NDArray[Any]


def batched_contraction(a: Array, b: Array, batch_dims: int = 0, k_dims: int = 1, alpha: float = 1.0) -> Result:
    """out[g.., m.., n..] and the bound of its error."""
    batch, k = a.shape[:batch_dims], a.shape[a.ndim - k_dims :]
    m, n = a.shape[batch_dims : a.ndim - k_dims], b.shape[batch_dims : b.ndim - k_dims]
    count, summed = int(np.prod(batch)), int(np.prod(k))
    left, right = a.reshape(count, int(np.prod(m)), summed), b.reshape(count, int(np.prod(n)), summed)
    each = [gemm(one, other.T, alpha=alpha) for one, other in zip(left, right, strict=True)]
    shape = (*batch, *m, *n)
    value, bound = (np.array([part[i] for part in each]).reshape(shape) for i in (0, 1))
    return Result(value, bound)


def excess(out: Array, a: Array, b: Array, **how: Any) -> float:
    """The largest error over its bound; at most 1 is right."""
    right = batched_contraction(a, b, **how)
    if out.shape != right[0].shape:
        return float("inf")
    if not out.size:
        return 0.0
    with np.errstate(all="ignore"):
        wrong = np.abs(out.astype(np.float64) - right[0]) / right[1]
    same = (out == right[0]) | (np.isnan(out) & np.isnan(right[0]))
    return float(np.where(same, 0.0, np.where(np.isnan(wrong), np.inf, wrong)).max())


HOW = ("batch_dims", "k_dims", "alpha")


def answer(given: dict[str, Any], made: dict[str, Any]) -> float:
    """The error of a call as a share of its bound."""
    return excess(made["out"], given["a"], given["b"], **{name: given[name] for name in HOW if name in given})


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Up to two dimensions of each kind, some of length 1, in any order in memory whose last is contiguous."""
    dtype = signature["dtype"]
    g, m, n, k = ([random.whole(1, 9) for _ in range(random.whole(least, 2))] for least in (0, 0, 0, 1))
    for last in (k, n or m):
        last[-1:] = [max(length, 2) for length in last[-1:]]  # rows of one number that lie apart have no stride of 1
    a, b = random.normal(*g, *m, *k, dtype=dtype), random.normal(*g, *n, *k, dtype=dtype)
    given = {"a": a, "b": b, "batch_dims": len(g), "k_dims": len(k), "alpha": random.one((1.0, 1.0, 0.5))}
    return Call(given, {"out": random.blank(*g, *m, *n, dtype=dtype)})
