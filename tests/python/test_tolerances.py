# SPDX-License-Identifier: MIT
"""The stated tolerances hold for unusual data: far soft caps, sinks beside scores of 0, long sums, flushes."""

from __future__ import annotations

import numpy as np
import pytest
from tilekiln import reference
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import quantised, rows

from tests.python.every_isa import HEADS, OPERATORS, arrays, backward_on_every_isa, compare, run

CAPS = [1e-3, 1.0, 50.0, 1e4, 1e8, 1e20]


@pytest.fixture(scope="session")
def libraries(load):
    return {name: load(name, targets="all") for name in ("flash", "fp32", "fp8")}


@pytest.mark.parametrize("operator", ["fmha_fwd", "fmha_fwd_pagedkv", "fmha_batch_prefill"])
@pytest.mark.parametrize("cap", CAPS)
def test_soft_caps(libraries, operator, cap):
    """The bound follows the score: those of 1 to 3, and those of 1e-3, under any cap."""
    how = OPERATORS[operator]
    q, k, v = arrays(how.dtype)
    for scale in (None, 1e-4):
        expected = reference.forward(q, k, v, softcap=cap, softmax_scale=scale)
        given = {} if scale is None else {"softmax_scale": scale}
        compare(how.dtype, expected, run(libraries["flash"], operator, q, k, v, softcap=cap, **given))


@pytest.mark.parametrize("cap", CAPS)
def test_soft_caps_of_gradients(libraries, cap):
    q, k, v = arrays(np.float32)
    dout = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)
    forward = reference.forward(q, k, v, softcap=cap)
    out, lse = forward.out.astype(np.float32), forward.lse.astype(np.float32)
    expected = reference.backward(dout, q, k, v, out, lse, softcap=cap)
    for name, (dq, dk, dv) in backward_on_every_isa(libraries["flash"], dout, q, k, v, out, lse, softcap=cap):
        assert reference.gradient_excess("fp32", expected, dq=dq, dk=dk, dv=dv) <= 1, name


def test_gradients_of_one_key_under_a_cap_it_saturates(libraries):
    """dP - D is 0 but for rounding where a row sees one key only; the slope is 0 but for rounding where tanh is 1."""
    q, k, v = arrays(np.float32)
    q, k, v = (np.abs(q), np.abs(k[:, :1]), v[:, :1])
    dout = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)
    for cap in (1e-3, 5e-3, 0.1):
        forward = reference.forward(q, k, v, softcap=cap)
        out, lse = forward.out.astype(np.float32), forward.lse.astype(np.float32)
        expected = reference.backward(dout, q, k, v, out, lse, softcap=cap)
        for name, (dq, dk, dv) in backward_on_every_isa(libraries["flash"], dout, q, k, v, out, lse, softcap=cap):
            assert reference.gradient_excess("fp32", expected, dq=dq, dk=dk, dv=dv) <= 1, name
        assert np.max(reference.TOLERANCE["fp32"].gradient_bound(expected.dq)) < 1e-10, "two roundings, multiplied"


def test_the_bound_does_not_grow_with_the_cap():
    q, k, v = arrays(np.float32)
    bounds = []
    for cap in (50.0, 1e20):
        result = reference.forward(q, k, v, softcap=cap)
        bounds.append(reference.TOLERANCE["fp32"].out_bound(result))
    np.testing.assert_allclose(bounds[0], bounds[1], rtol=0.05)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8fp32"])
def test_sinks_beside_scores_of_zero(libraries, dtype):
    """The sink is the only score with a rounding error."""
    receipt, operator = {"fp32": ("fp32", "fmha_fwd"), "bf16": ("flash", "fmha_batch_prefill")}.get(
        dtype, ("fp8", "fmha_fwd")
    )
    storage = NUMPY[dtype.removesuffix("fp32") or dtype]
    q, k, v = arrays(storage)
    q[...] = 0
    extra = {"out_dtype": "fp32", "lse": False} if dtype == "fp8fp32" else {}
    for first in (-9.3, 2.7, 11.9, 57.1):
        sink = np.array([first, first / 3], np.float32)
        expected = reference.forward(q, k, v, sink=sink)
        compare(dtype, expected, run(libraries[receipt], operator, q, k, v, sink=sink, **extra))


