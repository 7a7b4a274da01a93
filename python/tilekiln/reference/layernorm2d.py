# SPDX-License-Identifier: MIT
"""Layer normalisation in float64, and how far a kernel may be from it.

    y = (v - mean(v)) / sqrt(variance(v) + epsilon) gamma + beta

over the last dimension; v = x, or x + residual rounded to x's dtype

(Ba, Kiros and Hinton, Layer Normalization, 2016, with epsilon as PyTorch's layer_norm has it; the variance is divided
by the number n of columns.) With u and out as in `rows` and z = (v - mean) / sqrt(variance + epsilon): a kernel takes
deviations from a number at most 2.3 standard deviations off the mean, or off it by what fp32 lacks, s of them:

    s = (n / 4 + 4) u max |v| / sqrt(variance + epsilon)

Deviations are exact to u, their sum and that of their squares to (n / 4 + 4) u of the sum of magnitudes. So

    |y - reference| <= out |reference| + (n + 10) u (|z| + 1 + s) |gamma| + 2 u |beta| + tiny

The mean is off by (n / 4 + 6) u of the mean of |v|, and 1 / sqrt(..) by (n + 10) u (1 + s) of itself.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows


class Normalised(NamedTuple):
    """y, mean, inv_std (rows), and the error that each may have, y beside its rounding; residual_out as rmsnorm2d's."""

    y: NDArray[np.float64]
    residual_out: NDArray[np.generic] | None
    mean: NDArray[np.float64]
    inv_std: NDArray[np.float64]
    error: NDArray[np.float64]
    mean_error: NDArray[np.float64]
    inv_std_error: NDArray[np.float64]


def layernorm2d(
    x: NDArray[np.generic],
    gamma: NDArray[np.generic],
    beta: NDArray[np.generic] | None = None,
    residual: NDArray[np.generic] | None = None,
    epsilon: float = 1e-5,
) -> Normalised:
    """x, residual (rows, columns), gamma, beta (columns); epsilon is taken as fp32 has it."""
    with np.errstate(all="ignore"):
        total = rows.with_residual(x, residual)
        v = (x if total is None else total).astype(np.float64)
        mean = v.mean(axis=1, keepdims=True)
        inverse = 1 / np.sqrt(((v - mean) ** 2).mean(axis=1, keepdims=True) + np.float64(np.float32(epsilon)))
        z, factor = (v - mean) * inverse, gamma.astype(np.float64)
        offset = np.zeros_like(factor) if beta is None else beta.astype(np.float64)
        columns = x.shape[1]
        away = (columns / 4 + 4) * rows.FP32 * np.abs(v).max(axis=1, keepdims=True) * inverse
        error = (columns + 10) * rows.FP32 * (np.abs(z) + 1 + away) * np.abs(factor)
        error = error + 2 * rows.FP32 * np.abs(offset)
        mean_error = (columns / 4 + 6) * rows.FP32 * np.abs(v).mean(axis=1)
        inv_std_error = ((columns + 10) * rows.FP32 * (1 + away) * inverse)[:, 0]
        return Normalised(z * factor + offset, total, mean[:, 0], inverse[:, 0], error, mean_error, inv_std_error)


def excess(y: NDArray[np.generic], right: Normalised) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is finite and the other is not."""
    return rows.excess(y, right.y, right.error)


draw = rows.draw_norm
