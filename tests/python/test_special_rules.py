# SPDX-License-Identifier: MIT
"""The rules of docs/reference/special-values.md, each on every ISA of the machine and every operator that can have it.

`tilekiln.reference` follows the same rules in float64, so each case also says what the rule itself promises.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tilekiln import reference

from tests.python.every_isa import HEADS, KEYS, OPERATORS, ROWS, arrays, backward_on_every_isa, compare, run

LOWEST = float(np.finfo(np.float32).min)


class Case(NamedTuple):
    """change: alters q, k and v in place and returns arguments. promise: checks the float64 result."""

    change: Callable[..., dict[str, Any]]
    promise: Callable[[reference.Result], None]


def rows_with_nan(result: reference.Result) -> list[int]:
    nan = np.isnan(result.out)
    rows = nan.any(axis=(0, 2, 3))
    assert np.array_equal(nan.all(axis=(0, 2, 3)), rows), "a row with NaN is NaN in all heads and dims"
    assert np.array_equal(np.isnan(result.lse).any(axis=(0, 1)), rows) or not np.isnan(result.lse).any()
    return list(np.flatnonzero(rows))


def nan_rows(*rows: int) -> Callable[[reference.Result], None]:
    return lambda result: rows_with_nan(result) == list(rows) or pytest.fail(f"NaN in rows {rows_with_nan(result)}")


def put(array: Any, index: Any, value: float) -> None:
    array[index] = value


def q_nan(q: Any, k: Any, v: Any) -> dict[str, Any]:
    q[:, 3, :, 5] = np.nan
    return {"causal": True}


def key_nan(q: Any, k: Any, v: Any) -> dict[str, Any]:
    k[:, KEYS - 3, :, 5] = np.nan
    return {"causal": True}


def value_of(value: float) -> Callable[..., dict[str, Any]]:
    """In V of a key that the first rows do not see, and of one that only the last row's window has left."""

    def change(q: Any, k: Any, v: Any) -> dict[str, Any]:
        v[:, KEYS - 3] = value
        return {"causal": True}

    return change


def value_left_of_the_window(q: Any, k: Any, v: Any) -> dict[str, Any]:
    v[:, KEYS - ROWS - 20 : KEYS - ROWS - 18] = np.nan  # row i sees keys from KEYS - ROWS + i - 20 on
    return {"window": (20, 0)}


def no_scale(q: Any, k: Any, v: Any) -> dict[str, Any]:
    q[:, 2, :, 7] = np.nan
    k[:, KEYS - 1, :, 0] = np.inf  # 0 inf is NaN too; the last row sees it
    return {"softmax_scale": 0.0, "causal": True}


def huge(scale: float) -> Callable[..., dict[str, Any]]:
    def change(q: Any, k: Any, v: Any) -> dict[str, Any]:
        q[:], k[:] = np.round(q * 4) / 4, np.round(k * 4) / 4  # exact scores: float64 and fp32 pick the same key
        return {"softmax_scale": scale}

    return change


def finite(result: reference.Result) -> None:
    assert np.isfinite(result.out).all()


CASES = {
    "NaN in q: its row": Case(q_nan, nan_rows(3)),
    "NaN in k: the rows that see the key": Case(key_nan, nan_rows(3, 4, 5)),
    "NaN in v: the rows that see the key": Case(value_of(np.nan), nan_rows(3, 4, 5)),
    "infinity in v: the rows that see the key": Case(
        value_of(np.inf), lambda r: np.testing.assert_array_equal(r.out[:, 3:], np.inf)
    ),
    "NaN in v left of a window": Case(value_left_of_the_window, nan_rows(0, 1)),
    "a scale of 0 hides nothing": Case(no_scale, nan_rows(2, 5)),
    "logits of 1e11": Case(huge(1e10), finite),
    "logits of 1e30": Case(huge(1e29), finite),
}


@pytest.fixture(scope="session")
def libraries(load):
    return {"flash": load("flash", targets="all"), "fp32": load("fp32", targets="all")}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("case", CASES)
def test_rule(libraries, case, operator):
    how = OPERATORS[operator]
    q, k, v = arrays(how.dtype)
    arguments = CASES[case].change(q, k, v)
    expected = reference.forward(q, k, v, **arguments)
    CASES[case].promise(expected)
    compare(how.dtype, expected, run(libraries[how.receipt], operator, q, k, v, **arguments))


NAN_BITS = [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFC000FF]


@pytest.mark.parametrize("operator", ["fmha_fwd", "fmha_fwd_pagedkv", "fmha_batch_prefill"])
def test_soft_cap_keeps_every_nan(libraries, operator):
    """Whatever the payload of the NaN, in q and in k; an infinite score is the cap itself."""
    how = OPERATORS[operator]
    for bits in NAN_BITS:
        q, k, v = arrays(how.dtype)
        nan = np.array([bits], np.uint32).view(np.float32)[0] if how.dtype == np.float32 else np.float32(np.nan)
        q[:, 1, :, 3] = nan
        k[:, KEYS - 1, :, 0] = nan
        expected = reference.forward(q, k, v, softcap=5.0, causal=True)
        nan_rows(1, 5)(expected)
        compare(how.dtype, expected, run(libraries["flash"], operator, q, k, v, softcap=5.0, causal=True))
    q, k, v = arrays(how.dtype)
    q[:, 2, :, 0], k[:, :, :, 0] = np.inf, np.where(k[:, :, :, 0] == 0, 1, k[:, :, :, 0])
    expected = reference.forward(q, k, v, softcap=5.0)
    finite(expected)
    compare(how.dtype, expected, run(libraries["flash"], operator, q, k, v, softcap=5.0))


