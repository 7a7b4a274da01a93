# SPDX-License-Identifier: MIT
"""sample in float64: which tokens a draw may have given, and how far their log probabilities are from it.

Penalties, the order and top_k are exact, in fp32. Weights are 2^-t with t = (top - v) log2(e) / T, top the highest;
a kernel's are integers, less than 1 of 2^40 below and off by (2 t + 8) u of themselves, u = 2^-24: of t's three
roundings and the polynomial. Sums and shares are off by twice the weighed mean of that, `near`:

    top_p      any number of tokens whose weights sum up to top_p within near
    min_p      tokens within their own error of it, either way
    the draw   with u = r / 2^64 a token whose piece of [0, 1) is within near of u, for one of these choices

so where no boundary lies within near of what decides, there is one token. A log probability is off by near, and by
2^-22 of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .drawn import Call, Random, Signature
from .philox import philox4x32_7

Float = NDArray[np.float64]
LARGEST, U, UNIT = np.float32(3.4028234663852886e38), 2.0**-24, 2.0**-40
PARAMETERS = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
OF_ROWS = {
    "temperature": "temperatures", "top_k": "top_ks", "top_p": "top_ps", "min_p": "min_ps",
    "repetition_penalty": "repetition_penalties", "presence_penalty": "presence_penalties",
    "frequency_penalty": "frequency_penalties",
}  # fmt: skip
"""The array that has a parameter of each row."""


class Draws(NamedTuple):
    """Of a row: tokens that may be drawn, each with the least and the greatest log probability of it."""

    tokens: NDArray[np.intp]
    least: Float
    greatest: Float


def parameters(given: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Of a row."""
    return {
        name: given[OF_ROWS[name]][row].item() if OF_ROWS[name] in given else given.get(name, default)
        for name, default in PARAMETERS.items()
    }


def may_be(p: Mapping[str, Any]) -> bool:
    """Are a row's parameters what they may be?"""
    finite = np.isfinite(list(p.values())).all()
    share = 0 < p["top_p"] <= 1 and 0 <= p["min_p"] <= 1
    return bool(finite and share and p["temperature"] >= 0 and p["top_k"] >= 0 and p["repetition_penalty"] > 0)


def numbers(given: Mapping[str, Any], row: int) -> NDArray[np.float32]:
    """Logits of a row after the penalties; NaN where they have none."""
    v, p = given["logits"][row].astype(np.float32), parameters(given, row)
    stands = np.zeros((2, len(v)), np.int64)
    for name, count in zip(("prompt", "generated"), stands, strict=True):
        tokens = given[name][row].astype(np.int64) if name in given else np.zeros(0, np.int64)
        np.add.at(count, tokens[(tokens >= 0) & (tokens < len(v))], 1)
    by, off, each = (np.float32(p[f"{name}_penalty"]) for name in ("repetition", "presence", "frequency"))
    with np.errstate(all="ignore"):
        v = np.where(stands.any(axis=0), np.where(v > 0, v / by, v * by), v)
        v = np.where(stands[1] > 0, v - each * stands[1].astype(np.float32) - off, v)
        return np.asarray(np.minimum(v + np.float32(0), LARGEST))


def _weights(v: NDArray[np.float32], temperature: float) -> tuple[Float, Float]:
    """Weights, 1 at the highest, and their errors."""
    with np.errstate(over="ignore", under="ignore"):
        t = (v.max().astype(np.float64) - v) * np.log2(np.e) / temperature
        weights = np.exp2(-t)
    return weights, (np.where(np.isfinite(t), 2 * t, 0) + 8) * U * weights + UNIT


def random_share(given: Mapping[str, Any], row: int) -> float:
    """Place of the row's draw in [0, 1)."""
    rng = given.get("rng", (0, 0))
    seed = int(given["seeds"][row]) % 2**64 if "seeds" in given else int(rng[0])
    offset = int(given["offsets"][row]) % 2**64 if "offsets" in given else int(rng[1])
    number = 0 if "seeds" in given else row
    words = philox4x32_7(seed, np.array(offset, np.uint64), np.array(number + (2**32 - 1 << 32), np.uint64))
    return (int(words[..., 0]) + (int(words[..., 1]) << 32)) / 2**64


