# SPDX-License-Identifier: MIT
"""cross_entropy and its gradient in float64, and how far a kernel may be from them.

    lse = log(sum(exp(s)))    loss = lse - (1 - e) s[label] - e / total sum(s) + z lse^2    with s = logit_scale x
    dx = dloss logit_scale (exp(s - lse) (1 + 2 z lse) - e / total - (1 - e) [label])

(Szegedy et al., Rethinking the Inception Architecture, 2016, label smoothing; Chowdhery et al., PaLM, 2022, z-loss.)
A kernel computes in fp32, u = 2^-24. s and the difference d = s - max(s) are rounded, its product with log2(e) and
that number too, and exp adds 2^-23: an exponential is wrong by (|s| + 3 |d| + 4) u of itself, their sum of n terms in
at least sixteen parts, each part brought to a new maximum, by (n / 16 + 8) u more. With means over the softmax, lse is
wrong by

    w = (max |s| + 3 mean |d| + n / 16 + 16 + |lse|) u

and loss by w (1 + 2 |z lse|), and what its own terms are rounded by. The gradient is that of the given lse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature

Array = NDArray[Any]
LOST = 2.0**-118


class Losses(NamedTuple):
    """Of rows, in float64, and what arithmetic may lose of loss and lse."""

    loss: Array
    lse: Array
    loss_error: Array
    lse_error: Array


def _parts(
    logits: Array, labels: Array, logit_scale: float, ignore_index: int, first_class: int
) -> tuple[Array, Array, Array]:
    """s, which rows count, and where the label's class is (rows, classes)."""
    s = logits.astype(np.float64) * np.float64(np.float32(logit_scale))
    wanted = labels.astype(np.int64)[:, None] - first_class
    return s, labels != ignore_index, wanted == np.arange(logits.shape[1])


def cross_entropy(
    logits: Array,
    labels: Array,
    precomputed_lse: Array | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    first_class: int = 0,
    total_classes: int = 0,
) -> Losses:
    """logits (rows, classes), labels (rows); the other arguments are the operator's."""
    s, used, label = _parts(logits, labels, logit_scale, ignore_index, first_class)
    count = s.shape[1]
    with np.errstate(all="ignore"):
        greatest = s.max(axis=1)
        powers = np.exp(s - greatest[:, None])
        all_ = powers.sum(axis=1)
        far = np.where(powers > 0, np.abs(s - greatest[:, None]), 0)
        width = np.abs(greatest) + np.where(powers > 0, np.abs(s), 0).max(axis=1, initial=0)
        width = width + 3 * (powers * far).sum(axis=1) / all_ + count / 16 + 16
        lse = greatest + np.log(all_)
        width = (width + np.abs(lse)) * rows.FP32
        if precomputed_lse is not None:
            lse, width = precomputed_lse.astype(np.float64), np.zeros(len(s))
        own = np.where(label, s, 0).sum(axis=1)
        off, total = label_smoothing / (total_classes or count), 0.0 if label_smoothing == 0 else s.sum(axis=1)
        loss = lse - (1 - label_smoothing) * own - off * total + lse_square_scale * lse**2
        error = width * (1 + 2 * np.abs(lse_square_scale * lse))
        size = np.abs(lse) + np.abs(own) + np.abs(lse_square_scale) * lse**2
        error = error + rows.FP32 * (6 * size + (count / 16 + 12) * off * np.abs(s).sum(axis=1))
    kept = [np.where(used, one, 0.0) for one in (loss, lse, error, width)]
    return Losses(*kept)


def excess(made: Any, right: Losses) -> float:
    """made: (loss, lse). The largest error over its bound; at most 1 is right."""
    loss, lse = made
    # Values near the overflow of fp32 could round to either side of it; the logits tested are far from there.
    return max(rows.excess(loss, right.loss, right.loss_error), rows.excess(lse, right.lse, right.lse_error))


def gradient(
    dloss: Array,
    logits: Array,
    labels: Array,
    lse: Array,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    first_class: int = 0,
    total_classes: int = 0,
) -> tuple[Array, Array]:
    """dlogits, and what arithmetic may lose of it."""
    s, used, label = _parts(logits, labels, logit_scale, ignore_index, first_class)
    off = label_smoothing / (total_classes or s.shape[1])
    with np.errstate(all="ignore"):
        far = s - lse.astype(np.float64)[:, None]
        by = 1 + 2 * lse_square_scale * lse.astype(np.float64)[:, None]
        power = np.exp(far) * by
        weight = dloss.astype(np.float64)[:, None] * logit_scale
        right = weight * (power - off - (1 - label_smoothing) * label)
        units = (np.abs(s) + 3 * np.abs(far) + 10) * np.abs(power) + 6 * (off + label)
        units = np.where(power == 0, 6 * (off + label), units)
        error = np.abs(weight) * (units * rows.FP32 + LOST)
    return np.where(used[:, None], right, 0.0), np.where(used[:, None], error, 0.0)


def gradient_excess(dlogits: Array, *given: Any, **options: Any) -> float:
    """As `excess`; given and options are those of `gradient`."""
    return rows.excess(dlogits, *gradient(*given, **options))


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"label_smoothing": 0.1},
    {"logit_scale": -0.7, "label_smoothing": 0.2, "lse_square_scale": 1e-2, "total_classes": 50000},
    {"first_class": 2, "logit_scale": 0.5},
)
"""Of a drawn call; total_classes: more than there are here."""
VOCABULARY = 128256


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Logits of one magnitude or another; labels of which some are ignored and some are classes elsewhere."""
    m, n = random.matrix()
    if random.times > 1 and random.chance(0.1):
        m, n = random.one(random.edges.few), VOCABULARY
    logits = random.normal(m, n, dtype=signature["dtype"], scale=random.one((1.0, 4.0, 30.0)))
    labels = random.numbers.integers(0, n, m).astype(random.one((np.int32, np.int64)))
    labels[2::3], labels[3::4] = -100, n + 5
    settings = dict(random.one(SETTINGS))
    if "total_classes" in settings:
        settings["total_classes"] += n
    lse = cross_entropy(logits, labels, **settings).lse.astype(np.float32)
    if operator == "cross_entropy":
        known = {"precomputed_lse": lse} if random.chance(0.2) else {}
        made = {name: random.blank(m, dtype="fp32") for name in ("loss", "lse")}
        return Call({"logits": logits, "labels": labels, **known, **settings}, made)
    given = {"dloss": random.normal(m, dtype="fp32"), "logits": logits, "labels": labels, "lse": lse}
    over = {"dlogits": "logits"} if random.chance(0.3) else {}
    return Call({**given, **settings}, {"dlogits": random.blank(m, n, dtype=signature["dtype"])}, over)
