# SPDX-License-Identifier: MIT
"""causal_conv1d and its gradients in float64, and how far a kernel may be from them.

    z[t] = bias + sum_j weight[j] x[t - width + 1 + j]    y = z or z / (1 + exp(-z))

A kernel sums the width + 1 terms in fp32, u = 2^-24, and y is rounded once. With silu, whose slope is at most 1.1 and
which is computed to (12 + 2 |z|) u of itself:

    |y - reference| <= out |reference| + 1.1 (width + 2) u (|bias| + sum |weight x|) + (12 + 2 |z|) u |reference| + tiny
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature
from .gated import LOST

Array = NDArray[Any]
Float = NDArray[np.float64]


class Convolved(NamedTuple):
    """y and z, what arithmetic in fp32 may lose of each, and the inputs, (batch, width - 1 + seqlen, channels)."""

    y: Float
    error: Float
    z: Float
    z_error: Float
    inputs: Array

    @property
    def final_state(self) -> Array:
        """The last inputs, (batch, channels, width - 1), to the bit."""
        count = self.inputs.shape[1] - self.y.shape[1]
        return self.inputs[:, self.y.shape[1] :][:, :count].transpose(0, 2, 1)


def causal_conv1d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    initial_state: Array | None = None,
    activation: str = "none",
) -> Convolved:
    """x (batch, seqlen, channels), weight (channels, width), bias (channels), initial_state as in the operator."""
    (batch, tokens, channels), width = x.shape, weight.shape[1]
    past = np.zeros((batch, channels, width - 1), x.dtype) if initial_state is None else initial_state
    inputs = np.concatenate([past.transpose(0, 2, 1), x], axis=1)
    wide, taps = inputs.astype(np.float64), weight.astype(np.float64)
    added = np.zeros(channels) if bias is None else bias.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.stack([taps[:, j] * wide[:, j : j + tokens] for j in range(width)])
        z = added + terms.sum(axis=0)
        z_error = (width + 2) * rows.FP32 * (np.abs(added) + np.abs(terms).sum(axis=0))
        if activation == "none":
            return Convolved(z, z_error, z, z_error, inputs)
        y = np.where(np.isneginf(z), 0.0, z / (1 + np.exp(-z)))
        error = 1.1 * z_error + (12 + 2 * np.abs(np.where(np.isneginf(z), 0, z))) * rows.FP32 * np.abs(y) + LOST
    return Convolved(y, error, z, z_error, inputs)


class Gradients(NamedTuple):
    """By name of a result, (value, what arithmetic in fp32 may lose of it)."""

    dx: tuple[Float, Float]
    dweight: tuple[Float, Float]
    dbias: tuple[Float, Float]
    dinitial_state: tuple[Float, Float]


def causal_conv1d_bwd(
    dy: Array,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    initial_state: Array | None = None,
    dfinal_state: Array | None = None,
    activation: str = "none",
) -> Gradients:
    """Gradients of one sequence a batch; shapes as in the operator.

    silu's slope loses 1.1 of what z loses, and 16 roundoffs of itself where it is not small: of 1 + |z|.
    """
    made = causal_conv1d(x, weight, bias, initial_state, activation)
    tokens, width = x.shape[1], weight.shape[1]
    dz, loss = dy.astype(np.float64), np.zeros(dy.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if activation == "silu":
            z = np.clip(made.z, -700, 700)
            s = 1 / (1 + np.exp(-z))
            loss = np.abs(dz) * (1.1 * made.z_error + (16 + 4 * np.abs(z)) * rows.FP32 * s * (1 + np.abs(z) * (1 - s)))
            loss += np.abs(dz) * LOST
            dz = dz * s * (1 + z * (1 - s))
        size = np.abs(dz)
        wide, taps = made.inputs.astype(np.float64), weight.astype(np.float64)
        inputs, lost = np.zeros(wide.shape), np.zeros(wide.shape)
        dweight, error = np.zeros(taps.shape), np.zeros(taps.shape)
        many = (min(tokens, 128) + (tokens + 127) // 128 * len(x) + 4) * rows.FP32
        for j in range(width):
            inputs[:, j : j + tokens] += taps[:, j] * dz
            lost[:, j : j + tokens] += np.abs(taps[:, j]) * (loss + (width + 2) * rows.FP32 * size)
            window = wide[:, j : j + tokens]
            dweight[:, j] = (dz * window).sum(axis=(0, 1))
            error[:, j] = ((loss + many * size) * np.abs(window)).sum(axis=(0, 1))
        if dfinal_state is not None:
            inputs[:, tokens:] += dfinal_state.astype(np.float64).transpose(0, 2, 1)
            lost[:, tokens:] += 2 * rows.FP32 * np.abs(inputs[:, tokens:])
        dbias = dz.sum(axis=(0, 1)), (loss + many * size).sum(axis=(0, 1))
    past = width - 1
    state = inputs[:, :past].transpose(0, 2, 1), lost[:, :past].transpose(0, 2, 1)
    return Gradients((inputs[:, past:], lost[:, past:]), (dweight, error), dbias, state)


ARGUMENTS = ("dy", "x", "weight", "bias", "initial_state", "dfinal_state", "activation")
STATES = ("initial_state", "dfinal_state", "final_state", "dinitial_state")


def apart(given: Mapping[str, Any], over_tokens: tuple[str, ...]) -> list[dict[str, Any]]:
    """Arguments of each sequence of a packed call as a call of its own; of another, the call itself."""
    starts = given.get("cu_seqlens")
    if starts is None:
        return [dict(given)]
    calls = []
    for i, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
        one = {name: value for name, value in given.items() if name != "cu_seqlens"}
        one |= {name: value[:, first:end] for name, value in one.items() if name in over_tokens}
        calls.append(one | {name: value[i : i + 1] for name, value in one.items() if name in STATES})
    return calls


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """The largest error of a call over its bound; infinite where final_state is not the last inputs to the bit."""
    both = apart({**made, **given}, ("x", "dy", "y", "dx"))
    if "dy" in given:
        return _gradients_answer(both, made)
    worst = 0.0
    for one in both:
        right = causal_conv1d(**{name: one[name] for name in ARGUMENTS if name in one})
        if "final_state" in one and not np.array_equal(
            one["final_state"].astype(np.float32), right.final_state.astype(np.float32), equal_nan=True
        ):
            return float("inf")
        worst = max(worst, rows.excess(one["y"], right.y, right.error))
    return worst


def _gradients_answer(calls: list[dict[str, Any]], made: Mapping[str, Any]) -> float:
    each = [causal_conv1d_bwd(**{name: one[name] for name in ARGUMENTS if name in one}) for one in calls]
    worst = 0.0
    for one, right in zip(calls, each, strict=True):
        for name in ("dx", "dinitial_state"):
            if name in one:
                worst = max(worst, rows.excess(one[name], *getattr(right, name)))
    for name in ("dweight", "dbias"):
        if name in made:
            values = [getattr(right, name) for right in each]
            zero = np.zeros(made[name].shape)
            total, error = (sum((value[i] for value in values), start=zero) for i in (0, 1))
            error = error + len(each) * rows.FP32 * sum((np.abs(value[0]) for value in values), start=zero)
            worst = max(worst, rows.excess(made[name], total, error))
    return worst


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Sequences of no token, of fewer than a state has, and about a unit's 128; packed; states written in place."""
    dtype, activation = signature["dtype"], signature["activation"]
    backward = operator.endswith("bwd")
    batch, tokens = random.one((0, 1, 2)), random.one((0, 1, 2, 3, 40, 128, 129, 300))
    channels, width = random.one((1, 7, 16, 33, 70)), random.one((2, 3, 4))
    given: dict[str, Any] = {}
    sequences = batch
    if random.chance(0.3):
        starts = drawn_starts(random, tokens)
        batch, sequences, given["cu_seqlens"] = 1, len(starts) - 1, starts
    given |= {
        "x": random.normal(batch, tokens, channels, dtype=dtype, scale=random.one((1.0, 10.0))),
        "weight": random.normal(channels, width, dtype=dtype),
        "activation": activation,
    }
    if random.chance(0.5):
        given["bias"] = random.normal(channels, dtype=dtype)
    if random.chance(0.7):
        given["initial_state"] = random.normal(sequences, channels, width - 1, dtype=dtype)
    over: dict[str, str] = {}
    if backward:
        given["dy"] = random.normal(batch, tokens, channels, dtype=dtype)
        if random.chance(0.6):
            given["dfinal_state"] = random.normal(sequences, channels, width - 1, dtype=dtype)
        made = {name: random.blank(*given[of].shape, dtype=dtype) for name, of in (("dx", "x"), ("dweight", "weight"))}
        if random.chance(0.7):
            made["dbias"] = random.blank(channels, dtype=dtype)
        if random.chance(0.7):
            made["dinitial_state"] = random.blank(sequences, channels, width - 1, dtype=dtype)
        return Call(given, made, over)
    made = {"y": random.blank(batch, tokens, channels, dtype=dtype)}
    if random.chance(0.7):
        made["final_state"] = random.blank(sequences, channels, width - 1, dtype=dtype)
        if "initial_state" in given and random.chance(0.5):
            over["final_state"] = "initial_state"
    return Call(given, made, over)


def drawn_starts(random: Random, tokens: int) -> Array:
    """Starts of sequences, some of them empty, in a row of so many tokens, and its end."""
    inner = sorted(random.whole(0, tokens) for _ in range(random.one((0, 1, 2, 4))))
    return np.array([0, *inner, tokens], np.int32)
