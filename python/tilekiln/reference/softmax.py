# SPDX-License-Identifier: MIT
"""Softmax in float64, and how far a kernel may be from it.

    y = exp(x - max(x)) / sum(exp(x - max(x)))    over the last dimension

A kernel computes in fp32, u = 2^-24. The difference d = x - max(x), its product with log2(e) and log2(e) itself are
rounded once each: exp makes 3 u |d| of that, relative to the element, and adds 2^-23. A sum of n of them in at least
sixteen parts is wrong by (n / 16 + 4) u beside what its terms are, mean = sum(y |d|) of them at 3 u. Its reciprocal and
two products are rounded. With out, the unit roundoff of the dtype, and tiny, what may be lost near 0:

    |y - reference| <= (out + (n / 16 + 3 |d| + 3 mean + 12) u) reference + tiny
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature

FP32 = 2.0**-24
OUT = {"float32": (2.0**-24, 2.0**-125), "float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-125)}
"""By dtype: the unit roundoff, and tiny: half the smallest number of fp16; fp32 and bf16 may be 0 below 2^-125."""


def softmax(x: NDArray[np.generic]) -> NDArray[np.float64]:
    """x (rows, columns). A row that holds a NaN or +inf, or nothing but -inf, is NaN."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        powers = np.exp(wide - wide.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def excess(y: NDArray[np.generic], x: NDArray[np.generic]) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is NaN and the other is not."""
    out, tiny = OUT[y.dtype.name]
    got, right, wide = y.astype(np.float64), softmax(x), x.astype(np.float64)
    if not (np.isnan(got) == np.isnan(right)).all():
        return float("inf")
    good = ~np.isnan(right)
    with np.errstate(all="ignore"):
        far = np.where(right > 0, wide.max(axis=1, keepdims=True) - wide, 0)
        units = x.shape[1] / 16 + 3 * far + 3 * (right * far).sum(axis=1, keepdims=True) + 12
    bound = (out + units[good] * FP32) * right[good] + tiny
    return float((np.abs(got[good] - right[good]) / bound).max(initial=0.0))


def answer(given: Mapping[str, NDArray[np.generic]], made: Mapping[str, NDArray[np.generic]]) -> float:
    """`excess` of the arguments of a call and its results by name, as `tilekiln bench` and `tilekiln replay` ask."""
    return excess(made["y"], given["x"])


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Rows of equal numbers, of usual ones and of far ones; sometimes with what makes a row NaN, or an element 0."""
    m, n = random.matrix()
    x = random.normal(m, n, dtype=signature["dtype"], scale=random.one((0.0, 3.0, 40.0)))
    if m and random.chance(0.2):
        x[random.whole(0, m - 1), random.whole(0, n - 1)] = random.one((np.nan, np.inf, -np.inf))
    over = {"y": "x"} if random.chance(0.3) else {}
    return Call({"x": x}, {"y": random.blank(m, n, dtype=signature["dtype"])}, over)
