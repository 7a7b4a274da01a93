# SPDX-License-Identifier: MIT
"""causal_conv1d and its gradients against float64: shapes, layouts, states, packed sequences, special values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import causal_conv1d as reference
from tilekiln.reference.drawn import EDGES, Random

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

OPERATOR, GRADIENTS = "causal_conv1d", "causal_conv1d_bwd"
RESULTS = ("dx", "dweight", "dbias", "dinitial_state")


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("linear_attention", targets="all")


def channels_first(x: np.ndarray) -> np.ndarray:
    """The same numbers with tokens side by side in memory."""
    return np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)


def drawn(shape: tuple[int, int, int], width: int, dtype: str = "fp32") -> dict[str, Any]:
    random = np.random.default_rng(sum(shape) + width)
    batch, _, channels = shape
    shapes = {"x": shape, "weight": (channels, width), "bias": (channels,)}
    shapes["initial_state"] = (batch, channels, width - 1)
    return {name: random.standard_normal(of).astype(DTYPES[dtype]) for name, of in shapes.items()}


def call(lib: tk.Library, given: dict[str, Any], **how: Any) -> Any:
    rest = {name: value for name, value in given.items() if name not in ("x", "weight")}
    return lib.causal_conv1d(given["x"], given["weight"], **rest, **how)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("operator", [OPERATOR, GRADIENTS])
def test_every_isa_as_drawn(lib: tk.Library, operator: str, dtype: str, activation: str) -> None:
    random = Random(f"{dtype} {activation}", EDGES["cpu"])
    signature = {"dtype": dtype, "activation": activation}
    for number in range(24):
        given, made, over = reference.draw(operator, random, signature)[:3]
        turn = [lambda x: x, channels_first, lambda x: x[:, :, ::-1].copy()[:, :, ::-1]][number % 3]
        for of in (given, made):
            of.update({name: turn(of[name]) for name in ("x", "y", "dx") if name in of})
        for one in instances(lib, operator, **signature):
            arrays = dict(given)
            if "initial_state" in given:
                arrays["initial_state"] = given["initial_state"].copy()
            results = {name: arrays[over[name]] if name in over else value for name, value in made.items()}
            getattr(lib, operator)(**arrays, **results, instance=one)
            assert reference.answer(given, results) <= 1, (number, one)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_parts_have_the_bits_of_the_whole(lib: tk.Library, width: int) -> None:
    """Units, parts handed on by a state, one token at a time, and both layouts."""
    for dtype in DTYPES:
        given = drawn((2, 301, 40), width, dtype)
        for one in instances(lib, OPERATOR, dtype=dtype, activation="silu"):
            how: dict[str, Any] = {"activation": "silu", "instance": one}
            y, last = call(lib, given, return_final_state=True, **how)
            turned, again = call(
                lib, given | {"x": channels_first(given["x"])}, y=channels_first(np.zeros_like(y)),
                return_final_state=True, **how,
            )  # fmt: skip
            assert (turned.tobytes(), again.tobytes()) == (y.tobytes(), last.tobytes())
            state, made = given["initial_state"].copy(), []
            for first, end in ((0, 1), (1, 2), (2, 3), (3, 200), (200, 300), (300, 301)):
                part = given | {"x": given["x"][:, first:end], "initial_state": state}
                made.append(call(lib, part, final_state=state, **how))
            assert np.concatenate(made, 1).tobytes() == y.tobytes()
            assert state.tobytes() == last.tobytes()


def test_packed_sequences_have_the_bits_of_each_alone(lib: tk.Library) -> None:
    """Each sequence starts at its own state; empty ones hand theirs on."""
    starts = np.array([0, 2, 2, 131, 300], np.int32)
    for dtype in DTYPES:
        given = drawn((1, 300, 40), 4, dtype)
        states = drawn((4, 1, 40), 4, dtype)["initial_state"]
        for one in instances(lib, OPERATOR, dtype=dtype, activation="silu"):
            how: dict[str, Any] = {"activation": "silu", "instance": one, "return_final_state": True}
            y, last = call(lib, given | {"initial_state": states}, cu_seqlens=starts, **how)
            for i, (first, end) in enumerate(itertools.pairwise(starts)):
                alone = given | {"x": given["x"][:, first:end], "initial_state": states[i : i + 1]}
                own, state = call(lib, alone, **how)
                assert own.tobytes() == y[:, first:end].tobytes()
                assert state.tobytes() == last[i : i + 1].tobytes()


def test_gradients_are_those_of_differences(lib: tk.Library) -> None:
    """The reference's own derivative, by small steps of every argument."""
    given = {name: array.astype(np.float64) for name, array in drawn((2, 5, 3), 4).items()}
    random = np.random.default_rng(1)
    dy, dlast = random.standard_normal((2, 5, 3)), random.standard_normal((2, 3, 3))

    def loss(**changed: Any) -> float:
        made = reference.causal_conv1d(**{**given, **changed}, activation="silu")
        return float((made.y * dy).sum() + (made.final_state * dlast).sum())

    right = reference.causal_conv1d_bwd(dy, **given, dfinal_state=dlast, activation="silu")
    for name, array in given.items():
        slope = np.empty(array.shape)
        for at in np.ndindex(*array.shape):
            step = np.zeros(array.shape)
            step[at] = 1e-5
            slope[at] = (loss(**{name: array + step}) - loss(**{name: array - step})) / 2e-5
        np.testing.assert_allclose(getattr(right, f"d{name}")[0], slope, rtol=1e-6, atol=1e-8)


