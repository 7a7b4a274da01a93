# SPDX-License-Identifier: MIT
"""Attention over two parts of the keys, merged in float64, and how far a kernel may be from it.

    lse = log(exp(lse_a) + exp(lse_b))    out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b

A kernel computes in fp32, u = 2^-24. The difference d of both lse is rounded once, at u |d|, which is the relative
error of the smaller weight; exponentials, their sum, its reciprocal and products add 8 u. lse is the larger one and a
logarithm below 1, rounded. With out, the unit roundoff of the dtype, and tiny, what may be lost near 0:

    |out - reference| <= (out + (|d| + 8) u) (exp(lse_a - lse) |out_a| + exp(lse_b - lse) |out_b|) + tiny
    |lse - reference| <= 4 u max(1, |lse|)
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature
from .softmax import FP32, OUT

Float = NDArray[np.float64]


@np.errstate(all="ignore")
def weights(lse_a: Any, lse_b: Any) -> tuple[Float, Float, Float]:
    """Weights of both parts, and lse; of -inf in both they are 0, 0 and -inf."""
    a, b = np.asarray(lse_a, np.float64), np.asarray(lse_b, np.float64)
    most = np.maximum(a, b)
    of_a, of_b = (np.where(one == -np.inf, 0.0, np.exp(one - most)) for one in (a, b))
    total = of_a + of_b
    lse = np.where(total == 0, -np.inf, most + np.log(total))
    divisor = np.where(total == 0, 1, total)
    return of_a / divisor, of_b / divisor, lse


@np.errstate(all="ignore")
def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Float, Float]:
    """out (rows, columns) and lse (rows). A part whose lse is -inf takes no part, whatever its out holds."""
    of_a, of_b, lse = weights(lse_a, lse_b)
    parts = [
        np.where((np.asarray(its) == -np.inf)[:, None], 0, weight[:, None] * np.asarray(out, np.float64))
        for out, weight, its in ((out_a, of_a, lse_a), (out_b, of_b, lse_b))
    ]
    return parts[0] + parts[1], lse


@np.errstate(all="ignore")
def excess(out: Any, lse: Any, out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is NaN and the other is not."""
    right, right_lse = merge(out_a, lse_a, out_b, lse_b)
    unit, tiny = OUT[out.dtype.name]
    got = out.astype(np.float64)
    if not (np.isnan(got) == np.isnan(right)).all():
        return float("inf")
    size, _ = merge(np.abs(out_a), lse_a, np.abs(out_b), lse_b)
    far = np.abs(np.float64(lse_a) - np.float64(lse_b))
    far = np.where(np.isfinite(far), np.minimum(far, 100), 0)[:, None]
    good = np.isfinite(right)
    bound = ((unit + (far + 8) * FP32) * size + tiny)[good]
    worst = float((np.abs(got - right)[good] / bound).max(initial=0.0))
    if lse is None:
        return worst
    finite = np.isfinite(right_lse)
    if not np.array_equal(lse[~finite], right_lse[~finite].astype(np.float32), equal_nan=True):
        return float("inf")
    apart = np.abs(lse[finite] - right_lse[finite]) / (4 * FP32 * np.maximum(1, np.abs(right_lse[finite])))
    return max(worst, float(apart.max(initial=0.0)))


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """`excess` of the arguments of a call and its results by name, as `tilekiln bench` and `tilekiln replay` ask."""
    return excess(made["out"], made.get("lse"), given["out_a"], given["lse_a"], given["out_b"], given["lse_b"])


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Two parts, near each other or far apart; sometimes one that saw no key of a row."""
    m, n = random.matrix()
    dtype = signature["dtype"]
    given = {}
    for part in "ab":
        given[f"out_{part}"] = random.normal(m, n, dtype=dtype)
        lse = random.normal(m, dtype="fp32", scale=random.one((1.0, 30.0)))
        if m and random.chance(0.3):
            lse[random.whole(0, m - 1)] = random.one((-np.inf, -np.inf, np.nan))
        given[f"lse_{part}"] = lse
    over = {"out": "out_a"} if random.chance(0.3) else {}
    return Call(given, {"out": random.blank(m, n, dtype=dtype), "lse": random.blank(m, dtype="fp32")}, over)
