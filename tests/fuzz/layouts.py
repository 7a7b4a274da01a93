# SPDX-License-Identifier: MIT
"""Ways in which an array can lie in memory: gaps, other orders of dimensions, negative and zero strides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tests.fuzz.draw import Draw


class Laid(NamedTuple):
    """An array that lies in some way, and what it lies for: a contiguous array of its values."""

    how: str
    array: np.ndarray
    values: np.ndarray


def strided(array: np.ndarray, strides: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Values of `array` with these strides, in elements; first: of the element (0, 0, ..)."""
    reach = [s * (n - 1) for s, n in zip(strides, array.shape, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    memory = np.zeros(first + high - low + 1, array.dtype)
    view = np.ndarray(
        array.shape, array.dtype, memory, (first - low) * array.itemsize, [s * array.itemsize for s in strides]
    )
    view[...] = array
    return view


def layouts(array: np.ndarray) -> Iterator[Laid]:
    """Each dimension with a gap, backwards and repeated; neighbours exchanged; every row an element from the next."""
    if array.size == 0:
        return
    dense = [s // array.itemsize for s in array.strides]
    yield Laid("moved by an element", strided(array, tuple(dense), 1), array)
    for d, n in enumerate(array.shape):
        if n == 1:
            odd = [*dense[:d], 7777, *dense[d + 1 :]]
            view = np.ndarray(array.shape, array.dtype, array, 0, [s * array.itemsize for s in odd])
            yield Laid(f"an odd stride of dimension {d}, of length 1", view, array)
            continue
        gap = [s * (2 if i <= d else 1) for i, s in enumerate(dense)]
        yield Laid(f"a gap in dimension {d}", strided(array, tuple(gap)), array)
        back = [-s if i == d else s for i, s in enumerate(dense)]
        yield Laid(f"dimension {d} backwards", strided(array, tuple(back)), array)
        repeated = np.repeat(np.take(array, [0], d), n, d)
        yield Laid(f"dimension {d} repeated", np.broadcast_to(np.take(repeated, [0], d), array.shape), repeated)
    if array.ndim > 1:
        apart = [1]
        for n in array.shape[:0:-1]:
            apart.append(apart[-1] * n + 1)
        yield Laid("every row an element apart", strided(array, tuple(reversed(apart))), array)
        for i in range(array.ndim - 1):
            order = [*range(array.ndim)]
            order[i], order[i + 1] = order[i + 1], order[i]
            view = np.ascontiguousarray(array.transpose(order)).transpose(order)
            yield Laid(f"dimensions {i} and {i + 1} exchanged", view, array)


def relaid(draw: Draw, array: np.ndarray, last: bool = False, repeated: bool = False) -> np.ndarray:
    """The same values with strides drawn at random; the last dimension stays contiguous unless `last` is said.

    repeated: dimensions along which all values are the same may get a stride of 0, for arrays that are only read.
    """
    if array.size == 0:
        return array
    order = draw.random.permutation(array.ndim - (not last)).tolist()  # from the outermost
    order += [] if last else [array.ndim - 1] * (array.ndim > 0)
    strides, step = [0] * array.ndim, 1
    for d in reversed(order):
        fixed = d == array.ndim - 1 and not last
        if repeated and not fixed and draw.random.random() < 0.5 and _is_repeated(array, d):
            continue
        gap = 0 if fixed else draw.often(0, 1, 3, step)
        strides[d] = (step + gap) * (1 if fixed else draw.often(1, -1))
        step = abs(strides[d]) * array.shape[d]
    if 0 not in [s for s, n in zip(strides, array.shape, strict=True) if n > 1]:
        return strided(array, tuple(strides))
    one = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]
    laid = strided(one, tuple(strides))
    return np.lib.stride_tricks.as_strided(
        laid.view(f"V{array.itemsize}"), array.shape, [s * array.itemsize for s in strides], writeable=True
    ).view(array.dtype)


def _is_repeated(array: np.ndarray, d: int) -> bool:
    first = np.broadcast_to(np.take(array, [0], d), array.shape)
    return array.tobytes() == first.tobytes()
