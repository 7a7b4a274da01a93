# SPDX-License-Identifier: MIT
"""Convolutions and their gradients in float64, tap by tap, and how far a kernel may be from them.

    y[n, k, o] = f(scale[k] z + residual + bias[k]), z the sum over c, t of weight[k, c, t] x[n, c, at]
    at = o stride + t dilation - padding, where x is 0 outside of itself
    dx[n, c, i] = the sum over k, t, o of weight[k, c, t] dy[n, k, o], where at is i
    dweight[k, c, t] = the sum over n, o of dy[n, k, o] x[n, c, at]

All are products of as many terms as an element has, so the bound is that of `reference.gemm`: with k terms of a
magnitude, u min(k, 6 sqrt(k)) + 6 u of it, the function's error, and one rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import gemm
from .drawn import Call, Random, Signature

Array = NDArray[Any]
Float = NDArray[np.float64]
Numbers = Sequence[int]


def _last(index: Iterable[Any]) -> Any:
    """An index of the last dimensions."""
    return (..., *index)


class Window:
    """Strides, dilations and padding, one number a spatial dimension or one for all, and what they make of lengths."""

    def __init__(self, filter: Numbers, stride: Numbers = (), dilation: Numbers = (), padding: Numbers = ()) -> None:  # noqa: A002
        spatial = len(filter)

        def each(numbers: Numbers, default: int) -> list[int]:
            return list(numbers) * spatial if len(numbers) == 1 else list(numbers) or [default] * spatial

        self.filter, self.stride, self.dilation = list(filter), each(stride, 1), each(dilation, 1)
        around = each(padding, 0)
        self.before, self.after = around[:spatial], around[len(around) - spatial :]

    def out(self, lengths: Numbers) -> list[int]:
        """Lengths of y, by those of x."""
        sides = zip(lengths, self.before, self.after, self.dilation, self.filter, self.stride, strict=True)
        return [(n + low + high - tap * (size - 1) - 1) // step + 1 for n, low, high, tap, size, step in sides]

    def taps(self, out: Numbers) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each tap, and which pixels of a padded x it meets."""
        for tap in itertools.product(*map(range, self.filter)):
            first = [t * by for t, by in zip(tap, self.dilation, strict=True)]
            yield tap, tuple(slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(first, out, self.stride, strict=True))

    def padded(self, x: Float) -> Float:
        return np.pad(x, [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)])


