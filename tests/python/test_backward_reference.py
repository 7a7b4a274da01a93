# SPDX-License-Identifier: MIT
"""The reference's backward against finite differences of its forward, both in float64, feature by feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tilekiln import reference
from tilekiln._core.dtypes import FLOATS

STEP = 1e-5  # central differences: the error is STEP^2 times a third derivative, and 1e-16 / STEP from cancellation

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (1, 1), "sink_size": 1},
    "top left": {"window": (2, 0), "mask_origin": "top_left"},
    "softcap": {"softcap": 1.5, "causal": True},
    "bias": {"bias": "full"},
    "bias for all": {"bias": "one"},
    "alibi": {"alibi_slopes": True},
    "sink": {"sink": True, "causal": True},
    "dropout": {"dropout_p": 0.4, "rng": (3, 11)},
    "scale": {"softmax_scale": -0.7},
    "bhsd": {"layout": "bhsd", "window": (2, 0)},
    "everything": {"bias": "full", "sink": True, "window": (3, 1), "dropout_p": 0.3, "rng": (5, 7)},
}
MODES = ("batch", "batch padded", "group", "group padded")


def problem(feature: dict[str, Any], mode: str) -> dict[str, Any]:
    """Two or three sequences with unequal lengths, one without queries, one without keys, 4 query and 2 key heads."""
    random = np.random.default_rng(11)
    group = mode.startswith("group")
    lengths_q, lengths_k = ([3, 0, 2], [5, 4, 0]) if group else ([3, 4], [5, 2])
    batch = len(lengths_q)
    arguments: dict[str, Any] = {}
    rows = []
    for side, lengths in (("q", lengths_q), ("k", lengths_k)):
        cumulative = np.cumsum([0, *lengths])
        if mode == "group":
            arguments[f"cu_seqlens_{side}"] = cumulative
        elif mode == "group padded":
            arguments |= {f"seqstart_{side}": cumulative + np.arange(batch + 1), f"seqlen_{side}": np.array(lengths)}
        elif mode == "batch padded":
            arguments[f"cu_seqlens_{side}"] = cumulative
        rows.append(int(cumulative[-1]) + batch * ("padded" in mode) if group else max(lengths))
    first = () if group else (batch,)
    q = random.normal(size=(*first, rows[0], 4, 4))
    k, v = random.normal(size=(*first, rows[1], 2, 4)), random.normal(size=(*first, rows[1], 2, 2))
    columns = max(lengths_k) if group else rows[1]
    feature = dict(feature)
    if feature.get("bias"):
        shape = (4 if feature["bias"] == "full" else 1, rows[0], columns)
        feature["bias"] = random.normal(size=shape if group else (batch if feature["bias"] == "full" else 1, *shape))
    if feature.get("alibi_slopes"):
        feature["alibi_slopes"] = random.uniform(0, 1, size=(batch, 4))
    if feature.get("sink"):
        feature["sink"] = random.normal(size=4)
    if feature.get("layout") == "bhsd":
        q, k, v = (np.swapaxes(x, -3, -2).copy() for x in (q, k, v))
    return {"q": q, "k": k, "v": v, **arguments, **feature}


def differences(arguments: dict[str, Any], name: str, dout: np.ndarray) -> np.ndarray:
    """d sum(dout out) / d arguments[name] by central differences."""
    array = arguments[name]
    result = np.zeros(array.shape)
    for index in np.ndindex(*array.shape):
        sides = []
        for step in (STEP, -STEP):
            moved = array.copy()
            moved[index] += step
            sides.append(np.sum(np.nan_to_num(reference.forward(**{**arguments, name: moved}).out) * dout))
        result[index] = (sides[0] - sides[1]) / (2 * STEP)
    return result


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("mode", MODES)
def test_against_finite_differences(name, mode):
    arguments = problem(FEATURES[name], mode)
    exact = reference.forward(**arguments)
    dout = np.random.default_rng(12).normal(size=exact.out.shape)
    got = reference.backward(dout, **arguments)
    again = reference.backward(dout, **arguments, out=exact.out, lse=exact.lse)
    for gradient, argument in (("dq", "q"), ("dk", "k"), ("dv", "v"), ("dbias", "bias"), ("d_sink", "sink")):
        ours = getattr(got, gradient)
        if ours is None:
            assert arguments.get(argument) is None
            continue
        np.testing.assert_array_equal(ours.value, getattr(again, gradient).value)
        expected = differences(arguments, argument, dout)
        value = ours.value
        if expected.shape != value.shape:  # a broadcast bias: its gradient is the sum over what it was broadcast to
            axes = tuple(i for i, (a, b) in enumerate(zip(expected.shape, value.shape, strict=True)) if a != b)
            value = value.sum(axis=axes, keepdims=True)
        np.testing.assert_allclose(value, expected, rtol=1e-7, atol=1e-8)
        assert np.all(value[expected != 0] != 0)
        assert np.all(ours.value[~ours.touched] == 0)


def test_zero_length_sequences_and_padding():
    arguments = problem({"causal": True}, "group padded")
    dout = np.ones((8, 4, 2))
    got = reference.backward(dout, **arguments)
    # starts 0, 4, 5 and 0, 6, 11; lengths 3, 0, 2 and 5, 4, 0
    assert np.flatnonzero(got.dq.touched[:, 0, 0]).tolist() == [0, 1, 2, 5, 6]
    assert np.flatnonzero(got.dk.touched[:, 0, 0]).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert np.all(got.dk.value[6:10] == 0)
    assert np.all(got.dv.value[6:10] == 0)
    assert np.all(got.dq.value[5:7] == 0)
    dq, dk, dv = (np.full(arguments[name].shape, 7.0) for name in "qkv")
    delta = np.full((4, 8), 7.0)
    reference.fmha_bwd(dout, **arguments, dq=dq, dk=dk, dv=dv, delta=delta)
    assert np.all((dq == 7).all(axis=(1, 2)) == ~np.isin(np.arange(8), [0, 1, 2, 5, 6]))
    assert np.all(dk[5] == 7)
    assert np.all(dk[10:] == 7)
    assert np.all(dk[6:10] == 0)
    np.testing.assert_allclose(delta[:, :3], (dout * reference.fmha_fwd(**arguments)).sum(axis=-1).T[:, :3])


def test_results_and_errors():
    arguments = problem({"bias": "one", "sink": True}, "batch")
    dout = np.ones((2, 4, 4, 2))
    assert len(reference.fmha_bwd(dout, **arguments)) == 3
    *_, dbias, d_sink = reference.fmha_bwd(dout, **arguments, dbias=True, d_sink=True)
    assert dbias.shape == (2, 4, 4, 5)
    assert d_sink.shape == (4,)
    for name, needs in (("dbias", "bias"), ("d_sink", "sink")):
        plain = {key: value for key, value in arguments.items() if key not in ("bias", "sink")}
        with pytest.raises(ValueError, match=f"{name} needs {needs}"):
            reference.fmha_bwd(dout, **plain, **{name: True})


def test_a_sink_that_is_minus_infinity_gets_nothing():
    arguments = problem({"sink": True, "causal": True}, "batch")
    arguments["sink"][1] = -np.inf
    got = reference.backward(np.ones((2, 4, 4, 2)), **arguments)
    assert got.d_sink.value[1] == 0
    assert np.all(got.d_sink.value[[0, 2, 3]] != 0)


@pytest.mark.parametrize(("dtype", "storage"), [(word, dtype.type) for word, dtype in FLOATS.items()])
def test_gradient_excess(dtype, storage):
    """Honest rounding passes, the smallest real mistakes do not."""
    arguments = problem({"bias": "full", "sink": True}, "batch padded")
    dout = np.random.default_rng(13).normal(size=(2, 4, 4, 2))
    expected = reference.backward(dout, **arguments)
    made = {name: getattr(expected, name).value.astype(storage) for name in ("dq", "dk", "dv", "dbias")}
    made["d_sink"] = expected.d_sink.value.astype(np.float32)
    assert reference.gradient_excess(dtype, expected, **made) <= 1
    for name, array in made.items():
        for wrong in (np.nan, np.inf, float(array[0, 0, 0, 0] if array.ndim > 1 else array[0]) * 1.2 + 1e-3):
            bad = array.copy()
            bad[(0,) * array.ndim] = wrong
            assert reference.gradient_excess(dtype, expected, **{**made, name: bad}) > 1, name
    swapped = made["dq"][:, :, ::-1]
    assert reference.gradient_excess(dtype, expected, dq=swapped) > 1
