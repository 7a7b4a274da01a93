# SPDX-License-Identifier: MIT
"""Reductions in float64, and how far a kernel may be from them.

A sum goes on in fp64 after 64 additions in fp32, u = 2^-24, in four vectors, joined pairwise: it is wrong by 72 u of
the sum of what is added, without signs. It is rounded once. With out, the unit roundoff of the dtype, and tiny, what
may be lost near 0:

    |y - reference| <= out |reference| + (1 + out) 72 u sum(|x|) scale + tiny

Maxima and minima are exact.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature
from .softmax import FP32, OUT

REDUCTIONS: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def reduce(
    x: NDArray[np.generic], axes: Sequence[int] = (), operation: str = "sum", keepdim: bool = False
) -> NDArray[np.float64]:
    """Of the dimensions axes; none: of all."""
    over = tuple(axes) if axes else tuple(range(x.ndim))
    with np.errstate(all="ignore"):
        return np.asarray(REDUCTIONS[operation](x.astype(np.float64), axis=over, keepdims=keepdim), np.float64)


def excess(
    y: NDArray[np.generic],
    x: NDArray[np.generic],
    axes: Sequence[int] = (),
    operation: str = "sum",
    keepdim: bool = False,
) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where only one is NaN or infinite."""
    out, tiny = OUT[y.dtype.name]
    got, right = y.astype(np.float64), reduce(x, axes, operation, keepdim)
    if got.shape != right.shape:
        return float("inf")
    if operation in ("max", "min"):
        return 0.0 if np.array_equal(got, right, equal_nan=True) else float("inf")
    right_rounded = right.astype(y.dtype).astype(np.float64)  # past the largest number of the dtype: infinite
    far = np.isfinite(right_rounded)
    if not np.array_equal(got[~far], right_rounded[~far], equal_nan=True):
        return float("inf")
    size = reduce(np.abs(x), axes, operation, keepdim)
    bound = out * np.abs(right[far]) + (1 + out) * 72 * FP32 * size[far] + tiny
    return float((np.abs(got[far] - right[far]) / bound).max(initial=0.0))


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """One to four dimensions in any order in memory, some of which are left; now and then a NaN or an infinity."""
    ndim = random.whole(1, 4)
    most = {1: 40000, 2: 300, 3: 40, 4: 12}[ndim] * (3 if random.times > 1 else 1)
    x = random.normal(*random.shape(ndim, most), dtype=signature["dtype"])
    if random.chance(0.1):
        x[tuple(random.whole(0, length - 1) for length in x.shape)] = random.one((np.nan, np.inf, -np.inf))
    if ndim > 1 and random.chance(0.3):
        order = random.some(range(ndim), ndim)
        x = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    how = {
        "axes": random.some(range(ndim), random.whole(1, ndim)),
        "operation": signature["operation"],
        "keepdim": random.chance(0.3),
    }
    y = random.blank(*reduce(x, **how).shape, dtype=signature["dtype"])
    return Call({"x": x, **how}, {"y": y})
