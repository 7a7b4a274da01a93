# SPDX-License-Identifier: MIT
"""Pooling in float64, a window at a time, and how far a kernel may be from it.

A maximum is exact. A mean of n elements is summed in fp32, u = 2^-24, and multiplied by what is rounded twice; it is
rounded once to the dtype, whose unit roundoff is out:

    |y - reference| <= out |reference| + (1 + out) (n + 2) u sum(|x|) / divisor + tiny
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature
from .softmax import FP32, OUT

Array = NDArray[Any]
Numbers = int | Sequence[int]


class Pooled(NamedTuple):
    """y and, of maxima, their places; bound: of the error of y."""

    y: NDArray[np.float64]
    indices: NDArray[np.int32]
    bound: NDArray[np.float64]


class Gradient(NamedTuple):
    """dx and the bound of its error."""

    dx: NDArray[np.float64]
    bound: NDArray[np.float64]


def _numbers(given: Numbers, default: Sequence[int], sides: int) -> list[int]:
    said = [given] if isinstance(given, int) else list(given)
    said = said or list(default)
    return said * sides if len(said) == 1 else said


def _taps(
    lengths: Sequence[int], size: list[int], step: list[int], apart: list[int], pad: list[int], ceil_mode: bool
) -> list[list[list[int]]]:
    """Of each side, of each window, the elements of x, those outside too."""
    taps = list[list[list[int]]]()
    for length, k, s, d, p in zip(lengths, size, step, apart, pad, strict=True):
        free = length + 2 * p - d * (k - 1) - 1
        count = (-(-free // s) if ceil_mode else free // s) + 1
        if ceil_mode and (count - 1) * s >= length + p:
            count -= 1
        taps.append([[i * s - p + t * d for t in range(k)] for i in range(count)])
    return taps


@np.errstate(all="ignore")
def pooling(
    x: Array,
    window: Numbers = (),
    operation: str = "max",
    stride: Numbers = (),
    dilation: Numbers = (),
    padding: Numbers = (),
    ceil_mode: bool = False,
    count_padding: bool = True,
    layout: str = "nhwc",
) -> Pooled:
    """Of images or volumes; of equal maxima the first has the index, of NaN the last."""
    sides = x.ndim - 2
    last = np.moveaxis(x, 1, -1) if layout == "nchw" else x
    lengths = last.shape[1:-1]
    size = _numbers(window, [1], sides)
    step, apart, pad = _numbers(stride, size, sides), _numbers(dilation, [1], sides), _numbers(padding, [0], sides)
    taps = _taps(lengths, size, step, apart, pad, ceil_mode)
    shape = (last.shape[0], *map(len, taps), last.shape[-1])
    y, bound, indices = np.zeros(shape), np.zeros(shape), np.full(shape, -1, np.int32)
    unit = OUT[x.dtype.name]
    for at in product(*(range(len(one)) for one in taps)):
        own = [taps[i][j] for i, j in enumerate(at)]
        places = [t for t in product(*own) if all(0 <= i < n for i, n in zip(t, lengths, strict=True))]
        found: Any = [last[(slice(None), *t)] for t in places]  # type: ignore[arg-type]
        values = np.array(found, np.float64).reshape(len(places), *shape[:: sides + 1])
        to: Any = (slice(None), *at)
        if operation == "max":
            y[to] = values.max(0, initial=-np.inf)
            if places:
                nan = np.isnan(values)
                which = np.where(nan.any(0), len(places) - 1 - nan[::-1].argmax(0), values.argmax(0))
                indices[to] = np.ravel_multi_index(tuple(np.array(places).T), lengths)[which]
            continue
        counted = [sum(i < n + p for i in one) for one, n, p in zip(own, lengths, pad, strict=True)]
        divisor = np.float64(np.prod(counted) if count_padding else len(places))
        y[to] = values.sum(0) / divisor
        bound[to] = unit[0] * np.abs(y[to]) + unit[1]
        bound[to] += (1 + unit[0]) * (len(places) + 2) * FP32 * np.abs(values).sum(0) / divisor
    turned = (np.moveaxis(one, -1, 1) if layout == "nchw" else one for one in (y, indices, bound))
    return Pooled(*turned)


@np.errstate(all="ignore")
def pooling_bwd(dy: Array, x: Array, indices: Array | None = None, **how: Any) -> Gradient:
    """The gradient of x: of maxima by their indices, of means by what they divide by, a window at a time."""
    turned = how.get("layout", "nhwc") == "nchw"
    last, wide = (np.moveaxis(one, 1, -1) if turned else one for one in (x, dy.astype(np.float64)))
    lengths, channels = last.shape[1:-1], last.shape[-1]
    dx, magnitude = np.zeros(last.shape), np.zeros(last.shape)
    terms = np.zeros(last.shape)
    if how.get("operation", "max") == "max":
        assert indices is not None
        places = np.moveaxis(indices, 1, -1) if turned else indices
        for n, c in product(range(len(last)), range(channels)):
            at, given = places[n, ..., c].ravel(), wide[n, ..., c].ravel()
            for to, add in ((dx, given), (magnitude, np.abs(given)), (terms, np.ones(given.shape))):
                flat = np.zeros(int(np.prod(lengths)))
                np.add.at(flat, at[at >= 0], add[at >= 0])
                to[n, ..., c] = flat.reshape(lengths)
    else:
        sides = len(lengths)
        size = _numbers(how.get("window", ()), [1], sides)
        step, apart = _numbers(how.get("stride", ()), size, sides), _numbers(how.get("dilation", ()), [1], sides)
        pad = _numbers(how.get("padding", ()), [0], sides)
        taps = _taps(lengths, size, step, apart, pad, how.get("ceil_mode", False))
        for window in product(*(range(len(one)) for one in taps)):
            own = [taps[i][j] for i, j in enumerate(window)]
            inside = [[i for i in one if 0 <= i < n] for one, n in zip(own, lengths, strict=True)]
            counted = [sum(i < n + p for i in one) for one, n, p in zip(own, lengths, pad, strict=True)]
            divisor = np.prod(counted) if how.get("count_padding", True) else np.prod([len(one) for one in inside])
            of_window: Any = (slice(None), *window)
            share = wide[of_window] / np.float64(divisor)
            for place in product(*inside):
                where: Any = (slice(None), *place)
                dx[where] += share
                magnitude[where] += np.abs(share)
                terms[where] += 1
    unit = OUT[dy.dtype.name]
    bound = unit[0] * np.abs(dx) + unit[1] + (1 + unit[0]) * (terms + 3) * FP32 * magnitude
    dx, bound = (np.moveaxis(one, -1, 1) if turned else one for one in (dx, bound))
    return Gradient(dx, bound)


def excess(y: Array, x: Array, indices: Array | None = None, **how: Any) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where only one is NaN or infinite."""
    right = pooling(x, **how)
    got = y.astype(np.float64)
    if got.shape != right.y.shape or (indices is not None and not np.array_equal(indices, right.indices)):
        return float("inf")
    with np.errstate(over="ignore"):
        rounded = right.y.astype(np.float32).astype(y.dtype).astype(np.float64)
    far = ~np.isfinite(rounded) | (right.bound == 0)
    if not np.array_equal(got[far], rounded[far], equal_nan=True):
        return float("inf")
    return float((np.abs(got[~far] - right.y[~far]) / right.bound[~far]).max(initial=0.0))


