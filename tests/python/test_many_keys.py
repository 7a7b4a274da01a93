# SPDX-License-Identifier: MIT
"""Sums over very many keys: a key that adds next to nothing leaves next to no trace in out, LSE and gradients.

Running sums are multiplied by alpha = 2^(c m - c m') for each block of keys. Where the maximum m stays, alpha is 1;
one that is 1e-7 away from it is so in every block, and 100,000 keys make 2e-4 of it.
"""

from __future__ import annotations

import numpy as np
import pytest
from tilekiln._core.dtypes import FLOATS, WORDS

from tests.python.every_isa import backward_on_every_isa, run

UNIT = 2.0**-24
ROUNDED = {"fp32": UNIT, "fp16": 2.0**-11, "bf16": 2 * 2.0**-8}  # out, and of bf16 P before it meets v
ROWS, HDIM = 12, 32
TOP = 100.125  # times a row of q exact in fp16 and fp32; times log2(e) in none
SLOPES = 1 + np.arange(ROWS) / 16
OPERATORS = ["fmha_fwd", "fmha_fwd_splitkv"]


@pytest.fixture(scope="session")
def flash(load):
    return load("flash", targets="all")


def problem(keys, dtype, scores, rows=SLOPES):
    """q, k, v whose logits are `rows` times `scores` of each key, in `dtype`; the greatest logit of each row."""
    q = np.zeros((1, ROWS, 1, HDIM), dtype)
    q[0, :, 0, 0] = rows
    k = np.zeros((1, keys, 1, HDIM), dtype)
    k[0, :, 0, 0] = scores
    v = np.random.default_rng(0).standard_normal((1, keys, 1, HDIM), np.float32).astype(dtype)
    return q, k, v, q[0, :, 0, 0].astype(np.float64) * k[0, :, 0, 0].max().astype(np.float64)


def sink_first(keys):
    """Scores of which the first has all the weight: e^-100 times a million is nothing."""
    scores = np.random.default_rng(1).uniform(-60, 0, keys).astype(np.float32)
    scores[0] = TOP
    return scores


def check_sink(q, v, tops, results):
    name = WORDS[np.dtype(q.dtype).name]
    first = v[0, 0].astype(np.float64)
    assert results
    for kernel, out, lse in results:
        wrong = np.abs(out.astype(np.float64)[0] - first).max(initial=0)
        assert wrong <= (ROUNDED[name] + 3 * UNIT) * np.abs(first).max(), f"{kernel}: out is {wrong:.3g} off"
        wrong = (np.abs(lse[0, 0] - tops) / tops).max()
        assert wrong <= 2 * UNIT, f"{kernel}: lse is {wrong:.3g} of itself off"


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_first_of_100000_keys_dominates(flash, operator, dtype, causal):
    named = f"{operator} bf16" if dtype == FLOATS["bf16"] else operator
    q, k, v, tops = problem(100_000, dtype, sink_first(100_000))
    check_sink(q, v, tops, run(flash, named, q, k, v, softmax_scale=1.0, causal=causal))


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_first_of_a_million_keys_dominates(flash, operator):
    q, k, v, tops = problem(1_000_000, np.float32, sink_first(1_000_000))
    check_sink(q, v, tops, run(flash, operator, q, k, v, softmax_scale=1.0))


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_maximum_that_rises_by_next_to_nothing(flash, operator):
    """All keys weigh nearly the same: their sums drift by (64 + n / 64) u / 2 at most, see reference/tolerance.py."""
    keys = 100_000
    q, k, v, (top, *_) = problem(keys, np.float32, np.linspace(TOP, TOP + 1e-2, keys), rows=1)
    weights = np.exp(k[0, :, 0, 0].astype(np.float64) - top)
    total = weights.sum()
    values = v[0, :, 0].astype(np.float64)
    expected, magnitude = weights @ values / total, weights @ np.abs(values) / total
    bound = 16 * UNIT + (64 + keys / 64) * UNIT / 2
    for kernel, out, lse in run(flash, operator, q, k, v, softmax_scale=1.0):
        wrong = (np.abs(out[0, :, 0] - expected) / magnitude).max()
        assert wrong <= bound, f"{kernel}: out is {wrong:.3g} off"
        wrong = np.abs(lse - (top + np.log(total))).max()
        assert wrong <= bound + 4 * UNIT * top, f"{kernel}: lse is {wrong:.3g} off"


def test_dv_of_131072_keys(flash):
    """dv of the first key is the sum of dout; the forward's own LSE enters it."""
    keys = 131_072
    q, k, v, tops = problem(keys, np.float32, sink_first(keys))
    dout = np.random.default_rng(2).standard_normal((1, ROWS, 1, HDIM), np.float32)
    out, lse = flash.fmha_fwd(q, k, v, softmax_scale=1.0, return_lse=True)
    expected = dout[0, :, 0].sum(axis=0, dtype=np.float64)
    size = np.abs(dout[0, :, 0]).sum(axis=0, dtype=np.float64)
    for kernel, (_, _, dv) in backward_on_every_isa(flash, dout, q, k, v, out, lse, softmax_scale=1.0):
        wrong = (np.abs(dv[0, 0, 0] - expected) / size).max()
        assert wrong <= 4 * UNIT * tops.max(), f"{kernel}: dv is {wrong:.3g} off"
        assert np.abs(dv[0, 1:]).max() < 1e-20
