"""silu_and_mul and its gradients in float64, and how far a kernel may be from them.

    y = g s u    dg = dy u s (1 + g (1 - s))    du = dy g s    with s = 1 / (1 + exp(-g))

(Shazeer, GLU Variants Improve Transformer, 2020, SwiGLU.) A kernel computes in fp32, u = 2^-24: exp and the rounding of
its argument make s wrong by (4 + |g|) u of itself at most, and each product adds one; the difference 1 - s errs by that
of s. With out and tiny as in `rows`, w = (12 + 2 |g|) u:

    |y - reference| <= out |reference| + w |reference| + tiny
    |dg - reference| <= out |reference| + w |dy u| s (1 + |g|) + tiny

What is below 2^-100 may be lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature

Array = NDArray[Any]
LOST = 2.0**-100


def _parts(gate: Array) -> tuple[Array, Array, Array]:
    """g, s and g s, whose limit at -infinity is 0."""
    g = gate.astype(np.float64)
    with np.errstate(all="ignore"):
        s = np.where(np.isnan(g), np.nan, 1 / (1 + np.exp(-g)))
        return g, s, np.where(np.isneginf(g), 0.0, g * s)


def silu_and_mul(gate: Array, up: Array) -> Array:
    """gate, up (rows, columns)."""
    with np.errstate(invalid="ignore"):
        return np.asarray(_parts(gate)[2] * up.astype(np.float64))


def excess(y: Array, gate: Array, up: Array) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is finite and the other is not."""
    right = silu_and_mul(gate, up)
    with np.errstate(invalid="ignore"):
        error = (12 + 2 * np.abs(gate.astype(np.float64))) * rows.FP32 * np.abs(right)
        return rows.excess(y, right, error + LOST * (1 + np.abs(up.astype(np.float64))))


def gradients(dy: Array, gate: Array, up: Array) -> tuple[Array, Array]:
    """dgate and dup; arrays (rows, columns), finite."""
    (g, s, silu), d = _parts(gate), dy.astype(np.float64)
    return d * up.astype(np.float64) * s * (1 + g * (1 - s)), d * silu


def gradient_excess(dgate: Array, dup: Array, dy: Array, gate: Array, up: Array) -> float:
    """As `excess`, of both gradients."""
    g, s, _ = _parts(gate)
    of_gate, of_up = gradients(dy, gate, up)
    width = (12 + 2 * np.abs(g)) * rows.FP32
    size, lost = np.abs(dy.astype(np.float64) * up.astype(np.float64)), LOST * (1 + np.abs(dy.astype(np.float64)))
    first = rows.excess(dgate, of_gate, width * size * s * (1 + np.abs(g)) + LOST * (1 + size))
    return max(first, rows.excess(dup, of_up, width * np.abs(of_up) + lost))


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Gates of one magnitude or another; y over gate, or the gradients over gate and up."""
    dtype, (m, n) = signature["dtype"], random.matrix()
    given = {
        "gate": random.normal(m, n, dtype=dtype, scale=random.one((1.0, 20.0))),
        "up": random.normal(m, n, dtype=dtype),
    }
    over = {"y": "gate"}
    if operator == "silu_and_mul_bwd":
        given = {"dy": random.normal(m, n, dtype=dtype), **given}
        over = {"dgate": "gate", "dup": "up"}
    made = {name: random.blank(m, n, dtype=dtype) for name in over}
    return Call(given, made, over if random.chance(0.3) else {})
