# SPDX-License-Identifier: MIT
"""topk_softmax and moe_sorting against their references: choices, ties, special values, padding, memory, every ISA."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import moe as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

ROOT = pathlib.Path(__file__).resolve().parents[2]

ROWS = [(0, 8, 2), (1, 1, 1), (3, 7, 7), (5, 64, 8), (4, 67, 3), (2, 128, 128), (3, 257, 1), (2, 5000, 9)]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def logits(rows: int, experts: int, dtype: str) -> np.ndarray:
    return (3 * np.random.default_rng(rows + experts).standard_normal((rows, experts))).astype(DTYPES[dtype])


def compare(made: Any, x: np.ndarray, topk: int, renormalise: bool = False) -> None:
    weights, indices = made
    expected, order = reference.topk_softmax(x, topk, renormalise)
    assert weights.dtype == np.float32
    assert np.array_equal(indices, order)
    # Bound of softmax: (n / 16 + 6 |d| + 12) u, |d| up to 30; renormalised, twice that and the sum of the chosen.
    bound = (x.shape[1] / 16 + 200 + (topk + 200) * renormalise) * 2.0**-24
    np.testing.assert_allclose(weights, expected, rtol=bound, atol=2.0**-125)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "experts", "topk"), ROWS)
def test_every_isa_routes(lib: tk.Library, dtype: str, rows: int, experts: int, topk: int) -> None:
    x = logits(rows, experts, dtype)
    for one in instances(lib, "topk_softmax", dtype=dtype):
        for renormalise in (False, True):
            compare(lib.topk_softmax(x, topk=topk, renormalise=renormalise, instance=one), x, topk, renormalise)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("experts", [5, 33, 130])
def test_ties_and_special_values(lib: tk.Library, dtype: str, experts: int) -> None:
    x = np.zeros((9, experts), DTYPES[dtype])
    inf, last = np.inf, experts - 1
    x[1, 1::2], x[2, 2:], x[3] = 1, -inf, -inf
    x[4, 3], x[5, last], x[6, 2] = np.nan, np.nan, inf
    x[7, :-1], x[8] = -0.0, -(np.arange(experts) % 3)
    for one in instances(lib, "topk_softmax", dtype=dtype):
        for topk in (1, 4, experts):
            weights, indices = lib.topk_softmax(x, topk=topk, instance=one)
            compare((weights, indices), x, topk)
            assert np.isnan(weights[3:7]).all()
            assert (indices[3:7] == np.arange(topk)).all()
            assert (np.sort(lib.topk_softmax(x, topk=experts, instance=one)[1]) == np.arange(experts)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_routing_touches_nothing_outside(lib: tk.Library, dtype: str, where: str) -> None:
    x = guarded(logits(3, 67, dtype), where)
    weights, indices = guarded(np.zeros((3, 5), np.float32), where), guarded(np.zeros((3, 5), np.int32), where)
    for one in instances(lib, "topk_softmax", dtype=dtype):
        lib.topk_softmax(x, topk=5, weights=weights, indices=indices, instance=one)
        compare((weights, indices), x, 5)


def test_routing_strides_threads_and_streams(lib: tk.Library) -> None:
    x = logits(900, 130, "bf16")
    one = lib.topk_softmax(x, topk=6, num_threads=1)
    with tk.Stream() as stream:
        later = lib.topk_softmax(x, topk=6, stream=stream)
    for made in (lib.topk_softmax(x, topk=6, num_threads=3), later):
        assert [a.tobytes() for a in made] == [a.tobytes() for a in one]
    part = x[::-3, 10:99]
    wide = np.full((300, 9), 7, np.float32)
    lib.topk_softmax(part, topk=4, weights=wide[:, 2:6])
    assert np.array_equal(wide[:, 2:6], lib.topk_softmax(part.copy(), topk=4)[0])
    assert (wide[:, :2] == 7).all()


THREADS = """
import os, sys, numpy, tilekiln
library = tilekiln.load(sys.argv[1])
x = numpy.zeros((int(sys.argv[2]), 128), numpy.float32)
library.topk_softmax(x, topk=8, num_threads=1)
before = len(os.listdir("/proc/self/task"))
library.topk_softmax(x, topk=8, num_threads=2)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize(("tokens", "helpers"), [(1, 0), (1024, 1)])
def test_a_thousand_tokens_are_worth_a_second_thread(lib: tk.Library, tokens: int, helpers: int) -> None:
    """They take 300 us in one: the pool starts its first thread."""
    command = [sys.executable, "-c", THREADS, str(lib.path), str(tokens)]
    told = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout.strip()) == (0, str(helpers)), told.stderr


