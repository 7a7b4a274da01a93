"""Errors of attention and its gradients as shares of their bounds, whatever device made them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tilekiln import reference
from tilekiln.reference.tolerance import Tolerance

from tests.python.problems import still_poison


def share(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> float:
    """The largest |got - expected| / bound; equal infinities are right, anything else that is not finite is not."""
    got = got.astype(np.float64)
    same = got == expected
    error = np.where(same, 0.0, np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, expected)))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio), initial=0.0))


def excess(
    bound: Tolerance, expected: reference.Result, made: dict[str, np.ndarray], layout: str, more: Any = 0.0
) -> float:
    """Of out, and lse where it was made; infinity where a row must stay untouched and was not.

    layout: of out; lse lies as in the reference. more: further term of out's bound, of its shape or a number.
    """
    rows = expected.touched if layout == "bhsd" else np.swapaxes(expected.touched, -1, -2)
    judged = [("out", expected.out, bound.out_bound(expected) + more, rows)]
    if "lse" in made:
        judged.append(("lse", expected.lse, bound.lse_bound(expected), expected.touched))
    worst = 0.0
    for name, value, limit, touched in judged:
        if not still_poison(made[name][~touched]):
            return np.inf
        worst = max(worst, share(made[name][touched], value[touched], limit[touched]))
    return worst


def gradient_excess(
    bound: Tolerance, expected: reference.Gradients, made: dict[str, np.ndarray], reach: float = 0.0
) -> float:
    """Of the gradients that were made, and of delta; infinity where something must stay untouched and was not.

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
        touched = gradient.touched
        if not still_poison(made[name][~touched]):
            return np.inf
        worst = max(worst, share(made[name][touched], gradient.value[touched], limit[touched]))
    known = ~np.isnan(expected.delta)
    if not still_poison(made["delta"][~known]):
        return np.inf
    size = 1e-5 * max(1.0, float(np.max(np.abs(expected.delta[known]), initial=0.0)))
    return max(worst, share(made["delta"][known], expected.delta[known], np.full(int(known.sum()), size)))
