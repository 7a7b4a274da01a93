# SPDX-License-Identifier: MIT
"""Reference of relative_attention in float64, and the kernel's error as a share of its bound."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def attention(q: Array, k: Array, v: Array, distance_bias: Array, *, causal: bool = False) -> Array:
    """softmax(q k^T / sqrt(hdim_q) + distance_bias, masked) v of (batch, seqlen, nhead, hdim); 0 without a key."""
    q, k, v = (np.asarray(array, np.float64).transpose(0, 2, 1, 3) for array in (q, k, v))
    k, v = (np.repeat(array, q.shape[1] // k.shape[1], 1) for array in (k, v))
    distance = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - np.arange(k.shape[2])
    bias = np.asarray(distance_bias, np.float64)[:, np.clip(distance, 0, distance_bias.shape[1] - 1)]
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5 + bias
    if causal:
        scores = np.where(distance < 0, -np.inf, scores)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    total = weights.sum(-1, keepdims=True)
    out: Array = (weights @ v / np.where(total > 0, total, 1)).transpose(0, 2, 1, 3)
    return out


def bound(want: Array, v: Array, dtype: Any) -> Array:
    """Scores near 10 are off by some 2^-20, weights by as much of themselves; a bf16 result is rounded once."""
    rounding = 0 if np.dtype(dtype) == np.float32 else 2.0**-8
    made: Array = 2.0**-18 * np.abs(np.asarray(v, np.float64)).max() + rounding * np.abs(want)
    return made
