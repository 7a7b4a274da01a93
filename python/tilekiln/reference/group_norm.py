# SPDX-License-Identifier: MIT
"""Group normalisation in float64, and how far a kernel may be from it.

    y = act((v - mean) / sqrt(variance + epsilon) gamma + beta)

mean and variance of the n elements of a group of channels of an image (Wu and He, Group Normalization, 2018, with
epsilon as PyTorch's group_norm has it). Before the activation the bound is that of `layernorm2d`, of rows of n columns.
silu's slope is below 1.1, and it adds its own (12 + 2 |z|) u of its value (`gated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import rows
from .drawn import Call, Random, Signature
from .layernorm2d import layernorm2d

Array = NDArray[Any]


class Normalised(NamedTuple):
    """y, mean, inv_std (batch, groups), and the error that each may have, y beside its rounding."""

    y: Array
    mean: Array
    inv_std: Array
    error: Array
    mean_error: Array
    inv_std_error: Array


def group_norm(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    groups: int = 32,
    epsilon: float = 1e-5,
    activation: str = "none",
    layout: str = "nchw",
) -> Normalised:
    """x (batch, channels, positions), of nhwc (batch, positions, channels); gamma, beta (channels)."""
    first = x if layout == "nchw" else np.swapaxes(x, 1, 2)
    batch, channels, positions = first.shape
    of = first.reshape(batch * groups, channels // groups * positions)
    made = layernorm2d(of, np.ones(of.shape[1]), None, None, epsilon)
    factor, offset = (
        np.full((channels, 1), none) if one is None else one.astype(np.float64)[:, None]
        for one, none in ((gamma, 1.0), (beta, 0.0))
    )
    with np.errstate(all="ignore"):
        y = made.y.reshape(first.shape) * factor + offset
        error = made.error.reshape(first.shape) * np.abs(factor) + 2 * rows.FP32 * np.abs(offset)
        if activation == "silu":
            value = np.where(np.isneginf(y), 0.0, y / (1 + np.exp(-y)))
            error = 1.1 * error + (12 + 2 * np.abs(y)) * rows.FP32 * np.abs(value) + 2.0**-80
            y = value
    if layout == "nhwc":
        y, error = np.swapaxes(y, 1, 2), np.swapaxes(error, 1, 2)
    shape = (batch, groups)
    mean, inv_std, mean_error, inv_std_error = (
        one.reshape(shape) for one in (made.mean, made.inv_std, made.mean_error, made.inv_std_error)
    )
    return Normalised(y, mean, inv_std, error, mean_error, inv_std_error)


def excess(y: Array, right: Normalised) -> float:
    """The largest error over its bound; at most 1 is right. Infinite where one is finite and the other is not."""
    return rows.excess(y, right.y, right.error)


def answer(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """`excess` of the arguments of a call and its results by name, as `tilekiln bench` and `tilekiln replay` ask."""
    names = ("x", "gamma", "beta", "groups", "epsilon", "activation", "layout")
    right = group_norm(**{name: given[name] for name in names if given.get(name) is not None})
    worst = excess(made["y"], right)
    for name, value, error in (
        ("mean", right.mean, right.mean_error),
        ("inv_std", right.inv_std, right.inv_std_error),
    ):
        if name in made:
            worst = max(worst, rows.excess(made[name], value, error))
    return worst


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Groups of one channel or several, of one position or many; images far from 0, y in place or not."""
    dtype, layout = signature["dtype"], random.one(("nchw", "nhwc"))
    groups, of_a_group = random.one((1, 2, 5, 8)), random.one((1, 3, 10, 16, 33))
    batch, channels, positions = random.one((0, 1, 2)), groups * of_a_group, random.one((1, 7, 49, 64, 300))
    shape = (batch, channels, positions) if layout == "nchw" else (batch, positions, channels)
    x = random.normal(*shape, dtype=dtype, scale=random.one((1.0, 30.0)))
    given: dict[str, Any] = {"x": x, "groups": groups, "layout": layout, "activation": signature["activation"]}
    for name in ("gamma", "beta"):
        given[name] = random.normal(channels, dtype=dtype) if random.chance(0.7) else None
    made = {"y": random.blank(*shape, dtype=dtype)}
    if random.chance(0.5):
        made |= {name: random.blank(batch, groups, dtype="fp32") for name in ("mean", "inv_std")}
    return Call(given, made, {"y": "x"} if random.chance(0.3) else {})
