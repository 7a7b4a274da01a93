"""Routing and sorting of a mixture of experts: topk_softmax and moe_sorting, in float64 and plain loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .softmax import softmax


def topk_softmax(
    x: NDArray[np.generic], topk: int, renormalise: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """(weights, indices), each (tokens, topk), of logits (tokens, experts)."""
    everything = softmax(x)
    keys = np.maximum(x.astype(np.float64), -3.4028234663852886e38)
    order = np.argsort(-keys, axis=1, kind="stable")[:, :topk]
    bad = np.isnan(everything).any(axis=1)
    order[bad] = np.arange(topk)
    weights = np.take_along_axis(everything, order, 1)
    return weights / weights.sum(axis=1, keepdims=True) if renormalise else weights, order.astype(np.int32)


class Sorted(NamedTuple):
    """What is used of the results of moe_sorting."""

    token_ids: list[int]
    weights: list[float]
    expert_ids: list[int]
    totals: tuple[int, int]


def moe_sorting(
    topk_ids: NDArray[np.int32],
    topk_weights: NDArray[np.float32],
    experts: int,
    unit: int,
    skip_empty: bool = True,
    expert_mask: NDArray[np.int32] | None = None,
    local_tokens: int | None = None,
) -> Sorted:
    tokens = len(topk_ids) if local_tokens is None else max(0, min(local_tokens, len(topk_ids)))
    topk = topk_ids.shape[1]
    ids: list[int] = []
    weights: list[float] = []
    units: list[int] = []
    here = [e for e in range(experts) if expert_mask is None or expert_mask[e] != 0]
    for local, expert in enumerate(here):
        mine = [(t, k) for t in range(tokens) for k in range(topk) if topk_ids[t, k] == expert]
        padding = -len(mine) % unit or (unit if not mine and not skip_empty else 0)
        ids += [t | k << 24 for t, k in mine] + [tokens | topk << 24] * padding
        weights += [float(topk_weights[t, k]) for t, k in mine] + [0.0] * padding
        units += [local] * ((len(mine) + padding) // unit)
    return Sorted(ids, weights, units, (len(ids), tokens))