@pytest.mark.parametrize("hdim", [64, 128, 192, 256])
def test_long_sums_of_large_scores(libraries, hdim):
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal((1, 200, HEADS, hdim)).astype(np.float32) for _ in range(3))
    q *= 20
    expected = reference.forward(q, k, v, causal=True)
    compare(np.float32, expected, run(libraries["flash"], "fmha_fwd", q, k, v, causal=True))


@pytest.mark.parametrize("operator", ["fmha_fwd", "fmha_fwd_splitkv", "fmha_fwd_pagedkv"])
def test_sums_of_like_terms(libraries, operator):
    """Thousands of keys of one score and value: rounding errors of one sign. One key is heavier, so that p is not 1."""
    keys = 4096
    q, k, v = np.ones((1, 5, HEADS, 64), np.float32), np.ones((1, keys, 1, 64), np.float32), None
    k *= np.float32(0.013)
    k[:, 0] *= 3
    v = np.broadcast_to(np.linspace(0.3, 0.8, 64, dtype=np.float32), k.shape).copy()
    expected = reference.forward(q, k, v)
    drift = (64 + keys / 64) * 2.0**-25
    for name, out, lse in run(libraries["flash"], operator, q, k, v):
        assert np.all(np.abs(out.reshape(q.shape) - expected.out) <= drift * expected.magnitude), name
        if lse is not None:
            assert np.all(np.abs(lse.reshape(expected.lse.shape) - expected.lse) <= drift), name


def test_weights_that_flush(libraries):
    """A weight below 2^-126 may be 0, however large the value is that it would have met."""
    q, k, v = arrays(np.float32)
    q[...], k[...], k[:, 0], v[...], v[:, 0] = 1, 0, 1, v * 8, 0
    for first in (87.2, 87.4, 88.0):
        expected = reference.forward(q, k, v, softmax_scale=first / q.shape[-1])
        made = run(libraries["flash"], "fmha_fwd", q, k, v, softmax_scale=first / q.shape[-1])
        compare(np.float32, expected, made)
        assert np.max(reference.TOLERANCE["fp32"].out_bound(expected)) < 1e-34, "as small as what is lost"


def test_results_that_flush(libraries):
    """bf16 instructions take numbers below 2^-126 as 0 before dropout's 1 / (1 - p) raises them."""
    q, k, v = arrays(NUMPY["bf16"])
    v = (v.astype(np.float32) * 2.0**-124).astype(NUMPY["bf16"])
    for p in (0.5, 0.75, 0.9):
        options = {"dropout_p": p, "rng": (7, 8)}
        expected = reference.forward(q, k, v, **options)
        compare(NUMPY["bf16"], expected, run(libraries["flash"], "fmha_fwd", q, k, v, **options))


def test_a_number_that_is_none_is_no_quantised_row() -> None:
    v = np.array([[1.0, 2.0]])
    q = np.array([[np.nan, 448]], NUMPY["fp8"])
    scale = quantised.scales(v, q.dtype.name).astype(np.float32)
    assert not quantised.excess(q, scale, v, np.zeros_like(v)) <= 1
    q[0, 0] = 224
    assert quantised.excess(q, scale, v, np.zeros_like(v)) <= 1


def test_another_infinity_is_another_number() -> None:
    right, error = np.array([[np.inf, -np.inf, np.nan, 1.0]]), np.zeros((1, 4))
    assert rows.excess(right.astype(np.float32), right, error) <= 1
    for at, wrong in ((0, -np.inf), (0, np.nan), (1, np.inf), (1, np.nan), (2, np.inf), (3, np.inf)):
        y = right.astype(np.float32)
        y[0, at] = wrong
        assert not rows.excess(y, right, error) <= 1
