"""causal_conv1d and its gradients in float64, and how far a kernel may be from them.

    z[t] = bias + sum_j weight[j] x[t - width + 1 + j]    y = z or z / (1 + exp(-z))

A kernel sums the width + 1 terms in fp32, u = 2^-24, and y is rounded once. With silu, whose slope is at most 1.1 and
which is computed to (12 + 2 |z|) u of itself:

    |y - reference| <= out |reference| + 1.1 (width + 2) u (|bias| + sum |weight x|) + (12 + 2 |z|) u |reference| + tiny
"""

from __future__ import annotations

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


ARGUMENTS = ("x", "weight", "bias", "initial_state", "activation")


def _of(given: Mapping[str, Any]) -> Convolved:
    return causal_conv1d(**{name: given[name] for name in ARGUMENTS if name in given})


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """The largest error of a call over its bound; infinite where final_state is not the last inputs to the bit."""
    right = _of(given)
    if "final_state" in made and not np.array_equal(
        made["final_state"].astype(np.float32), right.final_state.astype(np.float32), equal_nan=True
    ):
        return float("inf")
    return rows.excess(made["y"], right.y, right.error)


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Sequences of no token, of fewer than a state has, and about a unit's 128; states that are written in place."""
    dtype, activation = signature["dtype"], signature["activation"]
    batch, tokens = random.one((0, 1, 2)), random.one((0, 1, 2, 3, 40, 128, 129, 300))
    channels, width = random.one((1, 7, 16, 33, 70)), random.one((2, 3, 4))
    given: dict[str, Any] = {
        "x": random.normal(batch, tokens, channels, dtype=dtype, scale=random.one((1.0, 10.0))),
        "weight": random.normal(channels, width, dtype=dtype),
        "activation": activation,
    }
    if random.chance(0.5):
        given["bias"] = random.normal(channels, dtype=dtype)
    made = {"y": random.blank(batch, tokens, channels, dtype=dtype)}
    over = {}
    if random.chance(0.7):
        given["initial_state"] = random.normal(batch, channels, width - 1, dtype=dtype)
    if random.chance(0.7):
        made["final_state"] = random.blank(batch, channels, width - 1, dtype=dtype)
        if "initial_state" in given and random.chance(0.5):
            over["final_state"] = "initial_state"
    return Call(given, made, over)
