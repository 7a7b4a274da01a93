# SPDX-License-Identifier: MIT
"""RMS normalisation in float64, and how far a kernel may be from it.

    y = v / sqrt(mean(v^2) + epsilon) gamma    over the last dimension; v = x, or x + residual rounded to x's dtype

(Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, equation 4, with epsilon as PyTorch's rms_norm has it.)
With u, out and tiny as in `rows`: the sum of squares errs by (n / 4 + 4) u, 1 / sqrt(..) by half of that and two
roundings, and each of two products adds one:

    |y - reference| <= (out + (n / 8 + 6) u) |reference| + tiny

A kernel that rounds v / sqrt(..) to the dtype of x before it is multiplied (rounding="transformers") has 2 out, and
tiny |gamma| beside: the rounding of a subnormal number of fp16 is not bounded by out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows


class Normalised(NamedTuple):
    """y and inv_rms (rows), float64; residual_out in the dtype of x, None without a residual."""

    y: NDArray[np.float64]
    residual_out: NDArray[np.generic] | None
    inv_rms: NDArray[np.float64]


def rmsnorm2d(
    x: NDArray[np.generic],
    gamma: NDArray[np.generic],
    residual: NDArray[np.generic] | None = None,
    epsilon: float = 1e-6,
) -> Normalised:
    """x, residual (rows, columns), gamma (columns); epsilon is taken as fp32 has it."""
    with np.errstate(all="ignore"):
        total = rows.with_residual(x, residual)
        v = (x if total is None else total).astype(np.float64)
        inverse = 1 / np.sqrt((v * v).mean(axis=1) + np.float64(np.float32(epsilon)))
        return Normalised(v * inverse[:, None] * gamma.astype(np.float64), total, inverse)


def inexact(columns: int) -> float:
    """Relative error of 1 / sqrt(..) times two factors, and the more so of 1 / sqrt(..) alone."""
    return (columns / 8 + 6) * rows.FP32


def loss(reference: NDArray[np.float64], dtype: str, rounding: str, gamma: NDArray[np.generic]) -> NDArray[np.float64]:
    """Largest error of y in x's dtype, beside its own rounding; reference (rows, columns), gamma (columns)."""
    error: NDArray[np.float64] = inexact(reference.shape[1]) * np.abs(reference)
    if rounding == "transformers":
        roundoff, tiny = rows.OUT[dtype]
        error = error + roundoff * np.abs(reference) + tiny * np.abs(gamma.astype(np.float64))
    return error


def excess(
    y: NDArray[np.generic],
    reference: NDArray[np.float64],
    rounding: str = "pytorch",
    gamma: NDArray[np.generic] | None = None,
) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is finite and the other is not.

    gamma (columns): of the call, for rounding="transformers".
    """
    if rounding == "transformers" and gamma is None:
        raise ValueError("gamma: was None, must be that of the call: rounding='transformers' errs by a part of it")
    factors = np.zeros(y.shape[1]) if gamma is None else gamma
    return rows.excess(y, reference, loss(reference, y.dtype.name, rounding, factors))


draw = rows.draw_norm