def test_a_wrong_tap_is_seen(lib: tk.Library) -> None:
    given = drawn((1, 9, 5), 4)
    made = dict(zip(("y", "final_state"), call(lib, given, return_final_state=True), strict=True))
    assert reference.answer(given, made) <= 1
    for name, value in given.items():
        changed = value.copy()
        changed.flat[3] += 0.01
        assert reference.answer(given | {name: changed}, made) > 1, name
    assert reference.answer(given | {"activation": "silu"}, made) > 1
    given |= {"dy": drawn((1, 9, 5), 3)["x"]}
    asked = {"return_dbias": True, "return_dinitial_state": True, "activation": "silu"}
    gradients = dict(zip(RESULTS, lib.causal_conv1d_bwd(**given, **asked), strict=True))
    said = given | {"activation": "silu"}
    assert reference.answer(said, gradients) <= 1
    for name, value in given.items():
        changed = value.copy()
        changed.flat[3] += 0.01
        assert reference.answer(said | {name: changed}, gradients) > 1, name


def test_special_values_stay_in_their_window(lib: tk.Library) -> None:
    for dtype in DTYPES:
        given = drawn((1, 12, 3), 4, dtype)
        given["weight"][...] = 1
        given["x"][0, 2, 0], given["x"][0, 3, 1], given["x"][0, 4, 2] = np.nan, np.inf, -np.inf
        for activation in ("none", "silu"):
            for one in instances(lib, OPERATOR, dtype=dtype, activation=activation):
                y = call(lib, given, activation=activation, instance=one)
                assert np.flatnonzero(np.isnan(y[0, :, 0])).tolist() == [2, 3, 4, 5]
                assert np.flatnonzero(np.isposinf(y[0, :, 1])).tolist() == [3, 4, 5, 6]
                low = y[0, 4:8, 2].astype(np.float64)
                assert (np.isneginf(low) if activation == "none" else np.abs(low) <= 2.0**-100).all()
                assert np.isfinite(y[0, 8:]).all()


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        for shape in ((2, 1, 33), (1, 150, 19)):
            plain = drawn(shape, 3, dtype)
            given = {name: guarded(array, where) for name, array in plain.items()}
            turned = guarded(given["x"].transpose(0, 2, 1).copy(), where).transpose(0, 2, 1)
            last = guarded(np.zeros_like(given["initial_state"]), where)
            for x in (given["x"], turned):
                y = guarded(np.zeros(shape, x.dtype), where)
                other = guarded(np.zeros((shape[0], shape[2], shape[1]), x.dtype), where).transpose(0, 2, 1)
                for one in instances(lib, OPERATOR, dtype=dtype, activation="none"):
                    for result in (y, other):
                        call(lib, given | {"x": x}, y=result, final_state=last, instance=one)
                        assert reference.answer(plain, {"y": result, "final_state": last}) <= 1


def test_gradients_have_the_bits_of_one_thread(lib: tk.Library) -> None:
    given = drawn((2, 300, 200), 4, "bf16")
    dy = drawn((2, 300, 200), 3, "bf16")["x"]
    how = {"activation": "silu", "return_dbias": True, "return_dinitial_state": True}
    right = lib.causal_conv1d_bwd(dy, **given, **how, num_threads=1)
    turned = given | {"x": channels_first(given["x"])}
    with tk.Stream() as stream:
        later = lib.causal_conv1d_bwd(dy, **given, **how, stream=stream)
    others = lib.causal_conv1d_bwd(dy, **given, **how, num_threads=3), lib.causal_conv1d_bwd(dy, **turned, **how)
    for made in (later, *others):
        assert [one.tobytes() for one in made] == [one.tobytes() for one in right]