SINKS = [-np.inf, np.inf, np.nan, LOWEST, -1e30, -3e4, -200.0, -20.0, 40.0, 1e30]


@pytest.mark.parametrize("operator", ["fmha_fwd", "fmha_batch_prefill"])
@pytest.mark.parametrize("scale", [None, 1e-38, 1e-10, 0.0])
def test_sinks(libraries, operator, scale):
    """NaN and +inf reach every row; -inf is no sink; anything finite is a logit, all there is in a row without keys."""
    how = OPERATORS[operator]
    q, k, v = arrays(how.dtype)
    if operator == "fmha_fwd":
        k, v = k[:, : ROWS - 2], v[:, : ROWS - 2]  # the first two rows see no key
    for first, second in itertools.pairwise(SINKS):
        arguments = {"sink": np.array([first, second], np.float32), "causal": True}
        if scale is not None:
            arguments["softmax_scale"] = scale
        expected = reference.forward(q, k, v, **arguments)
        for head, sink in enumerate((first, second)):
            assert np.isnan(expected.out[:, :, head]).all() == (np.isnan(sink) or sink == np.inf)
        library = libraries["fp32" if operator == "fmha_fwd" else "flash"]
        compare(how.dtype, expected, run(library, operator, q, k, v, **arguments))


def test_a_finite_bias_masks_nothing(libraries):
    """A row of finfo.min has equal weights, as float64 and torch have it; -inf masks; they can meet in one row."""
    q, k, v = arrays(np.float32)
    bias = np.zeros((1, 1, ROWS, KEYS), np.float32)
    bias[..., 1, :] = LOWEST
    bias[..., 2, :] = LOWEST
    bias[..., 2, 40:] = -np.inf
    bias[..., 3, :] = -np.inf
    bias[..., 4, :-1] = LOWEST
    expected = reference.forward(q, k, v, bias=bias)
    np.testing.assert_allclose(expected.out[0, 1, 0], v[0, :, 0].mean(axis=0, dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(expected.out[0, 2, 0], v[0, :40, 0].mean(axis=0, dtype=np.float64), rtol=1e-9)
    assert np.all(expected.out[0, 3] == 0)
    np.testing.assert_array_equal(expected.out[0, 4, 0], v[0, -1, 0].astype(np.float64))
    made = run(libraries["fp32"], "fmha_fwd", q, k, v, bias=bias)
    compare(np.float32, expected, made)
    # Rows 1 and 2 have no gradient, though a finite LSE: it cannot hold the number of keys.
    _, out, lse = made[0]
    dout = np.ones_like(q)
    gradients = reference.backward(dout, q, k, v, out, lse, bias=bias)
    assert np.all(gradients.dq.value[:, 1:4] == 0)
    for name, (dq, dk, dv) in backward_on_every_isa(libraries["fp32"], dout, q, k, v, out, lse, bias=bias):
        assert reference.gradient_excess("fp32", gradients, dq=dq, dk=dk, dv=dv) <= 1, name


@pytest.mark.parametrize("arguments", [{}, {"softcap": 5.0}, {"softmax_scale": 0.0}], ids=str)
def test_nan_in_gradients(libraries, arguments):
    """A row with NaN in q gives NaN to its dq and to dk and dv of the keys it sees, and to no other dq."""
    q, k, v = arrays(np.float32)
    q[:, 4, :, 3] = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0]
    forward = reference.forward(q, k, v, **arguments)
    out, lse = forward.out.astype(np.float32), forward.lse.astype(np.float32)
    made = backward_on_every_isa(libraries["flash"], np.ones_like(q), q, k, v, out, lse, **arguments)
    for name, (dq, dk, dv) in made:
        assert np.isnan(dq[:, 4]).all(), name
        assert np.isfinite(np.delete(dq, 4, axis=1)).all(), name
        assert np.isnan(dk).all(), name
        assert np.isnan(dv).all(), name


def test_nan_sink_in_gradients(libraries):
    q, k, v = arrays(np.float32)
    sink = np.array([np.nan, -20.0], np.float32)
    forward = reference.forward(q, k, v, sink=sink)
    out, lse = forward.out.astype(np.float32), forward.lse.astype(np.float32)
    d_sink = np.zeros(HEADS, np.float32)
    expected = reference.backward(np.ones_like(q), q, k, v, out, lse, sink=sink)
    assert np.isnan(expected.d_sink.value[0])
    for name, (dq, *_) in backward_on_every_isa(
        libraries["flash"], np.ones_like(q), q, k, v, out, lse, sink=sink, d_sink=d_sink
    ):
        assert np.isnan(dq[:, :, 0]).all(), name
        assert np.isnan(d_sink[0]), name
        assert np.isfinite(dq[:, :, 1]).all(), name
        assert np.isfinite(d_sink[1]), name


@pytest.mark.parametrize("scale", [1e10, 1e29])
def test_gradients_of_huge_logits_are_finite(libraries, scale):
    q, k, v = arrays(np.float32)
    forward = reference.forward(q, k, v, softmax_scale=scale)
    out, lse = forward.out.astype(np.float32), forward.lse.astype(np.float32)
    made = backward_on_every_isa(libraries["flash"], np.ones_like(q), q, k, v, out, lse, softmax_scale=scale)
    for name, gradients in made:
        for gradient in gradients:
            assert np.isfinite(gradient).all(), name
