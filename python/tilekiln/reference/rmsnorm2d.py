"""RMS normalisation in float64, and how far a kernel may be from it.

    y = v / sqrt(mean(v^2) + epsilon) gamma    over the last dimension; v = x, or x + residual rounded to x's dtype

(Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, equation 4, with epsilon as PyTorch's rms_norm has it.)
With u = 2^-24, fp32's unit roundoff, a kernel sums n squares in fp32 in at least four parts: the relative error of the
sum is below (n / 4 + 4) u, that of 1 / sqrt(..) half of it and two roundings, and each of two products adds one. With
out, the unit roundoff of the dtype, and tiny, what may be lost near 0:

    |y - reference| <= (out + (n / 8 + 6) u) |reference| + tiny
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FP32 = 2.0**-24
OUT = {"float32": (2.0**-24, 2.0**-126), "float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-126)}
"""By dtype: the unit roundoff, and tiny: half the smallest number of fp16, the smallest normal one of fp32 and bf16."""


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
        total = None if residual is None else (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)
        v = (x if total is None else total).astype(np.float64)
        inverse = 1 / np.sqrt((v * v).mean(axis=1) + np.float64(np.float32(epsilon)))
        return Normalised(v * inverse[:, None] * gamma.astype(np.float64), total, inverse)


def excess(y: NDArray[np.generic], reference: NDArray[np.float64]) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is finite and the other is not."""
    out, tiny = OUT[y.dtype.name]
    got, columns = y.astype(np.float64), y.shape[1]
    if not (np.isfinite(got) == np.isfinite(reference)).all():
        return float("inf")
    good = np.isfinite(reference)
    bound = (out + (columns / 8 + 6) * FP32) * np.abs(reference[good]) + tiny
    return float((np.abs(got[good] - reference[good]) / bound).max(initial=0.0))
