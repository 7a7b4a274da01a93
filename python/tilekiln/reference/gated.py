# SPDX-License-Identifier: MIT
"""silu_and_mul, gelu_and_mul and their gradients in float64, and how far a kernel may be from them.

    y = a(g) u    dg = dy u a'(g)    du = dy a(g)
    silu       a = g s, a' = s (1 + g (1 - s))                          with s = 1 / (1 + exp(-g))
    gelu       a = g F, a' = F + g exp(-g^2 / 2) / sqrt(2 pi)           with F = (1 + erf(g / sqrt(2))) / 2
    gelu_tanh  a = g s, a' = s + g s (1 - s) t'                         with s of t = sqrt(8 / pi) (g + 0.044715 g^3)

(Shazeer, GLU Variants Improve Transformer, 2020.) A kernel computes in fp32, u = 2^-24: exp and the rounding of its
argument t (g of silu) make s wrong by (4 + |t|) u of itself at most, and each product adds one; the difference 1 - s
errs by that of s. Rounding of t itself adds 3 |t| u. F is off by erf's 7.5e-8, and 12 u. With out and tiny as in
`rows`, w = (12 + 2 |g|) u of silu, (16 + 4 |t|) u of gelu_tanh and (16 + g^2) u of gelu:

    |y - reference| <= out |reference| + |u| (w |a| + e |g|) + tiny                     e = 8e-8 of gelu, else 0
    |dg - reference| <= out |reference| + |dy u| (w b + e) + tiny    b: a' with |g| for g, each term above 0

What is below 2^-80 may be lost.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature

Array = NDArray[Any]
LOST = 2.0**-80
SHARE = 8e-8
"""Error of F, by that of erf."""
_erfc = np.frompyfunc(math.erfc, 1, 1)


class Parts(NamedTuple):
    """a and a' of gates, their errors but for the rounding of results, and what these are shares of."""

    value: Array
    slope: Array
    value_error: Array
    slope_error: Array


def _parts(gate: Array, activation: str) -> Parts:
    """The limit at -infinity is 0."""
    g = gate.astype(np.float64)
    with np.errstate(all="ignore"):
        if activation == "gelu":
            s, share = _erfc(-g / np.sqrt(2)).astype(np.float64) / 2, SHARE
            rise = np.where(np.isinf(g), 0.0, g * np.exp(-g * g / 2) / np.sqrt(2 * np.pi))
            width = 16 + np.minimum(g * g, 200)
        else:
            t = g if activation == "silu" else np.sqrt(8 / np.pi) * (g + 0.044715 * g**3)
            steep = 1.0 if activation == "silu" else np.sqrt(8 / np.pi) * (1 + 3 * 0.044715 * g * g)
            s, share = np.where(np.isnan(g), np.nan, 1 / (1 + np.exp(-t))), 0.0
            # (1 - s) of s, which is 1 - 1 where t is large.
            rise = np.where(np.isinf(g), 0.0, g * s / (1 + np.exp(t)) * steep)
            width = 12 + 2 * np.abs(t) if activation == "silu" else 16 + 4 * np.minimum(np.abs(t), 200)
        value = np.where(np.isneginf(g), 0.0, g * s)
        width = width * rows.FP32
        lost = width * (np.abs(value) if activation == "silu" else np.abs(rise))
        return Parts(
            value,
            s + rise,
            width * np.abs(value) + np.where(np.isinf(g), 0, share * np.abs(g)),
            width * s + lost + share,
        )


def gated(gate: Array, up: Array, activation: str = "silu") -> Array:
    """gate, up (rows, columns); activation: silu, gelu or gelu_tanh."""
    with np.errstate(invalid="ignore"):
        return np.asarray(_parts(gate, activation).value * up.astype(np.float64))


def excess(y: Array, gate: Array, up: Array, activation: str = "silu") -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is finite and the other is not."""
    right, u = gated(gate, up, activation), np.abs(up.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return rows.excess(y, right, _parts(gate, activation).value_error * u + LOST * (1 + u))


def gradients(dy: Array, gate: Array, up: Array, activation: str = "silu") -> tuple[Array, Array]:
    """dgate and dup; arrays (rows, columns), finite."""
    parts, d = _parts(gate, activation), dy.astype(np.float64)
    return d * up.astype(np.float64) * parts.slope, d * parts.value


def gradient_excess(dgate: Array, dup: Array, dy: Array, gate: Array, up: Array, activation: str = "silu") -> float:
    """As `excess`, of both gradients."""
    parts, d = _parts(gate, activation), np.abs(dy.astype(np.float64))
    of_gate, of_up = gradients(dy, gate, up, activation)
    size = d * np.abs(up.astype(np.float64))
    first = rows.excess(dgate, of_gate, parts.slope_error * size + LOST * (1 + size))
    return max(first, rows.excess(dup, of_up, parts.value_error * d + LOST * (1 + d)))


def activation_of(operator: str, given: Any) -> str:
    """Name of a call's activation."""
    return "silu" if "silu" in operator else "gelu_tanh" if given.get("approximate") == "tanh" else "gelu"


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Gates of one magnitude or another; y over gate, or the gradients over gate and up."""
    dtype, (m, n) = signature["dtype"], random.matrix()
    given: dict[str, Any] = {
        "gate": random.normal(m, n, dtype=dtype, scale=random.one((1.0, 20.0))),
        "up": random.normal(m, n, dtype=dtype),
    }
    over = {"y": "gate"}
    if operator.endswith("_bwd"):
        given = {"dy": random.normal(m, n, dtype=dtype), **given}
        over = {"dgate": "gate", "dup": "up"}
    if "approximate" in signature:
        given["approximate"] = signature["approximate"]
    made = {name: random.blank(m, n, dtype=dtype) for name in over}
    return Call(given, made, over if random.chance(0.3) else {})
