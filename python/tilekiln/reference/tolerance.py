# SPDX-License-Identifier: MIT
"""Largest errors of kernels against the float64 reference, by dtype: stated here, once, for every test and the demo.

A kernel sums p_ij v_jd, so its rounding errors are relative to magnitude = sum_j |p_ij v_jd|, not to the sum itself,
which may cancel to nothing. A score is a sum too, of size score_size = scale sum_d |q_id k_jd| + |bias_ij|, and exp
turns its absolute error into a relative one of p. A soft cap adds the size of its result, whose rounding is some u of
it: the bound follows the score, not the cap. A sink logit is a score of size |sink|. `forward` returns both sizes. The
bounds, per element:

    |out - reference| <= out |reference| + (weight + score * score_size) magnitude + tiny + flushed
    |lse - reference| <= lse + score * score_size + 2^-22 |reference|

With u the unit roundoff, half the distance from 1 to the next number (2^-24 for fp32, 2^-11 for fp16, 2^-8 for bf16,
2^-4 for e4m3):

* out = u of the dtype of out: the result is rounded once, to nearest even.
* score = 2^-22 = 4 u_fp32: scores are summed in fp32 whatever the input; scaling, subtracting the maximum and the
  rounding of the maximum itself add u |s| each. A sum of hdim products counts (4 + sqrt(hdim)) / 8 times its terms'
  size where that is more: rounding errors of random signs add up to 0.23 sqrt(hdim) u of a sum whose terms are alike,
  as a row's largest scores are, and two such sums meet in s - m (Higham and Mary 2019, "A new approach to
  probabilistic rounding error analysis").
* weight = what else makes p wrong. fp32 and fp16: exp (8.3e-8), the running sum and the rescaling by exp(m - m') of
  earlier blocks, some u each: 2^-20 = 16 u_fp32. fp8fp32 too. bf16, fp8bf16 and those of FNUZ round p to bf16
  before it meets v, u_bf16 each, all to the same side at worst, and use a shorter exp (1.0e-4 = 2^-13.2): 2^-8 + 2^-12.
  Without an LSE, tiles of AMX make p of bf16 by a table, between -7.1e-3 and 7.3e-3 of it, and sum them as they are: a
  row whose sum errs to one side and one of its terms to the other is 1.44e-2 off that term, 1.05e-2 more (powers).
  Not in it: errors of one sign. Kernels sum 64 keys at a time, so that n keys whose weights and values are all alike
  drift by at most (64 + n / 64) u / 2 more, not by n u / 2 as a sum one by one does. (A decode of several key heads
  at once sums 1 to 8 at a time.)
* fp8 (e4m3 out of KV-cache kernels): as fp8bf16, with u = 2^-4 and tiny = 2^-10, half its smallest number.
* lse: the relative error of the sum of exponentials is an absolute one of its logarithm. Rounding of p takes no part in
  it: 2^-20, and 2^-12 with the shorter exp.
* tiny: the smallest subnormal of fp16, 2^-24; the smallest normal fp32 else, 2^-126, below which kernels may flush.
* flushed = 2^-126 gain (1 + sum_j |v_jd|) over the keys that the row sees: weights and sums below 2^-126 may become 0
  before their last factor, gain = 1 / (1 - dropout_p) times the descale of v, which multiplies what is missing too.

A gradient is a sum of terms p dout (dv), dS k (dq), dS q (dk), or one dS (dbias), with dS = p (dP - D). `backward`
returns three sizes of each (see `Gradient`), and the bound is

    |gradient - reference| <= out |reference| + weight magnitude + score (magnitude + score_size + spread) + tiny

* weight: as above, exp of p, and for bf16 the one rounding of p or dS before it meets dout, k or q; the soft cap's
  slope 1 - tanh^2 errs by 2 |tanh| times the error of tanh. p = exp(s - lse) has no running sum: lse is given.
* score magnitude: the sum over rows or keys and, for dk and dv, over the query heads of a group; fp32, in any order.
* score score_size: the error of s and of s - lse, which exp makes relative to p, term by term. Under a soft cap the
  slope has it too: its derivative, 2 |tanh| (1 - tanh^2) / softcap, times the size of the score.
* score spread: dP and D are sums over the head dim that are each as exact as their terms are large, and cancel. Under a
  soft cap what is left of them is multiplied with the slope as fp32 has it, 2^-20 more than it is (SLOPE_ERROR).
* d_sink sums exp(sink - lse) D in fp32: out of fp32 and, in place of weight, lse; the sizes as for the others.
* tiny: as above, but 2^-100 for fp32 and bf16: what p loses below 2^-126 is multiplied with inputs and summed.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import Result
from .backward import Gradient, Gradients

SCORE = 2.0**-22
FLUSHED = 2.0**-126  # the smallest normal fp32
TINY_TERMS = 2.0**-100  # what flushed terms may add up to


@dataclass(frozen=True)
class Tolerance:
    """Error bounds of one dtype; see the module."""

    out: float
    weight: float
    lse: float
    tiny: float
    powers: float = 0.0
    """Of p, more than `weight`, in a forward without an LSE by tiles of AMX."""

    def out_bound(self, reference: Result, by_tiles: bool = False) -> NDArray[np.float64]:
        """The largest allowed |out - reference.out| of each element; NaN in untouched rows."""
        size = reference.score_size if reference.layout == "bhsd" else np.swapaxes(reference.score_size, -1, -2)
        weight = self.weight + (self.powers if by_tiles else 0.0) + SCORE * size[..., None]
        tiny = self.tiny + FLUSHED * reference.flushed
        return np.asarray(self.out * np.abs(reference.out) + weight * reference.magnitude + tiny)

    def lse_bound(self, reference: Result) -> NDArray[np.float64]:
        """The largest allowed |lse - reference.lse| of each element; infinite ones must be equal."""
        bound = self.lse + SCORE * (reference.score_size + np.abs(reference.lse))
        return np.where(np.isfinite(reference.lse), bound, 0.0)

    def gradient_bound(self, gradient: Gradient) -> NDArray[np.float64]:
        """The largest allowed |gradient - gradient.value| of each element."""
        sizes = gradient.magnitude + gradient.score + gradient.spread
        tiny = max(self.tiny, TINY_TERMS)
        return np.asarray(self.out * np.abs(gradient.value) + self.weight * gradient.magnitude + SCORE * sizes + tiny)

    def of_sink(self) -> "Tolerance":
        """The bounds of d_sink, which is fp32 and never rounded to the dtype on its way."""
        return Tolerance(out=2.0**-24, weight=self.lse, lse=self.lse, tiny=2.0**-126)


TOLERANCE = {  # by the value of the dtype axis
    "fp32": Tolerance(out=2.0**-24, weight=2.0**-20, lse=2.0**-20, tiny=2.0**-126),
    "fp16": Tolerance(out=2.0**-11, weight=2.0**-20, lse=2.0**-20, tiny=2.0**-24),
    "bf16": Tolerance(out=2.0**-8, weight=2.0**-8 + 2.0**-12, lse=2.0**-12, tiny=2.0**-126, powers=1.05e-2),
    "fp8bf16": Tolerance(out=2.0**-8, weight=2.0**-8 + 2.0**-12, lse=2.0**-12, tiny=2.0**-126, powers=1.05e-2),
    "fp8fnuzbf16": Tolerance(out=2.0**-8, weight=2.0**-8 + 2.0**-12, lse=2.0**-12, tiny=2.0**-126),
    "bf8fnuzbf16": Tolerance(out=2.0**-8, weight=2.0**-8 + 2.0**-12, lse=2.0**-12, tiny=2.0**-126),
    "fp8": Tolerance(out=2.0**-4, weight=2.0**-8 + 2.0**-12, lse=2.0**-12, tiny=2.0**-10),
    "fp8fp32": Tolerance(out=2.0**-24, weight=2.0**-20, lse=2.0**-20, tiny=2.0**-126),
}


_bounds: Mapping[str, Tolerance] = TOLERANCE


@contextlib.contextmanager
def judged_by(bounds: Mapping[str, Tolerance]) -> Iterator[None]:
    """Has `excess` and `gradient_excess` go by the bounds of another device meanwhile."""
    global _bounds
    before, _bounds = _bounds, bounds
    try:
        yield
    finally:
        _bounds = before


@functools.cache
def has_tiles() -> bool:
    """Whether this machine has AMX, so that tiles may have answered a call."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        return any(line.startswith("flags") and "amx_bf16" in line.split() for line in lines)
    return False


