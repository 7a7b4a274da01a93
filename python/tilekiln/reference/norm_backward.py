# SPDX-License-Identifier: MIT
"""Derivatives of rmsnorm2d and layernorm2d in float64, and how far a kernel may be from them.

With z = (x - mean) inverse, g = dy gamma and means over a row of n columns (rmsnorm2d: mean 0, no mean(g)):

    dx = inverse (g - mean(g) - z mean(g z))    dgamma = sum of dy z over m rows    dbeta = sum of dy over rows

u = 2^-24. Products and z are exact to 4 u, means of a row to (n / 4 + 8) u of the means of magnitudes, and sums over
rows, in parts of p = max(16, m / 64), to (p + 70) u of the sum of magnitudes. So, with out and tiny as in `rows`,

    |dx - reference| <= out |reference| + inverse (n / 4 + 20) u (|g| + mean |g| + |z| mean |g z|) + tiny
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature

Array = NDArray[np.generic]


class Gradients(NamedTuple):
    """dx, dgamma, dbeta, and the error that each may have beside its rounding."""

    dx: NDArray[np.float64]
    dgamma: NDArray[np.float64]
    dbeta: NDArray[np.float64]
    errors: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def backward(dy: Array, x: Array, gamma: Array, mean: Array | None, inverse: Array) -> Gradients:
    """mean None: of rmsnorm2d. mean and inverse (rows) are the forward's."""
    d, wide, inv = dy.astype(np.float64), x.astype(np.float64), inverse.astype(np.float64)[:, None]
    z = (wide - (0 if mean is None else mean.astype(np.float64)[:, None])) * inv
    g = d * gamma.astype(np.float64)
    mean_gz = (g * z).mean(axis=1, keepdims=True)
    mean_g = 0.0 if mean is None else g.mean(axis=1, keepdims=True)
    count = len(x)
    sums = (max(16, -(-count // 64)) + 70) * rows.FP32
    size = np.abs(g) + np.abs(g).mean(axis=1, keepdims=True) + np.abs(z) * np.abs(g * z).mean(axis=1, keepdims=True)
    return Gradients(
        inv * (g - mean_g - z * mean_gz),
        (d * z).sum(axis=0),
        d.sum(axis=0),
        (
            inv * (x.shape[1] / 4 + 20) * rows.FP32 * size,
            sums * np.abs(d * z).sum(axis=0),
            sums * np.abs(d).sum(axis=0),
        ),
    )


MOST_OF_MANY = 20011
"""Columns of drawn problems with many rows."""


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Of rows off 0, whose statistics are those that the forward would save; sometimes very many short rows."""
    n, dtype = random.matrix()[1], signature["dtype"]
    m = random.one((0, 1, 3, 17, 40 * random.times)) if n <= MOST_OF_MANY else random.one(random.edges.few)
    if n < 100 and random.chance(0.3):
        m = 700  # every team of a block has several rows
    given = {"dy": random.normal(m, n, dtype=dtype), "x": random.normal(m, n, dtype=dtype)}
    x = given["x"]
    x[...] = (x.astype(np.float32) + 3).astype(x.dtype)
    wide, layer = x.astype(np.float64), operator.startswith("layernorm")
    given["gamma"] = random.normal(n, dtype=dtype)
    if layer:
        given["mean"] = wide.mean(axis=1).astype(np.float32)
        wide = wide - given["mean"][:, None]
    given["inv_std" if layer else "inv_rms"] = (1 / np.sqrt((wide**2).mean(axis=1) + 1e-5)).astype(np.float32)
    made = {"dx": random.blank(m, n, dtype=dtype), "dgamma": random.blank(n, dtype=dtype)}
    if signature.get("dbeta"):
        made["dbeta"] = random.blank(n, dtype=dtype)
    return Call(given, made, {"dx": "dy"} if random.chance(0.3) else {})
