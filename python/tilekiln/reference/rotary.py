"""rotary in float64, and how far a kernel may be from it.

    (a, b) -> (a cos - b sin, a sin + b cos)

(Su et al., RoFormer, https://arxiv.org/abs/2104.09864.) Each product and their sum are rounded to fp32 once, so y is
wrong by 3 u (|a| |cos| + |b| |sin|), u = 2^-24, beside its own rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import rows

Array = NDArray[Any]


def rotary(
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    start: int = 0,
    interleaved: bool = False,
    conjugate: bool = False,
) -> tuple[Array, Array]:
    """y and what arithmetic may lose of it.

    x (batch, seqlen, nheads, headdim), cos, sin (table rows, rotary_dim / 2); the other arguments are the operator's.
    """
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


def excess(y: Array, *given: Any, **options: Any) -> float:
    """The largest error over its bound; at most 1 is right. given and options are those of `rotary`."""
    return rows.excess(y, *rotary(*given, **options))