def excess(dtype: str, reference: Result, out: Any, lse: Any = None) -> float:
    """The worst error as a share of its bound: a correct kernel gives <= 1. NaN or a wrong infinity gives inf.

    dtype: a value of the dtype axis. out, lse: NumPy arrays as the kernel wrote them; untouched rows are not looked at.
    """
    bound = _bounds[dtype]
    rows = reference.touched if reference.layout == "bhsd" else np.swapaxes(reference.touched, -1, -2)
    worst = _worst(out, reference.out, bound.out_bound(reference, lse is None and has_tiles()), rows)
    if lse is not None:
        worst = max(worst, _worst(lse, reference.lse, bound.lse_bound(reference), reference.touched))
    return worst


def gradient_excess(dtype: str, reference: Gradients, **made: Any) -> float:
    """As `excess`, for gradients as the kernel wrote them, by name: dq, dk, dv, dbias, d_sink."""
    bound = _bounds[dtype]
    worst = 0.0
    for name, array in made.items():
        gradient = getattr(reference, name)
        limit = (bound.of_sink() if name == "d_sink" else bound).gradient_bound(gradient)
        worst = max(worst, _worst(array, gradient.value, limit, gradient.touched))
    return worst


def _worst(result: Any, expected: NDArray[np.float64], limit: NDArray[np.float64], rows: NDArray[np.bool_]) -> float:
    result, expected, limit = np.asarray(result)[rows].astype(np.float64), expected[rows], limit[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(result - expected) / limit
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    return float(np.max(error, initial=0.0))
