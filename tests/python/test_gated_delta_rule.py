"""gated_delta_rule against float64: both gates, chunks and steps, states, special values, memory, every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gated_delta_rule as reference
from tilekiln.reference.drawn import EDGES, Random

from tests.python.guard import guarded
from tests.python.rows import DTYPES

OPERATOR = "gated_delta_rule"
ARRAYS = ("q", "k", "v", "g", "beta")


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("linear_attention", targets="all")


def engines(lib: tk.Library, dtype: str, gate: str, pipeline: str = "chunks,steps") -> list[int]:
    """Of one signature, those that this machine runs."""
    found = lib.instances(f"family={OPERATOR} dtype={dtype} gate={gate} pipeline={pipeline}")
    assert found
    return [one.number for one in found if lib.instance_usable(one.number)]


def drawn(tokens: int, gate: str = "head", dtype: str = "fp32", seed: int = 0, batch: int = 2) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    normal = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    given = {
        "q": normal(batch, tokens, 2, 40), "k": normal(batch, tokens, 2, 40), "v": normal(batch, tokens, 4, 48),
        "g": -np.abs(normal(batch, tokens, 4, *([40] if gate == "channel" else []))) / 4,
        "beta": 1 / (1 + np.exp(-normal(batch, tokens, 4))),
        "initial_state": normal(batch, 4, 40, 48),
    }  # fmt: skip
    for name in ("q", "k", "v", "beta"):
        given[name] = given[name].astype(DTYPES[dtype])
    return given


def call(lib: tk.Library, given: dict[str, Any], **how: Any) -> Any:
    rest = {name: value for name, value in given.items() if name not in ARRAYS}
    return lib.gated_delta_rule(*(given[name] for name in ARRAYS), **rest, **how)


def both(lib: tk.Library, given: dict[str, Any], **how: Any) -> dict[str, Any]:
    made = call(lib, given, qk_l2norm=True, return_final_state=True, **how)
    return dict(zip(("out", "final_state"), made, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", ["head", "channel"])
def test_every_isa_as_drawn(lib: tk.Library, dtype: str, gate: str) -> None:
    random = Random(f"{dtype} {gate}", EDGES["cpu"])
    signature = {"dtype": dtype, "gate": gate}
    for number in range(24):
        given, made, over = reference.draw(OPERATOR, random, signature)[:3]
        for one in engines(lib, dtype, gate):
            arrays = dict(given)
            if "initial_state" in given:
                arrays["initial_state"] = given["initial_state"].copy()
            results = {name: arrays[over[name]] if name in over else value for name, value in made.items()}
            call(lib, arrays, **results, instance=one)
            assert reference.answer(given, results) <= 1, (number, one)


def test_a_prompt_goes_in_chunks_and_a_token_in_steps(lib: tk.Library) -> None:
    for gate in ("head", "channel"):
        for tokens, pipeline in ((1, "steps"), (15, "steps"), (16, "chunks"), (200, "chunks")):
            given = drawn(tokens, gate)
            arrays = [given[name] for name in ARRAYS]
            assert lib.gated_delta_rule_find(*arrays) in engines(lib, "fp32", gate, pipeline)


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_parts_of_a_sequence_hand_on_their_state(lib: tk.Library, gate: str) -> None:
    """Steps have the bits of the whole; chunks as well where a part ends with one."""
    given = drawn(300, gate, "bf16")
    for pipeline, ends in (("steps", (1, 2, 7, 300)), ("chunks", (64, 192, 300))):
        for one in engines(lib, "bf16", gate, pipeline):
            whole = both(lib, given, instance=one)
            state, made, first = given["initial_state"].copy(), [], 0
            for end in ends:
                part = {name: value[:, first:end] for name, value in given.items() if name in ARRAYS}
                part |= {"initial_state": state, "final_state": state}
                made.append(call(lib, part, qk_l2norm=True, instance=one))
                first = end
            assert np.concatenate(made, 1).tobytes() == whole["out"].tobytes()
            assert state.tobytes() == whole["final_state"].tobytes()


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_a_wrong_number_is_seen(lib: tk.Library, gate: str) -> None:
    given = drawn(70, gate)
    for one in engines(lib, "fp32", gate)[:2]:
        made = both(lib, given, instance=one)
        said = given | {"qk_l2norm": True}
        assert reference.answer(said, made) <= 1
        for name, value in given.items():
            changed = value.copy()
            changed.flat[5] -= 0.01
            assert reference.answer(said | {name: changed}, made) > 1, name
        assert reference.answer(given, made) > 1
        assert reference.answer(said | {"scale": 0.16}, made) > 1


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_a_token_sees_those_before_it_alone(lib: tk.Library, gate: str) -> None:
    """NaN, infinities and gates of -inf."""
    plain = drawn(80, gate, batch=1)
    for one in engines(lib, "fp32", gate):
        right = both(lib, plain, instance=one)
        for name in ARRAYS:
            for wrong in (np.nan, np.inf):
                if (name, wrong) == ("g", np.inf):
                    continue
                given = plain | {name: plain[name].copy()}
                given[name][0, 70] = wrong
                made = both(lib, given, instance=one)
                assert np.array_equal(made["out"][:, :70], right["out"][:, :70])
                assert np.isnan(made["out"][:, 70]).any() or np.isinf(made["out"][:, 70]).any()
        given = plain | {"g": plain["g"].copy()}
        given["g"][0, 66] = -np.inf  # nothing before it is kept
        late = {name: value[:, 66:] for name, value in given.items() if name in ARRAYS}
        late["initial_state"] = np.zeros_like(plain["initial_state"])
        made, alone = both(lib, given, instance=one), both(lib, late, instance=one)
        np.testing.assert_allclose(made["out"][:, 66:], alone["out"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(made["final_state"], alone["final_state"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        for gate in ("head", "channel"):
            plain = drawn(19, gate, dtype)
            given = {name: guarded(array, where) for name, array in plain.items()}
            made = {"out": guarded(np.zeros_like(plain["v"]), where)}
            made["final_state"] = guarded(plain["initial_state"], where)
            for one in engines(lib, dtype, gate):
                call(lib, given, **made, qk_l2norm=True, instance=one)
                assert reference.answer(plain | {"qk_l2norm": True}, made) <= 1


def test_threads_streams_and_strides(lib: tk.Library) -> None:
    given = drawn(200, dtype="fp16")
    right = both(lib, given, num_threads=1)
    with tk.Stream() as stream:
        later = both(lib, given, stream=stream)
    apart = {}
    for name, value in given.items():
        room = np.zeros((*value.shape[:-1], value.shape[-1] + 3), value.dtype)[..., : value.shape[-1]]
        room[...] = value
        apart[name] = room if name != "beta" else value
    for made in (later, both(lib, given, num_threads=3), both(lib, apart)):
        assert {name: array.tobytes() for name, array in made.items()} == {
            name: array.tobytes() for name, array in right.items()
        }


BAD: list[tuple[dict[str, Any], str]] = [
    ({"k": np.zeros((1, 3, 2, 9), "f")}, "k: hdim was 9, must be 8, the hdim of q"),
    (
        {"v": np.zeros((1, 3, 3, 8), "f"), "g": np.zeros((1, 3, 3), "f"), "beta": np.zeros((1, 3, 3), "f")},
        "q: nhead was 2, must divide 3, the nhead of v",
    ),
    ({"v": np.zeros((1, 3, 4, 257), "f")}, "v: hdim was 257, must be from 1 to 256"),
    ({"g": np.zeros((1, 3, 5), "f")}, "g: nhead was 5, must be 4"),
    ({"g": np.zeros((1, 3), "f")}, "g: had 2 dimensions"),
    ({"g": np.zeros((1, 3, 4), "f2")}, "g: dtype was fp16, must be fp32"),
    ({"beta": np.zeros((1, 3, 4), "f2")}, "beta: dtype was fp16, must be fp32"),
    ({"initial_state": np.zeros((1, 4, 9, 8), "f")}, "initial_state: hdim_k was 9, must be 8"),
    ({"initial_state": np.zeros((1, 4, 8, 8), "f2")}, "initial_state: dtype was fp16, must be fp32"),
    ({"scale": float("nan")}, "scale: was nan, must be finite"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {
        "q": np.zeros((1, 3, 2, 8), "f"), "k": np.zeros((1, 3, 2, 8), "f"), "v": np.zeros((1, 3, 4, 8), "f"),
        "g": np.zeros((1, 3, 4), "f"), "beta": np.zeros((1, 3, 4), "f"), **changes,
    }  # fmt: skip
    with pytest.raises(tk.ArgumentError) as raised:
        call(lib, given)
    assert str(raised.value).startswith(says)
