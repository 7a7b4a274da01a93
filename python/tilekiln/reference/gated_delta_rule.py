"""gated_delta_rule in float64, token by token, and how far a kernel may be from it.

    S = exp(g) S    S = S + k u^T with u = beta (v - S^T k)    out = scale S^T q

What fp32 may lose of S and out is in proportion to a size that goes from token to token beside them, w = exp(g):

    s = max(w s, |S|) + |k| |beta| (|v| + |w S|^T |k|)^T
    |out - reference| <= out |reference| + r scale s^T |q| + tiny

with r = (hdim_k / 4 + 24) u, u = 2^-24, and |S - reference| <= r s + tiny: sums over keys go in order, whose roundings
seldom agree; half of it has been seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature

Array = NDArray[Any]
Float = NDArray[np.float64]
LEAST = -100.0
"""Gates below count as this."""
SQUARES = 1e-6


class Read(NamedTuple):
    """out and the state after the last token, and a size that errors of each are in proportion to."""

    out: Float
    state: Float
    out_size: Float
    state_size: Float


def gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    *,
    initial_state: Array | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
) -> Read:
    """q, k (batch, seqlen, nhead_k, hdim_k), v (batch, seqlen, nhead_v, hdim_v), g, beta as the operator's."""
    wide = [array.astype(np.float64) for array in (q, k, v, g, beta)]
    queries, keys, values, gates, shares = wide
    if qk_l2norm:
        queries, keys = (x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + SQUARES) for x in (queries, keys))
    group = v.shape[2] // q.shape[2]
    queries, keys = (np.repeat(x, group, axis=2) for x in (queries, keys))
    queries = queries * (q.shape[3] ** -0.5 if scale is None else np.float64(np.float32(scale)))
    kept = np.exp(np.where(gates < LEAST, LEAST, gates))
    kept = kept[..., None] if gates.ndim == 3 else kept
    state = np.zeros((len(v), v.shape[2], q.shape[3], v.shape[3])) if initial_state is None else initial_state
    state = state.astype(np.float64)
    size = np.abs(state)
    out, out_size = np.zeros(v.shape), np.zeros(v.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(v.shape[1]):
            key, query, share = keys[:, t], queries[:, t], shares[:, t, :, None]
            state, size = state * kept[:, t, :, :, None], size * kept[:, t, :, :, None]
            update = share * (values[:, t] - np.einsum("bhdv,bhd->bhv", state, key))
            told = np.abs(share) * (np.abs(values[:, t]) + np.einsum("bhdv,bhd->bhv", np.abs(state), np.abs(key)))
            state = state + key[..., None] * update[..., None, :]
            size = np.maximum(size, np.abs(state)) + np.abs(key)[..., None] * told[..., None, :]
            out[:, t] = np.einsum("bhdv,bhd->bhv", state, query)
            out_size[:, t] = np.einsum("bhdv,bhd->bhv", size, np.abs(query))
    return Read(out, state, out_size, size)


ARGUMENTS = ("initial_state", "scale", "qk_l2norm")


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """The largest error of out and of final_state over its bound."""
    arrays = [given[name] for name in ("q", "k", "v", "g", "beta")]
    right = gated_delta_rule(*arrays, **{name: given[name] for name in ARGUMENTS if name in given})
    loses = (arrays[0].shape[3] / 4 + 24) * rows.FP32
    with np.errstate(invalid="ignore"):
        far = rows.excess(made["out"], right.out, loses * right.out_size)
        if "final_state" in made:
            far = max(far, rows.excess(made["final_state"], right.state, loses * right.state_size))
    return far


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Sequences of no token, one, and about a chunk's 64; heads of any length; gates that keep all or nothing."""
    batch, tokens = random.one((0, 1, 2)), random.one((0, 1, 5, 16, 17, 64, 65, 150))
    shared, group = random.one((1, 2)), random.one((1, 1, 3))
    wide, long = random.one((1, 7, 16, 33, 64)), random.one((1, 9, 16, 40, 64))
    dtype, heads = signature["dtype"], shared * group
    lengths = (batch, tokens, heads, wide) if signature["gate"] == "channel" else (batch, tokens, heads)
    given: dict[str, Any] = {
        "q": random.normal(batch, tokens, shared, wide, dtype=dtype),
        "k": random.normal(batch, tokens, shared, wide, dtype=dtype),
        "v": random.normal(batch, tokens, heads, long, dtype=dtype),
        "g": random.normal(*lengths, dtype="fp32", scale=random.one((0.01, 1.0, 30.0))),
        "beta": random.normal(batch, tokens, heads, dtype=random.one((dtype, "fp32"))),
    }
    given["g"][...] = -np.abs(given["g"])
    if given["g"].size and random.chance(0.3):
        given["g"].flat[random.whole(0, given["g"].size - 1)] = -np.inf
    given["beta"][...] = (1 / (1 + np.exp(-given["beta"].astype(np.float32)))).astype(given["beta"].dtype)
    given["qk_l2norm"] = random.chance(0.6)
    if not given["qk_l2norm"]:  # keys longer than 1 make a state grow
        given["k"][...] = (given["k"].astype(np.float32) / np.float32(1 + wide)).astype(given["k"].dtype)
    if random.chance(0.3):
        given["scale"] = 0.3
    made = {"out": random.blank(batch, tokens, heads, long, dtype=dtype)}
    over = {}
    if random.chance(0.6):
        given["initial_state"] = random.normal(batch, heads, wide, long, dtype="fp32")
    if random.chance(0.7):
        made["final_state"] = random.blank(batch, heads, wide, long, dtype="fp32")
        if "initial_state" in given and random.chance(0.5):
            over["final_state"] = "initial_state"
    return Call(given, made, over)
