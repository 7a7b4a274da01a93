# SPDX-License-Identifier: MIT
"""Errors of attention and its gradients as shares of their bounds, whatever device made them.

AssertionError: something was written that must stay untouched, or a random byte differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .attention import Result
from .backward import Gradients
from .tolerance import Tolerance, has_tiles

POISON = 0xA5  # fills every output before a call: rows that must stay untouched must still hold it after


def still_poison(array: np.ndarray) -> bool:
    """Does every byte still hold POISON?"""
    return bool(np.all(np.ascontiguousarray(array).view(np.uint8) == POISON))


def share(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> float:
    """The largest |got - expected| / bound; equal infinities are right, anything else that is not finite is not."""
    got = got.astype(np.float64)
    same = got == expected
    error = np.where(same, 0.0, np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, expected)))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio), initial=0.0))


def of_touched(name: str, got: np.ndarray, expected: np.ndarray, bound: np.ndarray, touched: np.ndarray) -> float:
    """As share, where a call writes."""
    assert still_poison(got[~touched]), f"{name} was written where it must stay untouched"
    return share(got[touched], expected[touched], bound[touched])


def random_bytes(got: np.ndarray, expected: np.ndarray | None) -> None:
    assert expected is not None
    drawn = expected >= 0
    assert np.array_equal(got[drawn], expected[drawn]), "randval differs"
    assert still_poison(got[~drawn]), "randval was written where no byte belongs"


def excess(bound: Tolerance, expected: Result, made: dict[str, np.ndarray], layout: str, more: Any = 0.0) -> float:
    """Of out, and lse and random bytes where they were made.

    layout: of out; lse lies as in the reference. more: further term of out's bound, of its shape or a number.
    """
    rows = expected.touched if layout == "bhsd" else np.swapaxes(expected.touched, -1, -2)
    by_tiles = "lse" not in made and has_tiles()
    worst = of_touched("out", made["out"], expected.out, bound.out_bound(expected, by_tiles) + more, rows)
    if "lse" in made:
        worst = max(worst, of_touched("lse", made["lse"], expected.lse, bound.lse_bound(expected), expected.touched))
    if "randval" in made:
        random_bytes(made["randval"], expected.randval)
    return worst


def gradient_excess(bound: Tolerance, expected: Gradients, made: dict[str, np.ndarray], reach: float = 0.0) -> float:
    """Of the gradients that were made, and of delta.

    reach: further error of a gradient but that of sinks, times the largest of its terms' factors.
    """
    worst = 0.0
    for name in ("dq", "dk", "dv", "dbias", "d_sink"):
        if name not in made:
            continue
        gradient = getattr(expected, name)
        limit = (bound.of_sink() if name == "d_sink" else bound).gradient_bound(gradient)
        if reach and name != "d_sink":
            known = gradient.magnitude > 0
            factors = np.divide(gradient.spread, gradient.magnitude, out=np.zeros_like(gradient.value), where=known)
            limit = limit + reach * factors
        worst = max(worst, of_touched(name, made[name], gradient.value, limit, gradient.touched))
    known = ~np.isnan(expected.delta)
    size = 1e-5 * max(1.0, float(np.max(np.abs(expected.delta[known]), initial=0.0)))
    return max(worst, of_touched("delta", made["delta"], expected.delta, np.full(known.shape, size), known))
