# SPDX-License-Identifier: MIT
"""The moves, bit for bit, in NumPy: permute, copy, transpose, batched_transpose, img2col."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature

Array = NDArray[Any]


def permute(x: Array, axes: Sequence[int] = ()) -> Array:
    """No axes: all, last first."""
    return x.transpose(axes or None)


def batched_transpose(x: Array, layout: str = "nchw") -> Array:
    """x of three dimensions, or images of four in `layout`."""
    if x.ndim == 3:
        return x.transpose(0, 2, 1)
    return x.transpose(0, 2, 3, 1) if layout == "nchw" else x.transpose(0, 3, 1, 2)


def img2col(
    x: Array,
    filter: tuple[int, int] = (1, 1),  # noqa: A002
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    groups: int = 1,
) -> Array:
    """(groups, outputs, y x c) of x (batch, height, width, channels), a patch at a time."""
    batch, height, width, channels = x.shape
    padded = np.zeros((batch, height + 2 * padding[0], width + 2 * padding[1], channels), x.dtype)
    padded[:, padding[0] : padding[0] + height, padding[1] : padding[1] + width] = x
    last = [length - step * (size - 1) for length, step, size in zip(padded.shape[1:3], dilation, filter, strict=True)]
    rows = [
        padded[n, i : i + dilation[0] * filter[0] : dilation[0], j : j + dilation[1] * filter[1] : dilation[1]]
        for n in range(batch)
        for i in range(0, last[0], stride[0])
        for j in range(0, last[1], stride[1])
    ]
    each = np.array(rows, x.dtype).reshape(len(rows), *filter, groups, channels // groups)
    return np.moveaxis(each, 3, 0).reshape(groups, len(rows), filter[0] * filter[1] * (channels // groups))


def _part(random: Random, shape: Sequence[int], size: int) -> Array:
    """Words of a larger array: packed, with room after any dimension, or every other one of a row, at any address."""
    whole = [length + random.one((0, 0, 0, 1, 8)) for length in shape]
    step, start = random.one((1, 1, 1, 2)), random.one((0, 0, 16 // size, 1))
    wide = [*whole[:-1], step * whole[-1]]
    flat = random.bits(int(np.prod(wide)) + start, size=size)
    return flat[start:].reshape(wide)[..., ::step][tuple(slice(0, length) for length in shape)]


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Arrays of any bytes, up to six dimensions, whose sides are those of tiles or are not."""
    size = int(signature["element"].removeprefix("bytes"))
    if operator == "img2col":
        return _draw_patches(random, size)
    least, greatest = {"transpose": (2, 2), "batched_transpose": (3, 4)}.get(operator, (1, 6))
    ndim = random.whole(least, greatest)
    most = (
        {1: 70001, 2: 700, 3: 90, 4: 40, 5: 20, 6: 9}
        if random.times > 1
        else {1: 3001, 2: 150, 3: 40, 4: 20, 5: 9, 6: 5}
    )
    shape = random.shape(ndim, most[ndim])
    if ndim == 2 and random.chance(0.3):
        shape = [random.one((64, 128, 136)), random.one((64, 128, 200))]
    x, how = _part(random, shape, size), dict[str, Any]()
    if operator == "permute":
        how["axes"] = random.some(range(ndim), ndim)
    if ndim == 4 and operator == "batched_transpose":
        how["layout"] = random.one(("nchw", "nhwc"))
    moved = {
        "permute": permute,
        "copy": lambda x: x,
        "transpose": lambda x: x.T,
        "batched_transpose": batched_transpose,
    }
    y = random.blank(*moved[operator](x, **how).shape, dtype=x.dtype)
    return Call({"x": x, **how}, {"y": y})


def _draw_patches(random: Random, size: int) -> Call:
    groups = random.one((1, 1, 2, 3))
    channels = groups * random.one((1, 3, 4, 8, 16, 40))
    shape = (random.whole(1, 3), random.whole(1, 9), random.whole(1, 9), channels)
    how: dict[str, Any] = {"groups": groups}
    for name, least, most in (("filter", 1, 3), ("stride", 1, 3), ("dilation", 1, 2), ("padding", 0, 3)):
        how[name] = (random.whole(least, most), random.whole(least, most))
    sides = [shape[1 + i] + 2 * how["padding"][i] - how["dilation"][i] * (how["filter"][i] - 1) for i in (0, 1)]
    if min(sides) < 1:
        how["filter"] = (1, 1)
    x = random.bits(*shape, size=size)
    return Call({"x": x, **how}, {"y": np.zeros(img2col(x, **how).shape, x.dtype)})
