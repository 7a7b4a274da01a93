# SPDX-License-Identifier: MIT
"""gated_delta_rule and its gradients in float64, token by token, and how far a kernel may be from them.

    S = exp(g) S    S = S + k u^T with u = beta (v - S^T k), or beta v    out = scale S^T q

What fp32 may lose of S and out is in proportion to a size that goes from token to token beside them, w = exp(g):

    s = max(w s + |w S| (1/16 + |g| / 8), |S|) + |k| |beta| (|v| + |w S|^T |k|)^T
    |out - reference| <= out |reference| + r scale s^T |q| + tiny

with r = (hdim_k / 4 + 24) u, u = 2^-24, and |S - reference| <= r s + tiny: sums over keys go in order, whose roundings
seldom agree; half of it has been seen. Gradients have sizes of the same kind, from the last token to the first, and
r = (max(hdim_k, hdim_v) / 4 + 24) u. The gradient of a gate is a sum over the tokens after it in its chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows
from .causal_conv1d import apart, drawn_starts
from .drawn import Call, Random, Signature

Array = NDArray[Any]
Float = NDArray[np.float64]
LEAST = -100.0
"""Gates below count as this."""
SQUARES = 1e-6
CHUNK = 64


class Read(NamedTuple):
    """out and the state after the last token, and a size that errors of each are in proportion to.

    history: of each token (the state with less kept, its size, the state and size after it, v less what is told).
    """

    out: Float
    state: Float
    out_size: Float
    state_size: Float
    history: Sequence[tuple[Float, ...]]


class _Inputs(NamedTuple):
    """In float64, keys repeated for the heads that share them; kept has a number a row of the state."""

    q: Float
    k: Float
    v: Float
    kept: Float
    beta: Float
    scale: np.float64


def _inputs(q: Array, k: Array, v: Array, g: Array, beta: Array, scale: float | None, qk_l2norm: bool) -> _Inputs:
    queries, keys, values, gates, shares = (array.astype(np.float64) for array in (q, k, v, g, beta))
    if qk_l2norm:
        queries, keys = (x * _inverse(x) for x in (queries, keys))
    queries, keys = (np.repeat(x, v.shape[2] // q.shape[2], axis=2) for x in (queries, keys))
    times = q.shape[3] ** -0.5 if scale is None else np.float64(np.float32(scale))
    kept = np.exp(np.where(gates < LEAST, LEAST, gates))
    kept = kept[..., None] if gates.ndim == 3 else kept
    return _Inputs(queries * times, keys, values, kept, shares, np.float64(times))


def _inverse(x: Float) -> Float:
    inverse: Float = 1 / np.sqrt((x**2).sum(axis=-1, keepdims=True) + SQUARES)
    return inverse


def _outer(key: Float, value: Float) -> Float:
    made: Float = key[..., None] * value[..., None, :]
    return made


def _told(state: Float, key: Float) -> Float:
    """S^T k."""
    made: Float = np.einsum("bhdv,bhd->bhv", state, key)
    return made


def _read(state: Float, value: Float) -> Float:
    """S v."""
    made: Float = np.einsum("bhdv,bhv->bhd", state, value)
    return made


def _less(state: Float, size: Float, kept: Float) -> tuple[Float, Float]:
    """A state that a gate has made less, and its size: the factor is as exact as the gate, in fp32, is long."""
    less = state * kept[..., None]
    return less, size * kept[..., None] + np.abs(less) * (1 / 16 - np.log(kept[..., None]) / 8)


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
    update: str = "delta",
    record: bool = False,
) -> Read:
    """q, k (batch, seqlen, nhead_k, hdim_k), v (batch, seqlen, nhead_v, hdim_v), g, beta as the operator's."""
    x = _inputs(q, k, v, g, beta, scale, qk_l2norm)
    state = np.zeros((len(v), v.shape[2], q.shape[3], v.shape[3])) if initial_state is None else initial_state
    state = state.astype(np.float64)
    size = np.abs(state)
    out, out_size = np.zeros(v.shape), np.zeros(v.shape)
    history = []
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(v.shape[1]):
            key, query, share = x.k[:, t], x.q[:, t], x.beta[:, t, :, None]
            less, less_size = _less(state, size, x.kept[:, t])
            missing, told = x.v[:, t], np.abs(x.v[:, t])
            if update == "delta":
                missing, told = missing - _told(less, key), told + _told(np.abs(less), np.abs(key))
            state = less + _outer(key, share * missing)
            size = np.maximum(less_size, np.abs(state)) + _outer(np.abs(key), np.abs(share) * told)
            out[:, t], out_size[:, t] = _told(state, query), _told(size, np.abs(query))
            if record:
                history.append((less, less_size, state, size, missing))
    return Read(out, state, out_size, size, history)


