"""The moves, bit for bit, in NumPy: permute, copy, transpose, batched_transpose, img2col."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
