# SPDX-License-Identifier: MIT
"""rotary in float64, and how far a kernel may be from it.

    (a, b) -> (a cos - b sin, a sin + b cos)

(Su et al., RoFormer, https://arxiv.org/abs/2104.09864.) Each product and their sum are rounded to fp32 once, so y is
wrong by 3 u (|a| |cos| + |b| |sin|), u = 2^-24, beside its own rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.dtypes import NUMPY
from . import rows
from .drawn import EDGES, Call, Random, Signature

Array = NDArray[Any]


def rotary(
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    start: int = 0,
    interleaved: bool = False,
    conjugate: bool = False,
    axes: Array | None = None,
) -> tuple[Array, Array]:
    """y and what arithmetic may lose of it.

    x (batch, seqlen, nheads, headdim), cos, sin (table rows, rotary_dim / 2); the other arguments are the operator's.
    """
    if axes is not None:
        return _by_axes(x, cos, sin, positions, start, interleaved, conjugate, axes)
    half = cos.shape[1]
    y, error = x.astype(np.float64), np.zeros(x.shape)
    tokens = np.arange(x.shape[1]) if positions is None else positions.astype(np.int64)
    at = np.broadcast_to(tokens + start, x.shape[:2])
    there = (at >= 0) & (at < len(cos))
    c, s = (table.astype(np.float64)[at[there]][:, None] for table in (cos, sin))
    s = -s if conjugate else s
    first, second = (slice(0, half), slice(half, 2 * half))
    if interleaved:
        first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    a, b = y[there, :, first], y[there, :, second]
    for place, turned, one, other in ((first, a * c - b * s, a * c, b * s), (second, a * s + b * c, a * s, b * c)):
        y[there, :, place] = turned
        error[there, :, place] = 3 * rows.FP32 * (np.abs(one) + np.abs(other))
    return y, error


def _by_axes(
    x: Array, cos: Array, sin: Array, positions: Any, start: int, interleaved: bool, conjugate: bool, axes: Array
) -> tuple[Array, Array]:
    """Tables with a row a token, its pairs gathered by their axes."""
    at = positions.astype(np.int64) + start  # (axes, batch, seqlen)
    there = ((at >= 0) & (at < len(cos))).all(0) & bool(((axes >= 0) & (axes < len(at))).all())
    pairs = np.arange(cos.shape[1])
    of = np.where(there[..., None], np.moveaxis(at[np.clip(axes, 0, len(at) - 1)], 0, -1), 0)
    cosines, sines = (table[of, pairs].reshape(-1, len(pairs)) for table in (cos, sin))
    number = np.where(there, np.arange(there.size).reshape(there.shape), -1)
    return rotary(x, cosines, sines, positions=number, interleaved=interleaved, conjugate=conjugate)


def excess(y: Array, *given: Any, **options: Any) -> float:
    """The largest error over its bound; at most 1 is right. given and options are those of `rotary`."""
    return rows.excess(y, *rotary(*given, **options))


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Heads of which all or a part is turned; positions of which some are outside of the tables."""
    dtype = signature["dtype"]
    batch, seqlen, heads = random.one((0, 1, 2)), random.one((1, 7, 30)), random.one((1, 3, 8))
    width = random.one((2, 16, 64, 67, 128))
    half = random.one((width // 2, width // 2, min(4, width // 2), min(8, width // 2)))
    given: dict[str, Any] = {"x": random.normal(batch, seqlen, heads, width, dtype=dtype)}
    angles = random.numbers.standard_normal((40, half))
    tables = NUMPY[signature["tables"]]
    given |= {name: random.laid(f(angles).astype(tables)) for name, f in (("cos", np.cos), ("sin", np.sin))}
    if random.chance(0.5):
        kind = random.one((np.int32, np.int64))
        axes = (3,) if random.edges is EDGES["cpu"] and random.chance(0.5) else ()
        given["positions"] = random.numbers.integers(
            -8 if random.chance(0.5) else 0, 60, (*axes, batch, seqlen)
        ).astype(kind)
        if axes:
            given["axes"] = random.numbers.integers(0, 3, half).astype(np.int32)
    given |= {"interleaved": random.chance(0.5), "conjugate": random.chance(0.5), "start": random.one((0, 0, 5))}
    over = {"y": "x"} if random.chance(0.3) else {}
    return Call(given, {"y": random.blank(batch, seqlen, heads, width, dtype=dtype)}, over)