def gated_delta_rule_bwd(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    *,
    initial_state: Array | None = None,
    dfinal_state: Array | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    update: str = "delta",
) -> dict[str, tuple[Float, Float]]:
    """By name of a result, its value and a size that its error is in proportion to."""
    how: dict[str, Any] = {"scale": scale, "qk_l2norm": qk_l2norm, "update": update}
    made = gated_delta_rule(q, k, v, g, beta, initial_state=initial_state, record=True, **how)
    x, corrects, tokens = _inputs(q, k, v, g, beta, scale, qk_l2norm), update == "delta", v.shape[1]
    douts = dout.astype(np.float64)
    grown = np.zeros(made.state.shape) if dfinal_state is None else dfinal_state.astype(np.float64)
    size = np.abs(grown)
    dq, dk, dv = np.zeros((2, *x.q.shape)), np.zeros((2, *x.k.shape)), np.zeros((2, *v.shape))
    dgates, dbeta = np.zeros((2, *x.q.shape)), np.zeros((2, *beta.shape))
    later = np.zeros(x.q[:, 0].shape) if tokens else np.zeros(0)
    for t in reversed(range(tokens)):
        less, less_size, state, state_size, missing = made.history[t]
        key, query, share, asked = x.k[:, t], x.q[:, t], x.beta[:, t, :, None], douts[:, t]
        if t % CHUNK == CHUNK - 1 or t == tokens - 1:
            later = (state_size * np.abs(grown) + np.abs(state) * size).sum(axis=-1)
        grown, size = grown + _outer(query, asked), size + _outer(np.abs(query), np.abs(asked))
        dq[:, :, t] = _read(state, asked), _read(state_size, np.abs(asked))
        told, told_size = _told(grown, key), _told(size, np.abs(key))
        dv[:, :, t] = share * told, np.abs(share) * told_size
        missing_size = np.abs(x.v[:, t]) + (_told(less_size, np.abs(key)) if corrects else 0)
        dbeta[0, :, t] = (missing * told).sum(axis=-1)
        dbeta[1, :, t] = (missing_size * np.abs(told) + np.abs(missing) * told_size).sum(axis=-1)
        dk[0, :, t] = _read(grown, share * missing)
        dk[1, :, t] = _read(size, np.abs(share * missing)) + _read(np.abs(grown), np.abs(share) * missing_size)
        if corrects:
            dk[0, :, t] -= _read(less, dv[0, :, t])
            dk[1, :, t] += _read(less_size, np.abs(dv[0, :, t])) + _read(np.abs(less), dv[1, :, t])
            local = _outer(np.abs(key), np.abs(share) * _told(np.abs(grown), np.abs(key)))
            grown = grown - _outer(key, dv[0, :, t])
            size = np.maximum(size, np.abs(grown)) + local
        later = later + np.abs(query) * dq[1, :, t] + np.abs(key) * dk[1, :, t]
        dgates[:, :, t] = (less * grown).sum(axis=-1), later
        grown, size = _less(grown, size, x.kept[:, t])
    dg = dgates.sum(axis=-1) if g.ndim == 3 else dgates
    dg[0][g < LEAST] = 0
    made_of = {"dv": dv, "dg": dg, "dbeta": dbeta, "dinitial_state": (grown, size)}
    found = {name: (value[0], value[1]) for name, value in made_of.items()}
    for name, given, gradient, times in (("dq", q, dq, x.scale), ("dk", k, dk, 1.0)):
        batch, _, shared, wide = given.shape
        value, lost = abs(times) * gradient.reshape(2, batch, tokens, shared, v.shape[2] // shared, wide).sum(axis=4)
        value = value * np.sign(times)
        if qk_l2norm:
            raw = given.astype(np.float64)
            inverse = _inverse(raw)
            unit = raw * inverse
            value = inverse * (value - unit * (unit * value).sum(axis=-1, keepdims=True))
            lost = inverse * (lost + np.abs(unit) * (np.abs(unit) * lost).sum(axis=-1, keepdims=True))
        found[name] = value, lost
    return found


ARRAYS = ("q", "k", "v", "g", "beta")
ARGUMENTS = ("initial_state", "dfinal_state", "scale", "qk_l2norm", "update")
OVER_TOKENS = (*ARRAYS, "out", "dout", "dq", "dk", "dv", "dg", "dbeta")


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """The largest error of any result over its bound."""
    worst = 0.0
    for one in apart({**made, **given}, OVER_TOKENS):
        rest = {name: one[name] for name in ARGUMENTS if name in one}
        arrays = [one[name] for name in ARRAYS]
        wide = arrays[0].shape[3]
        with np.errstate(invalid="ignore"):
            if "dout" in one:
                right = gated_delta_rule_bwd(one["dout"], *arrays, **rest)
                loses = (max(wide, arrays[2].shape[3]) / 4 + 24) * rows.FP32
                for name, (value, size) in right.items():
                    if name in one:
                        worst = max(worst, rows.excess(one[name], value, loses * size))
                continue
            read = gated_delta_rule(*arrays, **rest)
            loses = (wide / 4 + 24) * rows.FP32
            worst = max(worst, rows.excess(one["out"], read.out, loses * read.out_size))
            if "final_state" in one:
                worst = max(worst, rows.excess(one["final_state"], read.state, loses * read.state_size))
    return worst


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Sequences about a chunk's 64 tokens, and packed; heads of any length; gates that keep all or nothing."""
    batch, tokens = random.one((0, 1, 2)), random.one((0, 1, 5, 16, 17, 63, 64, 65, 150))
    shared, group = random.one((1, 2)), random.one((1, 1, 3))
    wide, long = random.one((1, 7, 16, 33, 64)), random.one((1, 9, 16, 40, 64))
    dtype, heads = signature["dtype"], shared * group
    given: dict[str, Any] = {}
    sequences = batch
    if random.chance(0.3):
        starts = drawn_starts(random, tokens)
        batch, sequences, given["cu_seqlens"] = 1, len(starts) - 1, starts
    lengths = (batch, tokens, heads, wide) if signature["gate"] == "channel" else (batch, tokens, heads)
    given |= {
        "q": random.normal(batch, tokens, shared, wide, dtype=dtype),
        "k": random.normal(batch, tokens, shared, wide, dtype=dtype),
        "v": random.normal(batch, tokens, heads, long, dtype=dtype),
        "g": random.normal(*lengths, dtype="fp32", scale=random.one((0.01, 1.0, 30.0))),
        "beta": random.normal(batch, tokens, heads, dtype=random.one((dtype, "fp32"))),
        "update": signature["update"],
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
    if random.chance(0.6):
        given["initial_state"] = random.normal(sequences, heads, wide, long, dtype="fp32")
    over: dict[str, str] = {}
    if operator.endswith("bwd"):
        given["dout"] = random.normal(batch, tokens, heads, long, dtype=dtype)
        if random.chance(0.6):
            given["dfinal_state"] = random.normal(sequences, heads, wide, long, dtype="fp32")
        made = {f"d{name}": random.blank(*given[name].shape, dtype=given[name].dtype) for name in ARRAYS}
        if random.chance(0.7):
            made["dinitial_state"] = random.blank(sequences, heads, wide, long, dtype="fp32")
        return Call(given, made, over)
    made = {"out": random.blank(batch, tokens, heads, long, dtype=dtype)}
    if random.chance(0.7):
        made["final_state"] = random.blank(sequences, heads, wide, long, dtype="fp32")
        if "initial_state" in given and random.chance(0.5):
            over["final_state"] = "initial_state"
    return Call(given, made, over)
