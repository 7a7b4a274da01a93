# SPDX-License-Identifier: MIT
"""Operations of elements in float64, and how far a kernel may be from them.

A kernel computes in fp32, u = 2^-24, from left to right, and rounds once to the dtype, whose unit roundoff is out; tiny
is what may be lost near 0. With n arrays, s the sum of the magnitudes of what is added:

    |y - reference| <= out |reference| + (1 + out) u c + tiny

c is n s for add and sub, 2 n |reference| for mul and div,
and of one array c is |reference| times 8 for what is rounded a few times, (8 + 2 |x|) where the argument of an
exponential carries its rounding, and 16 |x| for gelu, whose tail is 1.5e-7 at most from the right one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature
from .gemm import ACTIVATIONS
from .softmax import FP32, OUT

Float = NDArray[np.float64]

MANY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
}  # fmt: skip
ONE: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative, "abs": np.abs, "square": np.square, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x, "exp": np.exp, "tanh": np.tanh,
    **{name: ACTIVATIONS[name] for name in ("relu", "sigmoid", "silu", "gelu", "gelu_tanh")},
}  # fmt: skip


@np.errstate(all="ignore")
def elementwise(arrays: Sequence[NDArray[np.generic]], operation: str = "add") -> Float:
    """Of arrays that are broadcast."""
    first, *rest = (np.asarray(one).astype(np.float64) for one in arrays)
    made: Float = np.asarray(ONE[operation](first)) if operation in ONE else first
    for one in rest:
        made = MANY[operation](made, one)
    return np.asarray(made, np.float64)


@np.errstate(all="ignore")
def _size(arrays: Sequence[NDArray[np.generic]], operation: str, right: Float) -> Any:
    """c of the bound."""
    x = np.minimum(np.abs(np.asarray(arrays[0]).astype(np.float64)), 1e5)
    if operation in ("add", "sub"):
        return len(arrays) * elementwise([np.abs(one) for one in arrays], "add")
    if operation in ("exp", "sigmoid", "silu"):
        return (8 + 2 * x) * np.abs(right)
    return 16 * x if operation.startswith("gelu") else 2 * max(4, len(arrays)) * np.abs(right)


def excess(y: NDArray[np.generic], arrays: Sequence[NDArray[np.generic]], operation: str = "add") -> float:
    """The largest error over its bound; at most 1 is right. Infinite where only one is NaN or infinite."""
    out, tiny = OUT[y.dtype.name]
    got, right = y.astype(np.float64), elementwise(arrays, operation)
    if got.shape != right.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        rounded = right.astype(np.float32).astype(y.dtype).astype(np.float64)
        bound = out * np.abs(right) + (1 + out) * FP32 * _size(arrays, operation, right) + max(tiny, 2.0**-115)
        wrong = np.abs(got - right) / bound
    far = ~np.isfinite(rounded) | ~np.isfinite(bound)
    if not np.array_equal(got[far], rounded[far], equal_nan=True):
        return float("inf")
    return float(wrong[~far].max(initial=0.0))


def answer(given: dict[str, Any], made: dict[str, Any]) -> float:
    """The error of a call as a share of its bound."""
    arrays = [given[name] for name in ("x", "x1", "x2", "x3") if given.get(name) is not None]
    return excess(made["y"], arrays, given["operation"])


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """One to four arrays of up to four dimensions in any order in memory, of which some are broadcast."""
    operation = random.one((*MANY, *ONE))
    count = random.whole(2, 4) if operation in MANY else 1
    ndim = random.whole(1, 4)
    shape = random.shape(ndim, {1: 40000, 2: 300, 3: 40, 4: 12}[ndim] * (3 if random.times > 1 else 1))
    given = dict[str, Any]()
    for name in ("x", "x1", "x2", "x3")[:count]:
        own = [1 if count > 1 and random.chance(0.2) else length for length in shape]
        own = own[random.whole(0, ndim) if name != "x" and random.chance(0.2) else 0 :]
        x = np.asarray(random.normal(*own, dtype=signature["dtype"]))
        if x.size and random.chance(0.1):
            x[tuple(random.whole(0, length - 1) for length in x.shape)] = random.one((np.nan, np.inf, -np.inf, 0))
        if x.ndim > 1 and random.chance(0.3):
            order = random.some(range(x.ndim), x.ndim)
            x = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
        given[name] = x
    made = np.broadcast_shapes(*(x.shape for x in given.values()))
    return Call({**given, "operation": operation}, {"y": random.blank(*made, dtype=signature["dtype"])})