def _forward(window: Window, x: Float, weight: Float, groups: int) -> Float:
    batch, out = x.shape[0], window.out(x.shape[2:])
    padded = window.padded(x)
    made = np.zeros((batch, groups, weight.shape[0] // groups, *out))
    of_groups = weight.reshape(groups, -1, *weight.shape[1:])
    for tap, pixels in window.taps(out):
        met = padded[_last(pixels)].reshape(batch, groups, x.shape[1] // groups, *out)
        made += np.einsum("ngc...,gkc->ngk...", met, of_groups[_last(tap)])
    return made.reshape(batch, weight.shape[0], *out)


def _data(window: Window, dy: Float, weight: Float, lengths: Numbers, groups: int) -> Float:
    batch, out = dy.shape[0], dy.shape[2:]
    made = window.padded(np.zeros((batch, weight.shape[1] * groups, *lengths)))
    of_groups, given = (
        weight.reshape(groups, -1, *weight.shape[1:]),
        dy.reshape(batch, groups, weight.shape[0] // groups, *out),
    )
    for tap, pixels in window.taps(out):
        met = np.einsum("ngk...,gkc->ngc...", given, of_groups[_last(tap)])
        made[_last(pixels)] += met.reshape(batch, made.shape[1], *out)
    ends = zip(window.before, lengths, strict=True)
    inside: Float = made[_last(slice(low, low + length) for low, length in ends)]
    return inside


def _weight(window: Window, x: Float, dy: Float, groups: int) -> Float:
    batch, out = dy.shape[0], dy.shape[2:]
    padded, given = window.padded(x), dy.reshape(batch, groups, dy.shape[1] // groups, int(np.prod(out)))
    made = np.zeros((dy.shape[1], x.shape[1] // groups, *window.filter))
    for tap, pixels in window.taps(out):
        met = padded[_last(pixels)].reshape(batch, groups, x.shape[1] // groups, given.shape[-1])
        made[_last(tap)] = np.einsum("ngkp,ngcp->gkc", given, met).reshape(made.shape[:2])
    return made


def _bounded(
    name: str, x: Float, magnitude: Float, terms: int, activation: str, clamp: tuple[float, float]
) -> gemm.Result:
    """x after its activation, as `name`, of sums of so many terms."""
    low, high = (float(np.float32(end)) for end in clamp)
    out = np.clip(x, low, high) if activation == "clamp" else gemm.ACTIVATIONS[activation](x)
    sums = gemm.U * (min(terms, 6 * np.sqrt(terms)) + 6)
    function = 0.0 if activation in gemm.EXACT else 2.0**-20
    tiny = 2.0**-25 if name == "fp16" else 2.0**-100 if function else (terms + 1) * 2.0**-126
    bound = gemm.ROUNDING[name] * np.abs(out) + gemm.SLOPES.get(activation, gemm.SLOPE) * sums * magnitude
    bound += function * (np.abs(x) + np.abs(out)) + tiny
    return gemm.Result(np.where(np.abs(out) >= gemm.LARGEST[name], np.copysign(np.inf, out), out), bound)


def _of_outputs(numbers: Array, ndim: int) -> Float:
    return numbers.astype(np.float64).reshape(-1, *[1] * (ndim - 2))


def conv_fwd(
    x: Array,
    weight: Array,
    *,
    stride: Numbers = (),
    dilation: Numbers = (),
    padding: Numbers = (),
    groups: int = 1,
    bias: Array | None = None,
    residual: Array | None = None,
    scale: Array | None = None,
    activation: str = "none",
    clamp: tuple[float, float] = gemm.CLAMP,
    dtype: str | None = None,
) -> gemm.Result:
    """x (batch, channels, spatial..), weight (outputs, channels / groups, filter..); dtype: of y, if not that of x."""
    window = Window(weight.shape[2:], stride, dilation, padding)
    wide, filters = x.astype(np.float64), weight.astype(np.float64)
    name = dtype or gemm.OUT_DTYPE[str(x.dtype)]
    with np.errstate(all="ignore"):
        made = _forward(window, wide, filters, groups)
        if name == "int32":
            return gemm.Result(made.astype(np.int64).astype(np.int32), np.zeros(made.shape))
        magnitude = _forward(window, np.abs(wide), np.abs(filters), groups)
        if scale is not None:
            factors = _of_outputs(scale, x.ndim)
            made, magnitude = made * factors, magnitude * np.abs(factors)
        for added in (residual, None if bias is None else _of_outputs(bias, x.ndim)):
            if added is not None:
                made = made + added.astype(np.float64)
                magnitude = magnitude + np.abs(added.astype(np.float64))
        return _bounded(name, made, magnitude, weight[0].size, activation, clamp)


def _unbiased(name: str, made: Float, magnitude: Float, terms: int) -> gemm.Result:
    return _bounded(name, made, magnitude, terms, "none", gemm.CLAMP)


def conv_bwd_data(
    dy: Array,
    weight: Array,
    *,
    lengths: Numbers,
    stride: Numbers = (),
    dilation: Numbers = (),
    padding: Numbers = (),
    groups: int = 1,
) -> gemm.Result:
    """dy (batch, outputs, spatial..), weight as in the forward; lengths: the spatial lengths of dx."""
    window = Window(weight.shape[2:], stride, dilation, padding)
    wide, filters = dy.astype(np.float64), weight.astype(np.float64)
    with np.errstate(all="ignore"):
        made = _data(window, wide, filters, lengths, groups)
        magnitude = _data(window, np.abs(wide), np.abs(filters), lengths, groups)
    return _unbiased(gemm.OUT_DTYPE[str(dy.dtype)], made, magnitude, weight[:, 0].size // groups)


def conv_bwd_weight(
    x: Array,
    dy: Array,
    *,
    filter: Numbers,  # noqa: A002
    stride: Numbers = (),
    dilation: Numbers = (),
    padding: Numbers = (),
    groups: int = 1,
    dtype: str | None = None,
) -> gemm.Result:
    """x and dy as in the forward; filter: the spatial lengths of dweight."""
    window = Window(filter, stride, dilation, padding)
    wide, given = x.astype(np.float64), dy.astype(np.float64)
    with np.errstate(all="ignore"):
        made = _weight(window, wide, given, groups)
        magnitude = _weight(window, np.abs(wide), np.abs(given), groups)
    return _unbiased(dtype or gemm.OUT_DTYPE[str(x.dtype)], made, magnitude, dy[:, 0].size)


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """The largest error of a call over its bound; infinite where one of both is no number, or infinity."""
    window = {name: given[name] for name in ("stride", "dilation", "padding", "groups") if name in given}
    if "dx" in made:
        dx = made["dx"]
        return _excess(dx, conv_bwd_data(given["dy"], given["weight"], lengths=dx.shape[2:], **window))
    if "dweight" in made:
        dw = made["dweight"]
        return _excess(dw, conv_bwd_weight(given["x"], given["dy"], filter=dw.shape[2:], dtype=_name(dw), **window))
    arrays = {name: given[name] for name in ("x", "weight", "bias", "residual", "scale", "activation") if name in given}
    clamp = (float(given.get("clamp_min", 0.0)), float(given.get("clamp_max", 6.0)))
    y = made["y"]
    return _excess(y, conv_fwd(**arrays, **window, clamp=clamp, dtype=_name(y)))


def _name(array: Array) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "int32"}[array.dtype.name]


def _excess(got: Array, reference: gemm.Result) -> float:
    want, wide = reference.out.astype(np.float64), got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(wide - want) / np.where(reference.bound > 0, reference.bound, 1.0)
        error = np.where(reference.bound > 0, error, np.where(wide == want, 0.0, np.inf))
        same = (wide == want) | (np.isnan(wide) & np.isnan(want))
    return float(np.where(same, 0.0, np.where(np.isnan(error), np.inf, error)).max(initial=0.0))


LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 29)


def _laid(random: Random, array: Array) -> Array:
    """The same numbers with channels first, channels last, or with any order of dimensions and room between them."""
    order = list(range(array.ndim))
    how = random.whole(0, 3)
    if how == 1:
        order = [0, *range(2, array.ndim), 1]
    elif how == 2:
        order = random.some(order, array.ndim)
    turned = random.laid(np.ascontiguousarray(array.transpose(order)))
    return turned.transpose(np.argsort(order))


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Images of no pixel up to some; groups of one channel, of few and of many; filters that reach into padding."""
    spatial = {"d1": 1, "d2": 2, "d3": 3}[signature["spatial"]]
    groups = random.one((1, 1, 2, 3, 16, 40))
    of_group = random.one((1, 2, 3, 16, 33)) if groups < 16 else random.one((1, 1, 2))
    outputs = groups * (random.one((1, 2, 5, 16, 64, 70)) if groups < 16 else random.one((1, 2)))
    if signature.get("pipeline") == "depthwise":
        of_group, outputs = (of_group, groups) if operator == "conv_bwd_data" else (1, outputs)
    if groups == 1 and signature["layout"] == "nhwgc":
        groups, outputs = 2, 2 * outputs
    lengths = [random.one(LENGTHS if spatial < 3 else LENGTHS[:6]) for _ in range(spatial)]
    window: dict[str, Any] = {}
    sizes = [random.one((1, 1, 2, 3, 3, 5)) for _ in range(spatial)]
    if random.chance(0.5):
        window["stride"] = [random.one((1, 2, 3)) for _ in range(random.one((1, spatial)))]
    if random.chance(0.3):
        window["dilation"] = [random.one((1, 2)) for _ in range(spatial)]
    window["padding"] = [random.whole(0, 2) for _ in range(random.one((1, spatial, 2 * spatial)))]
    reach = Window(sizes, **window)
    lengths = [max(n, tap * (size - 1) + 1) for n, tap, size in zip(lengths, reach.dilation, reach.filter, strict=True)]
    lengths[-1] += reach.stride[-1]  # channels of a pixel alone would be of either layout
    batch, out = random.one((0, 1, 1, 2, 3)), reach.out(lengths)
    if signature["layout"] == "nhwgc":
        batch = max(batch, 1)  # strides of no element say nothing
    dtype, to = signature["dtype"], signature.get("out_dtype", signature["dtype"])

    def numbers(*shape: int) -> Array:
        if dtype == "int8":
            return random.numbers.integers(-128, 128, shape).astype(np.int8)
        return random.normal(*shape, dtype=dtype)

    def blank(*shape: int, last: bool = False) -> Array:
        """Channels last or first."""
        order = [0, *range(2, len(shape)), 1] if last else list(range(len(shape)))
        return random.blank(*(shape[i] for i in order), dtype=to).transpose(np.argsort(order))

    last = signature["layout"] == "nhwgc"
    images, filters, results = (batch, groups * of_group, *lengths), (outputs, of_group, *sizes), (batch, outputs, *out)
    given: dict[str, Any] = {**window, "groups": groups}
    if operator == "conv_bwd_data":
        given |= {"dy": _laid(random, numbers(*results)), "weight": _laid(random, numbers(*filters))}
        return Call(given | {"lengths": lengths}, {"dx": blank(*images, last=last)})
    given["x"] = _laid(random, numbers(*images))
    if operator == "conv_bwd_weight":
        dy = numbers(*results)
        order = [0, *range(2, dy.ndim), 1] if last else list(range(dy.ndim))
        given["dy"] = random.laid(np.ascontiguousarray(dy.transpose(order))).transpose(np.argsort(order))
        return Call(given | {"filter": sizes}, {"dweight": blank(*filters, last=random.chance(0.3))})
    given |= {"weight": _laid(random, numbers(*filters)), "activation": signature["activation"]}
    if dtype == "int8" and to != "int32":
        given["scale"] = random.normal(outputs, dtype="fp32", scale=0.01)
    if to != "int32":
        if random.chance(0.5):
            given["bias"] = random.normal(outputs, dtype="fp32")
        if random.chance(0.5):
            given["residual"] = _laid(random, random.normal(*results, dtype=to))
    over = {"y": "residual"} if "residual" in given and not last and random.chance(0.3) else {}
    return Call(given, {"y": blank(*results, last=last)}, over)
