# SPDX-License-Identifier: MIT
"""topk_gating against its reference: scores, groups, corrections, shared experts, special values, memory, every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gating as reference
from tilekiln.reference.drawn import EDGES, Random

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
DEEPSEEK: dict[str, Any] = {
    "topk": 8, "score": "sigmoid", "groups": 8, "topk_groups": 4, "renormalise": True, "scaling": 2.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("moe_default", targets="all")


def drawn(rows: int, experts: int, dtype: str = "fp32", scale: float = 2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows + experts)
    x = (scale * random.standard_normal((rows, experts))).astype(DTYPES[dtype])
    return x, random.standard_normal(experts).astype(np.float32) / 4


def far(lib: tk.Library, given: dict[str, Any], **how: Any) -> float:
    arrays = {**given}
    weights, indices = lib.topk_gating(arrays.pop("x"), **arrays, **how)
    assert (weights.dtype, indices.dtype) == (np.float32, np.int32)
    return reference.excess(given, {"weights": weights, "indices": indices})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_every_isa_routes_as_drawn(lib: tk.Library, dtype: str, score: str) -> None:
    random = Random(f"{dtype} {score}", EDGES["cpu"])
    for _ in range(40):
        given = reference.draw("topk_gating", random, {"dtype": dtype, "score": score}).given
        for one in instances(lib, "topk_gating", dtype=dtype, score=score):
            assert far(lib, given, instance=one) <= 1, {k: v for k, v in given.items() if k not in ("x", "bias")}


@pytest.mark.parametrize("score", SCORES)
def test_indices_are_the_reference_s(lib: tk.Library, score: str) -> None:
    """Rows in which no two keys are near each other."""
    x, bias = drawn(50, 256)
    given = {**DEEPSEEK, "score": score, "bias": bias, "shared": 2, "shared_weight": 0.5}
    weights, order = reference.topk_gating(x, **given)
    for one in instances(lib, "topk_gating", dtype="fp32", score=score):
        made = lib.topk_gating(x, **given, instance=one)
        assert (made[1] == order).mean() > 0.99
        assert (made[1][:, 8:] == [256, 257]).all()
        assert (made[0][:, 8:] == 0.5).all()
        np.testing.assert_allclose(made[0].sum(1), weights.sum(1), rtol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_far_logits_and_rows_without_a_choice(lib: tk.Library, score: str) -> None:
    x = np.zeros((8, 24), np.float32)
    x[0], x[1, 3], x[2, 5], x[3, 7] = np.linspace(-3e38, 3e38, 24), np.nan, np.inf, -np.inf
    x[4], x[5], x[6] = -200, np.linspace(-90, 90, 24), -np.inf
    without = {"softmax": [1, 2, 6], "sigmoid": [1], "sqrtsoftplus": [1, 2]}[score]
    for one in instances(lib, "topk_gating", dtype="fp32", score=score):
        for rule in ({}, {"renormalise": True}, {"groups": 6, "topk_groups": 2}):
            given: dict[str, Any] = {"x": x, "topk": 4, "score": score, "shared": 1, **rule}
            assert far(lib, given, instance=one) <= 1
            weights, indices = lib.topk_gating(x, topk=4, score=score, shared=1, **rule, instance=one)
            assert np.flatnonzero(np.isnan(weights[:, 0])).tolist() == without
            assert (indices[without, :4] == np.arange(4)).all()
            assert (weights[:, 4] == 1).all()
            assert (indices[7] == [0, 1, 2, 3, 24]).all()  # ties: the first
        bias = np.zeros(24, np.float32)
        bias[5] = np.nan
        weights, indices = lib.topk_gating(x, bias=bias, topk=2, score=score, groups=2, topk_groups=1, instance=one)
        assert np.isnan(weights).all()
        assert (indices == [0, 1]).all()


def test_a_correction_moves_the_choice_and_no_weight(lib: tk.Library) -> None:
    x = np.array([[0.0, 1, 2, 3, -1, -2]], np.float32)
    out, all_in = np.zeros(6, np.float32), np.zeros(6, np.float32)
    out[3], all_in[5] = -np.inf, np.inf
    for one in instances(lib, "topk_gating", dtype="fp32", score="sigmoid"):
        how: dict[str, Any] = {"topk": 2, "score": "sigmoid", "instance": one}
        assert lib.topk_gating(x, bias=out, **how)[1].tolist() == [[2, 1]]
        weights, indices = lib.topk_gating(x, bias=all_in, **how)
        assert indices.tolist() == [[5, 3]]
        np.testing.assert_allclose(weights, 1 / (1 + np.exp(-x[:, [5, 3]])), rtol=1e-6)
        # Groups (0 1), (2 3), (4 5): by the best of two the last, for its +infinity.
        how |= {"groups": 3, "topk_groups": 1}
        assert lib.topk_gating(x, bias=all_in, **how)[1].tolist() == [[5, 4]]
        assert lib.topk_gating(x, bias=out, **how, group_score="largest")[1].tolist() == [[2, 3]]
        assert lib.topk_gating(x, bias=out, **how, group_score="two")[1].tolist() == [[1, 0]]  # its second is left out


def test_a_wrong_choice_is_seen(lib: tk.Library) -> None:
    x, bias = drawn(9, 64)
    given = {"x": x, "bias": bias, **DEEPSEEK}
    weights, indices = lib.topk_gating(x, bias=bias, **DEEPSEEK)
    assert reference.excess(given, {"weights": weights, "indices": indices}) <= 1
    for changed in ({"bias": -bias}, {"topk_groups": 3}, {"group_score": "largest"}, {"scaling": 2.6}, {"groups": 4}):
        assert reference.excess(given | changed, {"weights": weights, "indices": indices}) > 1, changed
    again = indices[:, ::-1].copy()
    assert reference.excess(given, {"weights": weights[:, ::-1].copy(), "indices": again}) > 1


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        x, bias = (guarded(array, where) for array in drawn(3, 66, dtype))
        weights, indices = guarded(np.zeros((3, 7), np.float32), where), guarded(np.zeros((3, 7), np.int32), where)
        for score in SCORES:
            given = {"bias": bias, "topk": 6, "groups": 11, "topk_groups": 3, "score": score, "shared": 1}
            for one in instances(lib, "topk_gating", dtype=dtype, score=score):
                lib.topk_gating(x, **given, weights=weights, indices=indices, instance=one)
                made = {"weights": weights, "indices": indices}
                assert reference.excess({"x": x, **given}, made) <= 1


def test_strides_threads_and_streams(lib: tk.Library) -> None:
    x, bias = drawn(900, 128, "bf16")
    one = lib.topk_gating(x, bias=bias, **DEEPSEEK, num_threads=1)
    with tk.Stream() as stream:
        later = lib.topk_gating(x, bias=bias, **DEEPSEEK, stream=stream)
    for made in (lib.topk_gating(x, bias=bias, **DEEPSEEK, num_threads=3), later):
        assert [a.tobytes() for a in made] == [a.tobytes() for a in one]
    part, wide = x[::-3, 10:90], np.full((300, 12), 7, np.float32)
    lib.topk_gating(part, bias=bias[10:90], **DEEPSEEK, weights=wide[:, 2:10])
    assert np.array_equal(wide[:, 2:10], lib.topk_gating(part.copy(), bias=bias[10:90].copy(), **DEEPSEEK)[0])
    assert (wide[:, :2] == 7).all()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"groups": 3}, "groups: was 3, must divide 8, the experts of x"),
    ({"groups": 4, "topk_groups": 5}, "topk_groups: was 5, must be at most 4, the groups"),
    ({"groups": 4, "topk": 3}, "topk: was 3, must be at most 2, the experts of topk_groups groups"),
    ({"topk": 9}, "topk: was 9, must be at most 8, the experts of x"),
    ({"shared": -1}, "shared: was -1, must be"),
    ({"scaling": float("nan")}, "scaling: was nan, must be finite"),
    ({"score": "tanh"}, "score: was 'tanh', must be"),
    ({"bias": np.zeros(7, "f")}, "bias: experts was 7, must be 8"),
    ({"bias": np.zeros(8, "f2")}, "bias: dtype was fp16, must be fp32"),
    ({"weights": np.zeros((3, 1), "f"), "shared": 1}, "weights: shape was (3, 1), must be (3, 2)"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(tk.ArgumentError) as raised:
        lib.topk_gating(np.zeros((3, 8), "f"), **changes)
    assert str(raised.value).startswith(says)
