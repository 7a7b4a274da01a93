# SPDX-License-Identifier: MIT
"""topk_gating in float64, and how far a kernel's choice and weights are from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature
from .softmax import softmax

Float = NDArray[np.float64]
LOWEST, U = -3.4028234663852886e38, 2.0**-24
MORE = 1e-20
"""Addend of the sum that weights are divided by."""


def scores(x: NDArray[Any], score: str = "softmax") -> Float:
    """Weights and experts chosen from logits (tokens, experts); a row without a choice is NaN."""
    wide = x.astype(np.float64)
    if score == "softmax":
        return softmax(x)
    with np.errstate(over="ignore", invalid="ignore"):
        if score == "sigmoid":
            made = 1 / (1 + np.exp(-wide))
        else:
            made = np.sqrt(np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide))))
    made[~np.isfinite(made).all(axis=1)] = np.nan
    return made


def keys_of(made: Float, bias: NDArray[np.float32] | None) -> Float:
    """The numbers that experts are chosen by."""
    keys = made if bias is None else made + bias.astype(np.float64)
    keys = np.where(np.isnan(keys).any(axis=1, keepdims=True), np.nan, keys)
    return np.maximum(keys, LOWEST)


def _of_groups(keys: Float, groups: int, group_score: str) -> Float:
    """The keys of groups (tokens, groups)."""
    apart = np.sort(keys.reshape(len(keys), groups, keys.shape[1] // groups), axis=2)
    if group_score == "largest" or apart.shape[2] == 1:
        return np.asarray(apart[:, :, -1])
    with np.errstate(over="ignore"):
        both: Float = np.maximum(apart[:, :, -2:].sum(axis=2), LOWEST)
    return both


def topk_gating(
    x: NDArray[Any],
    topk: int = 1,
    *,
    bias: NDArray[np.float32] | None = None,
    score: str = "softmax",
    groups: int = 1,
    topk_groups: int = 1,
    group_score: str = "two",
    renormalise: bool = False,
    scaling: float = 1.0,
    shared: int = 0,
    shared_weight: float = 1.0,
) -> tuple[Float, NDArray[np.int32]]:
    """(weights, indices), each (tokens, topk + shared), of logits (tokens, experts)."""
    made = scores(x, score)
    keys = keys_of(made, bias)
    experts = x.shape[1]
    best = np.argsort(-_of_groups(keys, groups, group_score), axis=1, kind="stable")[:, :topk_groups]
    among = (best[:, :, None] == np.arange(groups).repeat(experts // groups)).any(axis=1)
    order = np.argsort(np.where(among, -keys, np.inf), axis=1, kind="stable")[:, :topk]
    order[np.isnan(keys).any(axis=1)] = np.arange(topk)
    return weigh(made, keys, order, renormalise, scaling, shared, shared_weight), _with_shared(order, experts, shared)


def weigh(
    made: Float, keys: Float, order: NDArray[Any], renormalise: bool, scaling: float, shared: int, shared_weight: float
) -> Float:
    """Weights of experts that are chosen."""
    weights = np.take_along_axis(np.where(np.isnan(keys), np.nan, made), order, 1)
    if renormalise:
        weights = weights / (weights.sum(axis=1, keepdims=True) + MORE)
    return np.concatenate([weights * scaling, np.full((len(made), shared), shared_weight)], axis=1)


def _with_shared(order: NDArray[Any], experts: int, shared: int) -> NDArray[np.int32]:
    more = np.tile(np.arange(experts, experts + shared), (len(order), 1))
    return np.concatenate([order, more], axis=1).astype(np.int32)


def excess(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """Largest error of a call, as a share of its bound: at most 1 where it is right.

    Scores are off by (n / 16 + 6 |x| + 24) u of softmax, of a row of n logits that lie |x| apart, and else by 40 u;
    what is below 2^-125 (sqrtsoftplus: 2^-62) may be 0 or that. Keys are off by the error of the largest score and one
    rounding. Experts whose keys differ by less may be chosen in either order, and groups as well.
    """
    x, topk = given["x"], given.get("topk", 1)
    bias, groups, shared = given.get("bias"), given.get("groups", 1), given.get("shared", 0)
    order, score = made["indices"][:, :topk], given.get("score", "softmax")
    right = scores(x, score)
    keys = keys_of(right, bias)
    bad = np.isnan(keys).any(axis=1)
    rule = {"renormalise": False, "scaling": 1.0, "shared": 0, "shared_weight": 1.0}
    named = {name: given.get(name, value) for name, value in rule.items()}
    if not (made["indices"] == _with_shared(order, x.shape[1], shared)).all():
        return np.inf
    if (order[bad] != np.arange(topk)).any() or not ((order >= 0) & (order < x.shape[1])).all():
        return np.inf
    off: Any = 40.0
    if score == "softmax":
        wide = np.where(np.isfinite(x), x, 0).astype(np.float64)
        spread = np.minimum(wide.max(axis=1) - wide.min(axis=1), 90)
        off = np.asarray(x.shape[1] / 16 + 6 * spread + 24)[:, None]
    most = np.where(np.abs(keys) < 1e30, np.abs(keys), 0).max(axis=1, initial=0, keepdims=True)
    scored = np.where(np.isnan(keys), 0, right).max(axis=1, initial=0, keepdims=True)
    near = off * U * scored + 2 * U * most + 2.0**-62
    groups_near = _of_groups(keys, groups, given.get("group_score", "two"))
    for m in np.flatnonzero(np.logical_not(bad)):
        if not _may_choose(keys[m], order[m], groups_near[m], given.get("topk_groups", 1), float(near[m, 0])):
            return np.inf
    weights = weigh(right, keys, order, **named)
    units = off * (1 + named["renormalise"]) + (topk + 4) * named["renormalise"] + 4
    lost = (2.0**-62 if score == "sqrtsoftplus" else 2.0**-125) * max(1.0, abs(named["scaling"]))
    if named["renormalise"]:
        chosen = np.take_along_axis(np.where(np.isnan(right), 1, right), order, 1)
        lost = 2 * lost / (chosen.sum(axis=1, keepdims=True) + MORE)
    bound = units * U * np.abs(weights) + lost
    if not (np.isnan(weights) == np.isnan(made["weights"])).all():
        return np.inf
    far = np.abs(made["weights"].astype(np.float64) - weights) / bound
    return float(np.nan_to_num(far, nan=0.0, posinf=np.inf).max(initial=0))


def _may_choose(keys: Float, order: NDArray[Any], of_groups: Float, topk_groups: int, near: float) -> bool:
    """Can rounding have led to this choice of a row?"""
    if len(set(order.tolist())) != len(order):
        return False
    size = len(keys) // len(of_groups)
    used = set((order // size).tolist())
    others = sorted(set(range(len(of_groups))) - used, key=lambda g: -of_groups[g])
    taken = [*used, *others[: topk_groups - len(used)]]
    left = others[topk_groups - len(used) :] if topk_groups >= len(used) else None
    if left is None or (left and of_groups[taken].min() < of_groups[left].max() - 4 * near):
        return False
    mine, rest = keys[order], np.ones(len(keys), bool)
    rest[order] = False
    rest &= np.isin(np.arange(len(keys)) // size, taken)
    with np.errstate(invalid="ignore"):
        falls = bool((mine[1:] <= mine[:-1] + 2 * near).all())
    return falls and (not rest.any() or mine.min() >= keys[rest].max() - 2 * near)


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Routing by any of its rules, with ties, rows of NaN and infinities, and a bias that leaves experts out."""
    tokens, size = random.one((0, 1, 5, 33 * random.times)), random.one((1, 2, 3, 16, 33))
    groups = random.one((1, 1, 2, 8, 17))
    topk_groups, experts = random.whole(1, groups), groups * size
    topk = random.whole(1, min(topk_groups * size, 9))
    x = random.normal(tokens, experts, dtype=signature["dtype"], scale=3)
    if tokens > 1 and random.chance(0.3):
        x[0] = np.round(x[0].astype(np.float32)).astype(x.dtype)
        x[1, random.whole(0, experts - 1)] = random.one((np.nan, np.inf, -np.inf))
    shared = random.one((0, 0, 1, 2))
    given: dict[str, Any] = {
        "x": x, "topk": topk, "score": signature["score"], "groups": groups, "topk_groups": topk_groups,
        "group_score": random.one(("two", "largest")), "renormalise": random.chance(0.5),
        "scaling": random.one((1.0, 2.5)), "shared": shared, "shared_weight": random.one((1.0, 0.5)),
    }  # fmt: skip
    if random.chance(0.6):
        given["bias"] = random.normal(experts, dtype="fp32", scale=0.3)
    made = {
        "weights": random.blank(tokens, topk + shared, dtype="fp32"),
        "indices": random.blank(tokens, topk + shared, dtype="int32"),
    }
    return Call(given, made)