HOW = ("window", "operation", "stride", "dilation", "padding", "ceil_mode", "count_padding", "layout")


def answer(given: dict[str, Any], made: dict[str, Any]) -> float:
    """The error of a call as a share of its bound."""
    how = {name: given[name] for name in HOW if name in given}
    if "dy" in given:
        right = pooling_bwd(given["dy"], given["x"], given.get("indices"), **how)
        return float((np.abs(made["dx"].astype(np.float64) - right.dx) / right.bound).max(initial=0.0))
    return excess(made["y"], given["x"], made.get("indices"), **how)


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Small images and volumes; now and then a NaN or an infinity."""
    sides = random.one((2, 2, 3))
    window = [random.whole(1, 4) for _ in range(sides)]
    dilation = [random.whole(1, 2) for _ in range(sides)]
    lengths = [d * (k - 1) + random.whole(1, 12) for k, d in zip(window, dilation, strict=True)]
    how: dict[str, Any] = {
        "window": window,
        "dilation": dilation,
        "stride": random.one(([], [random.whole(1, 3) for _ in range(sides)])),
        "padding": [random.whole(0, k // 2) for k in window],
        "operation": random.one(("max", "mean")),
        "ceil_mode": random.chance(0.3),
        "count_padding": random.chance(0.5),
        "layout": random.one(("nhwc", "nchw")),
    }
    batch, channels = random.whole(1, 3), random.one((1, 2, 5, 8, 33, 70))
    shape = (batch, *lengths, channels) if how["layout"] == "nhwc" else (batch, channels, *lengths)
    x = random.normal(*shape, dtype=signature["dtype"])
    if random.chance(0.1):
        x[tuple(random.whole(0, length - 1) for length in shape)] = random.one((np.nan, np.inf, -np.inf))
    made = pooling(x, **how).y.shape
    if operator == "pooling_bwd":
        given = {"dy": random.normal(*made, dtype=signature["dtype"]), "x": x, **how}
        if how["operation"] == "max":
            given["indices"] = pooling(x, **how).indices
        return Call(given, {"dx": random.blank(*shape, dtype=signature["dtype"])})
    results = {"y": random.blank(*made, dtype=signature["dtype"])}
    if how["operation"] == "max" and random.chance(0.5):
        results["indices"] = random.blank(*made, dtype="int32")
    return Call({"x": x, **how}, results)
