# SPDX-License-Identifier: MIT
"""Rows quantised each with a scale of its own: what they must be near to.

    scale = max |v| / largest of each row, q = v / scale rounded to nearest even    largest: int8 127, fp8 (e4m3) 448

(The dynamic quantisation of CK's smoothquant and add_rmsnorm2d_rdquant.) So q scale is v to half a step of q: of int8
0.5 scale, of fp8 2^-4 |v| where q is normal and 2^-10 scale below. Rows of zeros, or of magnitudes below 2^-100, have
scale 0 and zeros; rows that hold a NaN or an infinity have scale NaN and zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
LEAST = 2.0**-100


def scales(v: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """scale of each row of v (..., columns)."""
    most = np.abs(v).max(axis=-1)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(most), np.where(most < LEAST, 0, most / LARGEST[dtype]), np.nan)


def excess(
    q: NDArray[np.generic], scale: NDArray[np.float32], v: NDArray[np.float64], error: NDArray[np.float64]
) -> float:
    """The largest error of scale and of q scale over its bound; at most 1 is right.

    v (..., columns): the rows before quantisation, finite; error, its shape: what arithmetic in fp32 may lose of them.
    Infinite where a row without scale has another q than 0.
    """
    right = scales(v, q.dtype.name)
    if (q.astype(np.float64)[right == 0] != 0).any() or (scale[right == 0] != 0).any():
        return float("inf")
    made = scale.astype(np.float64)
    worst = error.max(axis=-1) / LARGEST[q.dtype.name] + 4 * rows.FP32 * right + 2.0**-140
    of_scale = (np.abs(made - right) / worst).max(initial=0.0)
    step = made[..., None] * (0.5 if q.dtype.name == "int8" else 2.0**-10)
    if q.dtype.name != "int8":
        step = np.maximum(step, 2.0**-4 * np.abs(v))
    bound = step * (1 + 2.0**-12) + 2 * error + 4 * rows.FP32 * np.abs(v)
    distance = np.abs(q.astype(np.float64) * made[..., None] - v)[right != 0]
    return float(np.max([of_scale, (distance / bound[right != 0]).max(initial=0.0)]))  # NaN where either is


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """A quantised norm, or x and factors; of moe_smoothquant, with experts that are elsewhere."""
    if operator.endswith("rdquant"):
        call = rows.draw_norm(operator, random, signature)
        m, n = call.given["x"].shape
        if signature["smooth"]:
            call.given["smooth_scale"] = random.numbers.random(n, np.float32) + np.float32(0.5)
        if signature["unquantised"]:
            call.made["unquantised"] = random.blank(m, n, dtype=signature["dtype"])
        return call._replace(made=call.made | {"y_scale": random.blank(m, dtype="fp32")})
    m, n = random.matrix()
    given = {"x": random.normal(m, n, dtype=signature["dtype"])}
    first: tuple[int, ...] = ()
    if operator == "smoothquant":
        given["smooth_scale"] = random.normal(n, dtype="fp32")
    else:
        experts, topk = random.one((1, 2, 5)), random.whole(1, 3)
        given["smooth_scale"] = random.normal(experts, n, dtype="fp32")
        given["topk_ids"] = random.numbers.integers(-1, experts + 1, (m, topk)).astype(np.int32)
        first = (topk,)
    made = {
        "y": random.blank(*first, m, n, dtype=signature["y_dtype"]),
        "y_scale": random.blank(*first, m, dtype="fp32"),
    }
    return Call(given, made)