def test_routing_beside_pytorch(lib: tk.Library) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(40, 60)
    weights, indices = lib.topk_softmax(x, topk=8)
    theirs = torch.topk(torch.softmax(x, -1), 8)
    torch.testing.assert_close(weights, theirs.values, rtol=1e-5, atol=0)
    assert torch.equal(indices.long(), theirs.indices)


IDS = np.array([[0, 3, 5], [2, 3, 5], [1, 3, 5], [1, 2, 3], [1, 3, 5]], np.int32)
WEIGHTS = np.arange(15, dtype=np.float32).reshape(5, 3) + 1


def used(made: Any, unit: int) -> reference.Sorted:
    token_ids, weights, experts, totals = made
    count = int(totals[0])
    assert not token_ids[count:].any()  # new ones are 0 past what is used
    assert not weights[count:].any()
    return reference.Sorted(
        token_ids[:count].tolist(), weights[:count].tolist(), experts[: count // unit].tolist(), tuple(totals.tolist())
    )


def test_the_case_of_six_experts(lib: tk.Library) -> None:
    """CK's: 6 experts, units of 4, 5 tokens of 3 experts each."""
    every = used(lib.moe_sorting(IDS, WEIGHTS, experts=6, unit=4, skip_empty=False), 4)
    assert every.expert_ids == [0, 1, 2, 3, 3, 4, 5]
    assert every.totals == (28, 5)
    filler = 5 | 3 << 24
    assert every.token_ids[:8] == [0, filler, filler, filler, 2, 3, 4, filler]
    assert every.token_ids[12:20] == [0 | 1 << 24, 1 | 1 << 24, 2 | 1 << 24, 3 | 2 << 24, 4 | 1 << 24] + [filler] * 3
    assert every.token_ids[20:] == [filler] * 4 + [0 | 2 << 24, 1 | 2 << 24, 2 | 2 << 24, 4 | 2 << 24]
    assert every.weights[12:17] == [2, 5, 8, 12, 14]
    skipped = used(lib.moe_sorting(IDS, WEIGHTS, experts=6, unit=4), 4)
    assert (skipped.expert_ids, skipped.totals) == ([0, 1, 2, 3, 3, 5], (24, 5))
    mask = np.array([1, 0, 1, 1, 0, 1], np.int32)
    masked = used(lib.moe_sorting(IDS, WEIGHTS, experts=6, unit=4, expert_mask=mask), 4)
    assert (masked.expert_ids, masked.totals) == ([0, 1, 2, 2, 3], (20, 5))


@pytest.mark.parametrize("seed", range(12))
def test_sorting(lib: tk.Library, seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens, experts, unit = int(random.integers(0, 40)), int(random.integers(1, 20)), int(random.integers(1, 9))
    topk = int(random.integers(1, 6))
    ids = random.integers(-1, experts + 1, (tokens, topk), dtype=np.int32)  # some twice, some nobody's
    if seed % 4 == 0:
        ids[:] = experts - 1
    weights = random.standard_normal((tokens, topk)).astype(np.float32)
    how: dict[str, Any] = {"experts": experts, "unit": unit, "skip_empty": bool(seed % 2)}
    mask = random.integers(0, 2, experts, dtype=np.int32) if seed % 3 == 0 else None
    local = np.array([tokens // 2 - (seed == 5) * 99], np.int32) if seed % 5 == 0 else None
    expected = reference.moe_sorting(
        ids, weights, **how, expert_mask=mask, local_tokens=None if local is None else local[0]
    )
    for one in lib.instances(f"family=moe_sorting masked={'no' if mask is None else 'yes'}"):
        if lib.instance_usable(one.number):
            out = np.ones((tokens, 33), np.float16)
            given = [guarded(a, "after") if a.size else a for a in (ids, weights)]
            made = lib.moe_sorting(*given, **how, expert_mask=mask, local_tokens=local, out=out, instance=one.number)
            assert used(made, unit) == expected
            assert len(made[0]) >= len(expected.token_ids)
            assert not out.any()


def test_sorting_into_upstream_sizes(lib: tk.Library) -> None:
    """CK's callers make topk tokens + experts unit - topk elements; the older ones topk tokens + experts (unit - 1)."""
    for skip, count in ((False, 15 + 6 * 4 - 3), (True, 15 + 6 * 4 - 3), (True, 15 + 6 * 3)):
        ids, weights = (guarded(np.zeros(count, dtype), "after") for dtype in (np.int32, np.float32))
        experts = guarded(np.zeros(-(-count // 4), np.int32), "after")
        arrays = {"sorted_token_ids": ids, "sorted_weights": weights, "sorted_expert_ids": experts}
        made = lib.moe_sorting(IDS, WEIGHTS, experts=6, unit=4, skip_empty=skip, **arrays)
        assert used(made, 4) == reference.moe_sorting(IDS, WEIGHTS, 6, 4, skip)
    with pytest.raises(tk.ArgumentError, match=r"sorted_token_ids: shape was \(32\), must be \(38\)"):
        lib.moe_sorting(IDS, WEIGHTS, experts=6, unit=4, sorted_token_ids=np.zeros(32, np.int32))


def test_sorting_without_room_leaves_experts_out(lib: tk.Library) -> None:
    """An expert named twice by a token: more padding than upstream's sizes allow for. Nothing is written past it."""
    ids, count = np.zeros((1, 4), np.int32), 4 + 3 * 8 - 4
    arrays = [guarded(np.full(count, 7, dtype), "after") for dtype in (np.int32, np.float32)]
    experts = guarded(np.full(3, 7, np.int32), "after")
    how: dict[str, Any] = {"experts": 3, "unit": 8, "skip_empty": False}
    for one in lib.instances("family=moe_sorting masked=no"):
        if lib.instance_usable(one.number):
            made = lib.moe_sorting(
                ids, np.ones((1, 4), np.float32), sorted_token_ids=arrays[0], sorted_weights=arrays[1],
                sorted_expert_ids=experts, instance=one.number, **how,
            )  # fmt: skip
            assert made[3].tolist() == [24, 1]
    short: dict[str, Any] = {**how, "experts": 2}
    more = np.zeros((1, 13), np.int32)
    arrays = [guarded(np.full(13 + 16 - 13, 7, dtype), "after") for dtype in (np.int32, np.float32)]
    made = lib.moe_sorting(
        more, np.ones((1, 13), np.float32), sorted_token_ids=arrays[0], sorted_weights=arrays[1], **short
    )
    assert made[3].tolist() == [24, 1]
    assert made[3][0] > len(made[0])
    assert made[0].tolist() == [slot << 24 for slot in range(13)] + [1 | 13 << 24] * 3


def test_sorting_with_threads_zeroes_everything(lib: tk.Library) -> None:
    random = np.random.default_rng(1)
    ids = np.argsort(random.random((900, 64)), axis=1)[:, :8].astype(np.int32)
    weights = random.random((900, 8)).astype(np.float32)
    out = np.ones((900, 1000), np.float32)
    made = lib.moe_sorting(ids, weights, experts=64, unit=32, out=out[:, 3:990], num_threads=3)
    assert used(made, 32) == reference.moe_sorting(ids, weights, 64, 32)
    assert not out[:, 3:990].any()
    assert out[:, :3].all()
    assert out[:, 990:].all()


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("topk_softmax", {"topk": 9}, "topk: was 9, must be at most 8, the experts of x"),
    ("topk_softmax", {"topk": 0}, "topk: was 0, must be"),
    ("topk_softmax", {"weights": np.zeros((3, 2), "f")}, "weights: shape was (3, 2), must be (3, 1)"),
    ("topk_softmax", {"indices": np.zeros((3, 1), "i8")}, "indices: dtype was int64, must be int32"),
    ("moe_sorting", {"experts": 0}, "experts: was 0, must be"),
    ("moe_sorting", {"expert_mask": np.ones(5, "i4")}, "expert_mask: shape was (5), must be (6)"),
    ("moe_sorting", {"topk_weights": np.zeros((4, 3), "f")}, "topk_weights: token count was 4, must be 5"),
    ("moe_sorting", {"out": np.zeros((4, 3), "f")}, "out: token count was 4, must be 5"),
    (
        "moe_sorting",
        {"experts": 1 << 20, "unit": 1 << 20},
        "topk_ids: was (5, 3) for 1048576 experts in units of 1048576",
    ),
    ("moe_sorting", {"sorted_weights": np.zeros(9, "f")}, "sorted_weights: shape was (9), must be (206)"),
]


@pytest.mark.parametrize(("name", "changes", "says"), BAD, ids=[says[:40] for _, _, says in BAD])
def test_bad_input(lib: tk.Library, name: str, changes: dict[str, Any], says: str) -> None:
    good = {"topk_softmax": {"x": np.zeros((3, 8), "f")}}.get(
        name, {"topk_ids": IDS, "topk_weights": WEIGHTS, "experts": 6}
    )
    with pytest.raises(tk.ArgumentError) as raised:
        getattr(lib, name)(**{**good, **changes})
    assert str(raised.value).startswith(says)
