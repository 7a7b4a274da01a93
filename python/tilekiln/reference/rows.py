# SPDX-License-Identifier: MIT
"""Common parts of the references of row operators: roundoff by dtype, the sum with a residual, distances.

u = 2^-24 is fp32's unit roundoff. A kernel sums the n elements of a row in fp32 in at least four parts, so the relative
error of a sum of magnitudes is below (n / 4 + 4) u.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature

FP32 = 2.0**-24
OUT = {"float32": (2.0**-24, 2.0**-126), "float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-126)}
"""By dtype: the unit roundoff, and tiny: half the smallest number of fp16, the smallest normal one of fp32 and bf16."""


def with_residual(x: NDArray[np.generic], residual: NDArray[np.generic] | None) -> NDArray[np.generic] | None:
    """x + residual, rounded to the dtype of x; None without a residual."""
    if residual is None:
        return None
    return (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)


def excess(y: NDArray[np.generic], reference: NDArray[np.float64], error: NDArray[np.float64], out: float = 1) -> float:
    """The largest |y - reference| / (out roundoffs of y's dtype |reference| + error + tiny); at most 1 is right.

    error, shape of y: what arithmetic in fp32 may lose. Infinite where the reference is NaN or infinite and y is not
    the same, and where y alone is.
    """
    roundoff, tiny = OUT[y.dtype.name]
    got = y.astype(np.float64)
    good = np.isfinite(reference)
    if not (np.isfinite(got) == good).all() or not np.array_equal(got[~good], reference[~good], equal_nan=True):
        return float("inf")
    bound = out * roundoff * np.abs(reference[good]) + error[good] + tiny
    return float((np.abs(got[good] - reference[good]) / bound).max(initial=0.0))


def draw_norm(operator: str, random: Random, signature: Signature) -> Call:
    """Of rmsnorm2d, layernorm2d and what quantises them: x of one magnitude or another, sums and y in place or not."""
    m, n = random.matrix()
    dtype, adds, layer = signature["dtype"], signature["add"], operator.startswith("layernorm")
    given = {
        "x": random.normal(m, n, dtype=dtype, scale=random.one((1.0, 30.0))),
        "gamma": random.normal(n, dtype=dtype),
    }
    made, over = {"y": random.blank(m, n, dtype=signature.get("y_dtype", dtype))}, {}
    if signature.get("beta"):
        given["beta"] = random.normal(n, dtype=dtype)
    if adds != "none":
        given["residual"] = random.normal(m, n, dtype=dtype)
    if adds == "add_store":
        made["residual_out"] = random.blank(m, n, dtype=dtype)
        if random.chance(0.5):
            over["residual_out"] = "residual"
    elif "y_dtype" not in signature and random.chance(0.3):
        over["y"] = "x"
    if signature.get("save_rms") or signature.get("statistics") == "saved":
        made |= {name: random.blank(m, dtype="fp32") for name in (("mean", "inv_std") if layer else ("inv_rms",))}
    rounding = {} if layer else {"rounding": signature["rounding"]}
    return Call({**given, **rounding}, made, over)