@pytest.mark.parametrize("where", ["before", "after"])
def test_gradients_touch_nothing_outside(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        plain = drawn((2, 19, 33), 3, dtype) | {"dy": drawn((2, 19, 33), 2, dtype)["x"]}
        plain["dfinal_state"] = plain["initial_state"]
        given = {name: guarded(array, where) for name, array in plain.items()}
        names = dict(zip(RESULTS, ("x", "weight", "bias", "initial_state"), strict=True))
        made = {name: guarded(np.zeros_like(plain[of]), where) for name, of in names.items()}
        for one in instances(lib, GRADIENTS, dtype=dtype, activation="silu"):
            lib.causal_conv1d_bwd(**given, **made, activation="silu", instance=one)
            assert reference.answer(plain | {"activation": "silu"}, made) <= 1


def test_threads_and_streams(lib: tk.Library) -> None:
    given = drawn((2, 600, 1200), 4, "bf16")
    y = call(lib, given, activation="silu", num_threads=1)
    with tk.Stream() as stream:
        later = call(lib, given, activation="silu", stream=stream)
    for made in (later, call(lib, given, activation="silu", num_threads=3)):
        assert made.tobytes() == y.tobytes()


ROW = np.zeros((1, 5, 6), "f")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"weight": np.zeros((6, 5), "f")}, "weight: width was 5, must be from 2 to 4"),
    ({"weight": np.zeros((5, 4), "f")}, "weight: channel count was 5, must be 6, the channel count of x"),
    ({"weight": np.zeros((6, 4), "f2")}, "weight: dtype was fp16, must be fp32, the dtype of x"),
    ({"initial_state": np.zeros((2, 6, 4), "f")}, "initial_state: shape was (2, 6, 4), must be (2, 6, 3)"),
    ({"final_state": np.zeros((2, 3, 6), "f")}, "final_state: shape was (2, 3, 6), must be (2, 6, 3)"),
    ({"bias": np.zeros(7, "f")}, "bias: channels was 7, must be 6"),
    ({"activation": "relu"}, "activation: was 'relu', must be"),
    ({"cu_seqlens": np.array([0, 5], "i4")}, "x: batch was 2, must be 1 with cu_seqlens"),
    ({"cu_seqlens": np.array([], "i4")}, "cu_seqlens: sequences + 1 was 0, must be"),
    ({"x": ROW, "cu_seqlens": np.array([0, 2, 1, 5], "i4")}, "cu_seqlens: entry 2 was 1, must be at least 2, the one"),
    ({"x": ROW, "cu_seqlens": np.array([1, 5], "i4")}, "cu_seqlens: entry 0 was 1, must be 0, the first token"),
    ({"x": ROW, "cu_seqlens": np.array([0, -2, 5], "i4")}, "cu_seqlens: entry 1 was -2, must be at least 0"),
    ({"x": ROW, "cu_seqlens": np.array([0, 2, 4], "i4")}, "cu_seqlens: entry 2 was 4, must be 5, the seqlen of x"),
    ({"x": ROW, "cu_seqlens": np.array([0, 2, 5])}, "cu_seqlens: dtype was int64, must be int32"),
    (
        {"x": ROW, "cu_seqlens": np.array([0, 2, 5], "i4"), "initial_state": np.zeros((1, 6, 3), "f")},
        "initial_state: shape was (1, 6, 3), must be (2, 6, 3)",
    ),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"x": np.zeros((2, 5, 6), "f"), "weight": np.zeros((6, 4), "f"), **changes}
    with pytest.raises(tk.ArgumentError) as raised:
        call(lib, given)
    assert str(raised.value).startswith(says)


def test_results_have_memory_of_their_own(lib: tk.Library) -> None:
    given = drawn((2, 5, 6), 4)
    with pytest.raises(tk.ArgumentError, match=r"^y: shares memory with x, must have its own"):
        call(lib, given, y=given["x"])
    with pytest.raises(tk.ArgumentError, match=r"^final_state: shares memory with initial_state"):
        call(lib, given, final_state=given["initial_state"][::-1])