def draws(given: Mapping[str, Any], row: int) -> Draws:
    """Tokens that the row may give: -1 with NaN where it has no token."""
    v, p = numbers(given, row), parameters(given, row)
    if not may_be(p) or np.isnan(v).any() or v.max() == -np.inf:
        return Draws(np.array([-1]), np.array([np.nan]), np.array([np.nan]))
    order = np.lexsort((np.arange(len(v)), -v))
    if p["temperature"] == 0:
        return Draws(order[:1], np.zeros(1), np.zeros(1))
    weights, errors = _weights(v, p["temperature"])
    order = order[: p["top_k"] or None]
    near = 2 * errors[order].sum() / weights[order].sum()
    sums = weights[order].cumsum() / weights[order].sum()
    fewest = int(np.searchsorted(sums, p["top_p"] - near)) + 1
    most = int(np.searchsorted(sums, p["top_p"] + near)) + 1
    some, many = np.zeros(len(v), bool), np.zeros(len(v), bool)
    some[order[: fewest if p["top_p"] < 1 else None]] = True
    many[order[: most if p["top_p"] < 1 else None]] = True
    some &= weights >= p["min_p"] + (errors if p["min_p"] else 0) * (weights < 1)
    many &= weights >= p["min_p"] - errors
    low, high = np.where(some, weights, 0), np.where(many, weights, 0)
    u, least, greatest = random_share(given, row), low.sum(), high.sum()
    # The first weight that is 0 in integers is never drawn.
    fits = many & (weights >= UNIT / 2)
    fits &= (low.cumsum() - low) / greatest - near <= u
    fits &= high.cumsum() / least + near > u
    tokens = np.flatnonzero(fits)
    with np.errstate(divide="ignore"):
        logs = np.log(weights[tokens])
    return Draws(tokens, logs - np.log(greatest) - near, logs - np.log(least) + near)


def excess(given: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """At most 1 where every token is one that may be drawn and its log probability is near its own."""
    worst = 0.0
    for row, token in enumerate(made["tokens"]):
        right = draws(given, row)
        at = np.flatnonzero(right.tokens == token)
        if not len(at):
            return np.inf
        if "logprobs" not in made:
            continue
        log, least, greatest = float(made["logprobs"][row]), right.least[at[0]], right.greatest[at[0]]
        if np.isnan(least) or np.isnan(log):
            if np.isnan(least) != np.isnan(log):
                return np.inf
            continue
        if given.get("logprob_of", "drawn") == "logits":
            v = np.minimum(given["logits"][row].astype(np.float32) + np.float32(0), LARGEST)
            weights, errors = _weights(v, 1.0)
            least = greatest = v[token].astype(np.float64) - v.max() - np.log(weights.sum())
            least, greatest = least - errors.sum() / weights.sum(), greatest + errors.sum() / weights.sum()
        bound = 2.0**-22 * (1 + abs(least))
        worst = max(worst, (least - log) / bound, (log - greatest) / bound)
    return worst


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Rows of any spread, with ties, infinities and NaN, parameters of all rows or of each, and tokens."""
    rows, columns = random.matrix()
    rows = min(rows, 7)
    logits = random.normal(rows, columns, dtype=signature["dtype"], scale=random.one((0.0, 1.0, 4.0, 40.0)))
    if rows > 1 and random.chance(0.3):
        logits[0] = np.round(logits[0].astype(np.float32)).astype(logits.dtype)
        logits[1, random.whole(0, columns - 1)] = random.one((np.nan, np.inf, -np.inf))
    given: dict[str, Any] = {
        "logits": logits, "rng": (random.whole(0, 2**64 - 1), random.whole(0, 99)), "return_logprobs": True,
        "logprob_of": random.one(("drawn", "logits")),
    }  # fmt: skip
    values: dict[str, tuple[Any, ...]] = {
        "temperature": (0.0, 0.7, 1.0, 3.0), "top_k": (0, 1, 5, 50, columns), "top_p": (1e-6, 0.3, 0.9, 1.0),
        "min_p": (0.0, 0.02, 1.0), "repetition_penalty": (1.0, 1.3, 0.5),
        "presence_penalty": (0.0, 0.5, -1.0), "frequency_penalty": (0.0, 0.1),
    }  # fmt: skip
    for name, some in values.items():
        if random.chance(0.25):
            each = [random.one(some) for _ in range(rows)]
            given[OF_ROWS[name]] = np.array(each, np.int32 if name == "top_k" else np.float32)
        elif random.chance(0.5):
            given[name] = random.one(some)
    for name in ("prompt", "generated"):
        if random.chance(0.5):
            tokens = random.numbers.integers(-1, columns + 1, (rows, random.one((0, 1, 9))))
            given[name] = tokens.astype(random.one((np.int32, np.int64)))
    for name in ("seeds", "offsets"):
        if random.chance(0.2):
            given[name] = random.numbers.integers(-(2**63), 2**63, rows)
    return Call(given, {"tokens": random.blank(rows, dtype="int32"), "logprobs": random.blank(rows, dtype="fp32")})
