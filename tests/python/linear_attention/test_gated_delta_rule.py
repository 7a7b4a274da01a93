# SPDX-License-Identifier: MIT
"""gated_delta_rule and its gradients against float64: gates, updates, chunks and steps, states, packed sequences."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gated_delta_rule as reference
from tilekiln.reference.drawn import EDGES, Random

from tests.python.guard import guarded
from tests.python.rows import DTYPES

OPERATOR, GRADIENTS = "gated_delta_rule", "gated_delta_rule_bwd"
ARRAYS = ("q", "k", "v", "g", "beta")


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("linear_attention", targets="all")


def engines(
    lib: tk.Library, dtype: str, gate: str, pipeline: str = "chunks,steps", update: str = "delta", of: str = OPERATOR
) -> list[int]:
    """Of one signature, those that this machine runs."""
    kinds = "chunks" if of == GRADIENTS else pipeline
    found = lib.instances(f"family={of} dtype={dtype} gate={gate} update={update} pipeline={kinds}")
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


def gradients(lib: tk.Library, given: dict[str, Any], **how: Any) -> dict[str, Any]:
    made = lib.gated_delta_rule_bwd(**given, **how, qk_l2norm=True, return_dinitial_state=True)
    return dict(zip((*(f"d{name}" for name in ARRAYS), "dinitial_state"), made, strict=True))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", ["head", "channel"])
@pytest.mark.parametrize("update", ["delta", "add"])
@pytest.mark.parametrize("operator", [OPERATOR, GRADIENTS])
def test_every_isa_as_drawn(lib: tk.Library, operator: str, update: str, gate: str, dtype: str) -> None:
    random = Random(f"{dtype} {gate} {update}", EDGES["cpu"])
    signature = {"dtype": dtype, "gate": gate, "update": update}
    for number in range(16):
        given, made, over = reference.draw(operator, random, signature)[:3]
        for one in engines(lib, dtype, gate, update=update, of=operator):
            arrays = dict(given)
            if "initial_state" in given:
                arrays["initial_state"] = given["initial_state"].copy()
            results = {name: arrays[over[name]] if name in over else value for name, value in made.items()}
            getattr(lib, operator)(**arrays, **results, instance=one)
            assert reference.answer(given, results) <= 1, (number, one)


@pytest.mark.parametrize("update", ["delta", "add"])
@pytest.mark.parametrize("gate", ["head", "channel"])
def test_gradients_are_those_of_differences(gate: str, update: str) -> None:
    """The reference's own derivative, by small steps along random directions of every argument."""
    given = {name: array.astype(np.float64) for name, array in drawn(7, gate, batch=1).items()}
    random = np.random.default_rng(1)
    dout, dlast = random.standard_normal(given["v"].shape), random.standard_normal(given["initial_state"].shape)
    how: dict[str, Any] = {"qk_l2norm": True, "update": update}

    def loss(**changed: Any) -> float:
        made = reference.gated_delta_rule(**{**given, **changed}, **how)
        return float((made.out * dout).sum() + (made.state * dlast).sum())

    right = reference.gated_delta_rule_bwd(dout, **given, dfinal_state=dlast, **how)
    for name, array in given.items():
        for _ in range(3):
            step = random.standard_normal(array.shape)
            slope = (loss(**{name: array + 1e-5 * step}) - loss(**{name: array - 1e-5 * step})) / 2e-5
            assert (right[f"d{name}"][0] * step).sum() == pytest.approx(slope, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("tokens", [0, 1, 31, 63, 64, 65, 127, 193])
def test_gradients_at_the_edges_of_chunks(lib: tk.Library, tokens: int) -> None:
    for gate in ("head", "channel"):
        given = drawn(tokens, gate, batch=1) | {"dout": drawn(tokens, batch=1, seed=1)["v"]}
        given["dfinal_state"] = drawn(1, batch=1, seed=2)["initial_state"]
        made = gradients(lib, given)
        assert reference.answer(given | {"qk_l2norm": True}, made) <= 1


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_packed_sequences_have_the_bits_of_each_alone(lib: tk.Library, gate: str) -> None:
    """Each sequence starts at its own state; empty ones hand theirs on, and their gradients."""
    starts = np.array([0, 5, 5, 90, 160], np.int32)
    given = drawn(160, gate, "bf16", batch=1) | {"dout": drawn(160, dtype="bf16", batch=1, seed=1)["v"]}
    given["initial_state"] = drawn(1, batch=4, seed=2)["initial_state"]
    given["dfinal_state"] = drawn(1, batch=4, seed=3)["initial_state"]
    forward = {name: value for name, value in given.items() if name not in ("dout", "dfinal_state")}
    for one in engines(lib, "bf16", gate):
        whole = both(lib, forward, cu_seqlens=starts, instance=one)
        for i, part in enumerate(reference.apart(forward | {"cu_seqlens": starts}, ARRAYS)):
            alone = both(lib, part, instance=one)
            assert alone["out"].tobytes() == whole["out"][:, starts[i] : starts[i + 1]].tobytes()
            assert alone["final_state"].tobytes() == whole["final_state"][i : i + 1].tobytes()
    whole = gradients(lib, given, cu_seqlens=starts)
    for i, part in enumerate(reference.apart(given | {"cu_seqlens": starts}, (*ARRAYS, "dout"))):
        for name, array in gradients(lib, part).items():
            at = slice(i, i + 1) if name == "dinitial_state" else (slice(None), slice(*starts[i : i + 2]))
            assert array.tobytes() == whole[name][at].tobytes(), name


def test_32k_tokens_take_no_square_of_them(lib: tk.Library) -> None:
    """A matrix of tokens by tokens would be 4 GB; a state a chunk and what tokens miss are 16 MB a head."""
    one = drawn(32768, batch=1)
    given = {name: np.ascontiguousarray(array[:, :, :1]) for name, array in one.items() if name in ARRAYS}
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    made = lib.gated_delta_rule(*given.values(), qk_l2norm=True, num_threads=1)
    lib.gated_delta_rule_bwd(made, *given.values(), qk_l2norm=True, num_threads=1)
    results = 2 * sum(array.nbytes for array in given.values())
    assert memory("VmHWM") - before < results + 40e6


def memory(name: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) * 1024


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
    given |= {"dout": drawn(70, seed=1)["v"]}
    said, made = given | {"qk_l2norm": True}, gradients(lib, given)
    assert reference.answer(said, made) <= 1
    for name, value in given.items():
        changed = value.copy()
        changed.flat[5] -= 0.01
        assert reference.answer(said | {name: changed}, made) > 1, name
    for name in made:
        wrong = made[name].copy()
        wrong.flat[5] += 0.01
        assert reference.answer(said, made | {name: wrong}) > 1, name


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
            plain |= {"dout": plain["v"], "dfinal_state": plain["initial_state"]}
            given = {name: guarded(array, where) for name, array in plain.items()}
            made = {f"d{name}": guarded(np.zeros_like(plain[name]), where) for name in (*ARRAYS, "initial_state")}
            for one in engines(lib, dtype, gate, of=GRADIENTS):
                lib.gated_delta_rule_bwd(**given, **made, qk_l2norm=True, instance=one)
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
    given |= {"dout": drawn(200, dtype="fp16", seed=1)["v"]}
    alone, many = (gradients(lib, given, num_threads=count) for count in (1, 3))
    assert {name: array.tobytes() for name, array in alone.items()} == {n: a.tobytes() for n, a in many.items()}
    del given["dout"]
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
    ({"initial_state": np.zeros((1, 4, 9, 8), "f")}, "initial_state: shape was (1, 4, 9, 8), must be (1, 4, 8, 8)"),
    ({"cu_seqlens": np.array([0, 2], "i4")}, "cu_seqlens: entry 1 was 2, must be 3, the seqlen of q"),
    ({"cu_seqlens": np.array([0, 4, 3], "i4")}, "cu_seqlens: entry 2 was 3, must be at least 4, the one before"),
    (
        {"cu_seqlens": np.array([0, 1, 3], "i4"), "initial_state": np.zeros((1, 4, 8, 8), "f")},
        "initial_state: shape was (1, 4, 8, 8), must be (2, 4, 8, 8)",
    ),
    ({"update": "sum"}, "update: was 'sum', must be"),
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
