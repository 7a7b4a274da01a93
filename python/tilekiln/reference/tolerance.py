"""How far a kernel may be from the float64 reference, by dtype: stated here, once, for every test and the demo.

A kernel sums p_ij v_jd, so its rounding errors are relative to magnitude = sum_j |p_ij v_jd| (which `forward` returns),
not to the sum itself, which may cancel to nothing. With u = 2^-(mantissa bits + 1), the unit roundoff:

    |out - reference| <= u_out |reference| + weight * magnitude + tiny
    |lse - reference| <= lse * max(1, |reference|)

* u_out: the result is rounded once, to nearest even. For fp16 the smallest subnormal (2^-24) is added.
* weight: the relative error of one p_ij.
  fp32 and fp16 compute in fp32: a score of size |s| is a sum of hdim products and errs by some
  u_fp32 (|s| + sqrt(hdim)), which exp turns into a relative error of p; exp itself adds
  7.5e-8. 2^-18 = 64 u_fp32 holds for |s| up to about 30.
  bf16 and fp8 round p to bf16 before it meets v (2^-9 each, always to the same side at worst) and use a shorter
  exp (7.5e-5 = 2^-13.7). 2^-8 allows both and the double rounding of the result.
* lse: the same relative error of a sum is an absolute error of its logarithm; nothing is rounded to bf16 there, which
  leaves the exp: 2^-12 for bf16 and fp8.

Scores far larger than 30 need a wider weight, in proportion: `scores` is the largest |score| of the test.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import Result


@dataclass(frozen=True)
class Tolerance:
    """Error bounds of one dtype; see the module."""

    out: float
    weight: float
    lse: float
    tiny: float

    def out_bound(self, reference: Result, scores: float = 30.0) -> NDArray[np.float64]:
        """The largest allowed |out - reference.out| of each element."""
        weight = self.weight + 2.0**-23 * max(0.0, scores - 30.0)
        return np.asarray(self.out * np.abs(reference.out) + weight * reference.magnitude + self.tiny)

    def lse_bound(self, reference: Result, scores: float = 30.0) -> NDArray[np.float64]:
        """The largest allowed |lse - reference.lse| of each element; infinite scores must be equal."""
        lse = self.lse + 2.0**-23 * max(0.0, scores - 30.0)
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(reference.lse), lse * np.maximum(1.0, np.abs(reference.lse)), 0.0)


# By the value of the dtype axis. 2^-126 is the smallest normal fp32: kernels may flush below it.
TOLERANCE = {
    "fp32": Tolerance(out=2.0**-24, weight=2.0**-18, lse=2.0**-18, tiny=2.0**-126),
    "fp16": Tolerance(out=2.0**-11, weight=2.0**-18, lse=2.0**-18, tiny=2.0**-24),
    "bf16": Tolerance(out=2.0**-9, weight=2.0**-8, lse=2.0**-12, tiny=2.0**-126),
    "fp8bf16": Tolerance(out=2.0**-9, weight=2.0**-8, lse=2.0**-12, tiny=2.0**-126),
    "fp8fp32": Tolerance(out=2.0**-24, weight=2.0**-8, lse=2.0**-12, tiny=2.0**-126),
}


def excess(dtype: str, reference: Result, out: Any, lse: Any = None, scores: float = 30.0) -> float:
    """The worst error as a share of its bound: a correct kernel gives <= 1. NaN or a wrong infinity gives inf.

    dtype: a value of the dtype axis. out, lse: NumPy arrays as the kernel wrote them; untouched rows are not looked at.
    scores: the largest |score| of the problem, where it is beyond 30.
    """
    bound = TOLERANCE[dtype]
    rows = reference.touched if reference.layout == "bhsd" else np.swapaxes(reference.touched, -1, -2)
    worst = _worst(out, reference.out, bound.out_bound(reference, scores), rows)
    if lse is not None:
        worst = max(worst, _worst(lse, reference.lse, bound.lse_bound(reference, scores), reference.touched))
    return worst


def _worst(result: Any, expected: NDArray[np.float64], limit: NDArray[np.float64], rows: NDArray[np.bool_]) -> float:
    result, expected, limit = np.asarray(result)[rows].astype(np.float64), expected[rows], limit[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(result - expected) / limit
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    return float(np.max(error, initial=0.0))
