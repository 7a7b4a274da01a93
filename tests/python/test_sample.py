# SPDX-License-Identifier: MIT
"""sample: tokens of its reference, the same bits on every ISA, its rules for ties, NaN, infinities and parameters."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import sample as reference
from tilekiln.reference.drawn import EDGES, Random

from tests.python import sample_rules
from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances
from tests.python.sample_rules import RULES


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def drawn(rows: int, vocabulary: int, dtype: str = "fp32", scale: float = 3) -> np.ndarray:
    random = np.random.default_rng(rows + vocabulary)
    return (scale * random.standard_normal((rows, vocabulary))).astype(DTYPES[dtype])


def call(lib: tk.Library, given: dict[str, Any], **how: Any) -> dict[str, np.ndarray]:
    given = {**given, **how}
    given["return_logprobs"] = True
    return dict(zip(("tokens", "logprobs"), lib.sample(given.pop("logits"), **given), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_isa_draws_what_the_reference_may(lib: tk.Library, dtype: str) -> None:
    random = Random(dtype, EDGES["cpu"])
    for _ in range(60):
        given = reference.draw("sample", random, {"dtype": dtype}).given
        made = [call(lib, given, instance=one) for one in instances(lib, "sample", dtype=dtype)]
        said = {name: value for name, value in given.items() if name != "logits"}
        assert reference.excess(given, made[0]) <= 1, said
        for other in made[1:]:
            assert [a.tobytes() for a in other.values()] == [a.tobytes() for a in made[0].values()], said


def test_tokens_are_the_same_on_every_machine(lib: tk.Library) -> None:
    """Digests were made on x86-64; that of tokens is of GPUs, too."""
    for sizes, right in sample_rules.TOKENS.items():
        assert sample_rules.tokens(lib.sample, *sizes) == right
    logits = sample_rules.logits(6, 3001)
    made = b""
    for rule in RULES:
        for step in range(20):
            found = call(lib, {"logits": logits, "rng": (2026, step), **rule})
            made += found["tokens"].astype("<i4").tobytes() + found["logprobs"].astype("<f4").tobytes()
    assert hashlib.sha256(made).hexdigest()[:16] == "b51da87f236b3b3b"


def test_tokens_come_as_often_as_they_are_likely(lib: tk.Library) -> None:
    """20,000 draws of six tokens: each within five deviations of its share; and none that is cut off."""
    logits = np.log(np.array([0.05, 0.4, 0.2, 0.05, 0.25, 0.05], np.float32))
    many = np.broadcast_to(logits, (20000, 6)).copy()
    kept = {"": [0, 1, 2, 3, 4, 5], "top_k=4": [0, 1, 2, 4], "top_p=0.8": [1, 2, 4], "min_p=0.2": [1, 2, 4]}
    for rule, tokens in kept.items():
        name, _, value = rule.partition("=")
        how = {name: type(reference.PARAMETERS[name])(float(value))} if name else {}
        count = np.bincount(lib.sample(many, rng=(7, 1), **how), minlength=6)
        share = np.where(np.isin(np.arange(6), tokens), np.exp(logits), 0)
        share = share / share.sum() * len(many)
        assert (np.abs(count - share) <= 5 * np.sqrt(share)).all(), (rule, count, share)


def test_ties_go_to_the_lower_index(lib: tk.Library) -> None:
    logits = np.zeros((400, 200), np.float32)
    logits[:, ::2] = -0.0
    for one in instances(lib, "sample", dtype="fp32"):
        assert (lib.sample(logits, temperature=0.0, instance=one) == 0).all()
        assert set(lib.sample(logits, top_k=7, instance=one).tolist()) == set(range(7))
        # 0.25 of 200 equal ones are the first 50; 51 where their sum is above that by a hair.
        assert lib.sample(logits, top_p=0.25, instance=one).max() == 49
        assert lib.sample(logits, top_p=0.2500001, instance=one).max() in (49, 50)
        logits[:, 150] = 1
        assert set(lib.sample(logits, top_k=3, instance=one).tolist()) == {0, 1, 150}
        logits[:, 150] = 0


def test_rows_without_a_token_and_infinities(lib: tk.Library) -> None:
    x = np.zeros((6, 70), np.float32)
    x[0, 3], x[1], x[2, 5], x[2, 9], x[3, :69], x[4] = np.nan, -np.inf, np.inf, np.inf, -np.inf, 3e38
    x[4, 7] = -3e38
    for one in instances(lib, "sample", dtype="fp32"):
        for rule in RULES:
            for step in range(8):
                given = {"logits": x, "rng": (1, step), **rule}
                made = call(lib, given, instance=one)
                assert reference.excess(given, made) <= 1
                tokens = made["tokens"].tolist()
                assert tokens[:2] == [-1, -1]
                assert np.isnan(made["logprobs"]).tolist() == [True, True, False, False, False, False]
                assert tokens[2] in (5, 9)
                assert tokens[3] == 69
                assert tokens[4] != 7
        assert lib.sample(x[2:3], temperature=0.0, instance=one) == 5
        # Temperatures at the ends: one takes the highest, the other takes all alike.
        y = drawn(1, 70)
        assert lib.sample(y, temperature=1e-45, instance=one) == y.argmax()
        assert len({int(lib.sample(y, temperature=3e38, rng=(0, i), instance=one)[0]) for i in range(60)}) > 30


def test_penalties(lib: tk.Library) -> None:
    x = np.array([[2.0, -1.0, 1.5, 0.5]], np.float32)
    prompt, generated = np.array([[1, 0, 0, -1]]), np.array([[2, 2, -1, 9]], np.int32)
    cases: list[tuple[dict[str, Any], list[float]]] = [
        ({"repetition_penalty": 2.0}, [1.0, -2.0, 0.75, 0.5]),
        ({"presence_penalty": 0.5}, [2.0, -1.0, 1.0, 0.5]),
        ({"frequency_penalty": 0.5}, [2.0, -1.0, 0.5, 0.5]),
        ({"repetition_penalty": 0.5, "presence_penalty": 1.0, "frequency_penalty": 2.0}, [4.0, -0.5, -2.0, 0.5]),
    ]
    for rule, wanted in cases:
        there: dict[str, Any] = {"prompt": prompt, "generated": generated, **rule}
        assert reference.numbers({"logits": x, **there}, 0).tolist() == wanted
        logs = np.array(wanted) - np.log(np.exp(wanted).sum())
        for one in instances(lib, "sample", dtype="fp32"):
            for step in range(9):
                made = call(lib, {"logits": x, "rng": (0, step), **there}, instance=one)
                assert made["logprobs"][0] == pytest.approx(logs[made["tokens"][0]], abs=1e-6)
            assert lib.sample(x, temperature=0.0, instance=one, **there) == int(np.argmax(wanted))


def test_rows_of_their_own(lib: tk.Library) -> None:
    """Parameters of each row are those of a call for it alone; with seeds, whichever row it is."""
    x = drawn(5, 300)
    each: dict[str, Any] = {
        "temperature": [0.0, 0.5, 1.0, 2.0, 1.0], "top_k": [0, 3, 0, 40, 300], "top_p": [1.0, 0.9, 0.5, 1.0, 0.2],
        "min_p": [0.0, 0.1, 0.0, 0.5, 0.0], "repetition_penalty": [1.0, 1.2, 0.8, 1.0, 1.0],
        "presence_penalty": [0.0, 1.0, 0.0, -1.0, 0.0], "frequency_penalty": [0.0, 0.0, 1.0, 0.0, 0.5],
    }  # fmt: skip
    generated = np.random.default_rng(0).integers(0, 300, (5, 40))
    seeds, offsets = np.arange(5) - 2, np.arange(5) * 1000
    arrays = {
        reference.OF_ROWS[name]: np.array(values, np.int32 if name == "top_k" else np.float32)
        for name, values in each.items()
    }
    made = call(lib, {"logits": x, "generated": generated, "seeds": seeds, "offsets": offsets, **arrays})
    for row in range(5):
        own = {name: values[row] for name, values in each.items()}
        own |= {"seeds": seeds[row : row + 1], "offsets": offsets[row : row + 1], "generated": generated[row : row + 1]}
        alone = call(lib, {"logits": x[row : row + 1], **own})
        assert [alone[name][0].tobytes() for name in made] == [made[name][row].tobytes() for name in made]


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        for vocabulary in (1, 63, 64, 130):
            logits = guarded(drawn(3, vocabulary, dtype), where)
            results = {
                "tokens": guarded(np.zeros(3, np.int32), where), "logprobs": guarded(np.zeros(3, np.float32), where),
            }  # fmt: skip
            tokens = guarded(np.array([[0, 1, -1]] * 3), where)
            how = {"top_k": 9, "top_p": 0.9, "repetition_penalty": 1.1, "prompt": tokens, "generated": tokens}
            for one in instances(lib, "sample", dtype=dtype):
                lib.sample(logits, **how, **results, instance=one)
                assert reference.excess({"logits": logits, **how}, results) <= 1


def test_strides_threads_and_streams(lib: tk.Library) -> None:
    x = drawn(40, 5000, "bf16")
    how = {"top_p": 0.9, "top_k": 300, "rng": (3, 4)}
    one = lib.sample(x, **how, num_threads=1)
    assert lib.sample(x, **how, num_threads=3).tobytes() == one.tobytes()
    with tk.Stream() as stream:
        later = lib.sample(x, **how, stream=stream)
    assert later.tobytes() == one.tobytes()
    wide = np.zeros((80, 5100), x.dtype)
    wide[1::2, 50:5050] = x
    assert lib.sample(wide[1::2, 50:5050], **how).tobytes() == one.tobytes()
    others: list[bytes] = []
    workers = [threading.Thread(target=lambda: others.append(lib.sample(x, **how).tobytes())) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert others == [one.tobytes()] * 4
    assert len(lib.sample(x[:0])) == 0


def test_a_wrong_token_is_seen(lib: tk.Library) -> None:
    given: dict[str, Any] = {"logits": drawn(9, 500), "top_p": 0.9, "rng": (0, 0)}
    made = call(lib, given)
    assert reference.excess(given, made) <= 1
    changes: list[dict[str, Any]] = [
        {"rng": (0, 1)}, {"rng": (1, 0)}, {"temperature": 0.5}, {"top_p": 0.5}, {"top_k": 20}, {"logprob_of": "logits"},
    ]  # fmt: skip
    for changed in changes:
        assert reference.excess(given | changed, made) > 1, changed
    assert reference.excess(given, made | {"tokens": (made["tokens"] + 1) % 500}) > 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1.0}, "temperature: was -1, must be 0 or a finite number above"),
    ({"top_k": -1}, "top_k: was -1, must be in [0, 2147483647]"),
    ({"top_p": 0.0}, "top_p: was 0, must be above 0 and at most 1"),
    ({"top_p": 1.5}, "top_p: was 1.5, must be above 0 and at most 1"),
    ({"min_p": 1.5}, "min_p: was 1.5, must be from 0 to 1"),
    ({"repetition_penalty": 0.0}, "repetition_penalty: was 0, must be a finite number above 0"),
    ({"presence_penalty": float("inf")}, "presence_penalty: was inf, must be finite"),
    ({"logprob_of": "x"}, "logprob_of: was 'x', must be"),
    ({"prompt": np.zeros((2, 3), "i4")}, "prompt: row count was 2, must be 3, the row count of logits"),
    ({"generated": np.zeros((3, 3), "f")}, "generated: dtype was fp32, must be int32 or int64"),
    ({"temperatures": np.ones(3, "f2")}, "temperatures: dtype was fp16, must be fp32"),
    ({"temperatures": np.array([1, 1, np.nan], "f")}, "temperatures: was nan in row 2, must be 0 or a finite number"),
    ({"top_ps": np.array([1, 0, 1], "f")}, "top_ps: was 0 in row 1, must be above 0 and at most 1"),
    ({"min_ps": np.array([2, 0, 1], "f")}, "min_ps: was 2 in row 0, must be from 0 to 1"),
    ({"top_ks": np.array([0, -5, 1], "i4")}, "top_ks: was -5 in row 1, must be 0 (all) or more"),
    ({"repetition_penalties": np.zeros(3, "f")}, "repetition_penalties: was 0 in row 0, must be a finite number above"),
    ({"presence_penalties": np.full(3, np.inf, "f")}, "presence_penalties: was inf in row 0, must be finite"),
    ({"frequency_penalties": np.full(3, np.nan, "f")}, "frequency_penalties: was nan in row 0, must be finite"),
    ({"tokens": np.zeros(4, "i4")}, "tokens: rows was 4, must be 3"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(tk.ArgumentError) as raised:
        lib.sample(np.zeros((3, 8), "f"), **changes)
    assert str(raised.value).startswith(says)


def test_parameters_that_a_stream_writes_are_no_error(lib: tk.Library) -> None:
    with tk.Stream() as stream:
        made = lib.sample(np.zeros((3, 8), "f"), top_ps=np.array([1, np.nan, 2], "f"), stream=stream)
    assert (made[1:] == -1).all()
    assert made[0] >= 0


@pytest.mark.torch
def test_tensors_and_rows_of_them(lib: tk.Library) -> None:
    torch = pytest.importorskip("torch")
    import tilekiln.torch  # noqa: F401

    x = torch.randn(6, 400, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = {"temperatures": torch.full((6,), 0.7), "top_ps": torch.full((6,), 0.9), "seeds": torch.arange(6)}
    named = {"repetition_penalties": torch.full((6,), 1.2), "generated": torch.arange(12).reshape(6, 2)}
    tokens, logprobs = torch.ops.tilekiln.sample(x, **rows, **named, return_logprobs=True)
    right = lib.sample(x, **rows, **named, return_logprobs=True)
    assert torch.equal(tokens, right[0])
    assert torch.equal(logprobs, right[1])
    with pytest.raises(tk.ArgumentError, match="min_ps: was 2 in row 0"):
        torch.ops.tilekiln.sample(x, min_ps=torch.full((6,), 2.0))
