# SPDX-License-Identifier: MIT
"""batched_contraction against float64: every ISA, dimensions of each kind, strides without copies, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import batched_contraction as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

# Lengths of g, m, n and k.
SIZES: dict[str, tuple[tuple[int, ...], ...]] = {
    "product": ((), (9,), (7,), (33,)),
    "batch": ((3,), (5,), (70,), (16,)),
    "all of several": ((2, 3), (4, 5), (3, 6), (2, 9)),
    "vectors": ((2,), (), (), (5, 7)),
    "outer": ((), (3, 4), (5, 1), (1,)),
    "wide": ((), (2, 130), (66, 3), (3, 40)),
    "nothing to sum": ((2,), (3,), (4,), (0,)),
    "no rows": ((2,), (0, 3), (4,), (5,)),
}


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_default", targets="all", where="family=batched_contraction")


def draw(name: str, dtype: str = "fp32") -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    g, m, n, k = SIZES[name]
    random = np.random.default_rng(len(name))
    a, b = (random.standard_normal((*g, *one, *k)).astype(DTYPES[dtype]) for one in (m, n))
    return a, b, {"batch_dims": len(g), "k_dims": len(k)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SIZES)
def test_every_isa(lib: tk.Library, name: str, dtype: str) -> None:
    a, b, how = draw(name, dtype)
    for one in instances(lib, "batched_contraction", dtype=dtype):
        for alpha in (1.0, -0.5, 0.0):
            out = lib.batched_contraction(a, b, **how, alpha=alpha, instance=one)
            assert reference.excess(out, a, b, **how, alpha=alpha) <= 1, (alpha, one)


def orders(array: np.ndarray) -> list[np.ndarray]:
    """Its values in other memory: dimensions turned, with room between, reversed, at steps."""
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0)
    turned = np.ascontiguousarray(array.T).T
    room = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)[..., : array.shape[-1]]
    room[...] = array
    apart = np.zeros((3 * array.shape[0], *array.shape[1:]), array.dtype)[::-3]
    apart[...] = array
    return [array, last, turned, room, apart]


@pytest.mark.parametrize("name", ["all of several", "wide", "batch"])
def test_strides(lib: tk.Library, name: str) -> None:
    """Every order of a, b and out with every other one, without a copy; or a sentence that says what to copy."""
    a, b, how = draw(name, "bf16")
    want = lib.batched_contraction(a, b, **how)
    taken = 0
    for left in orders(a):
        for right in orders(b):
            for out in orders(np.full_like(want, 7)):
                said = ""
                try:
                    lib.batched_contraction(left, right, out=out, **how)
                except tk.ArgumentError as error:
                    said = str(error)
                if said:
                    assert "no dimensions of m, n and k make matrices" in said
                    assert (out == 7).all()
                    continue
                taken += 1
                assert reference.excess(out, a, b, **how) <= 1
    assert taken >= 25


def test_as_einsum(lib: tk.Library) -> None:
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 30, 4, 16), np.float32) for _ in range(2))
    scores = lib.batched_contraction(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3), batch_dims=2)
    assert np.allclose(scores, np.einsum("bihd,bjhd->bhij", q, k), atol=1e-5)
    shared = np.broadcast_to(k[:1], k.shape).transpose(0, 2, 1, 3)
    scores = lib.batched_contraction(q.transpose(0, 2, 1, 3), shared, batch_dims=2)
    assert np.allclose(scores, np.einsum("bihd,jhd->bhij", q, k[0]), atol=1e-5)


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str) -> None:
    a, b, how = draw("all of several", "fp16")
    left, right = guarded(a, where), guarded(b, where)
    for one in instances(lib, "batched_contraction", dtype="fp16"):
        out = guarded(lib.batched_contraction(a, b, **how) * 0, where)
        lib.batched_contraction(left, right, out=out, **how, instance=one)
        assert reference.excess(out, a, b, **how) <= 1


def test_threads_and_streams_give_the_same_bits(lib: tk.Library) -> None:
    a, b, how = draw("wide")
    one = lib.batched_contraction(a, b, **how, num_threads=1)
    assert lib.batched_contraction(a, b, **how, num_threads=3).tobytes() == one.tobytes()
    with tk.Stream() as stream:
        later = lib.batched_contraction(a, b, **how, stream=stream)
    assert later.tobytes() == one.tobytes()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"k_dims": 3}, "b: had 3 dimensions, must have at least 4, batch_dims + k_dims"),
    ({"b": np.zeros((2, 6, 5), "f")}, "b: dimension 2 was 5 long, must be 4, dimension 3 of a: it is summed over"),
    ({"b": np.zeros((3, 6, 4), "f")}, "b: dimension 0 was 3 long, must be 2, dimension 0 of a: it is of the batch"),
    ({"b": np.zeros((2, 6, 4), np.float16)}, "b: dtype was fp16, must be fp32"),
    ({"batch_dims": -1}, "batch_dims: was -1, must be"),
    ({"k_dims": 0}, "k_dims: was 0, must be"),
    ({"out": np.zeros((2, 3, 3, 5), "f")}, "out: shape was (2, 3, 3, 5), must be (2, 3, 3, 6)"),
    (
        {"b": np.zeros((2, 6, 8), "f")[..., ::2]},
        "out: has strides with which no dimensions of m, n and k make matrices",
    ),
    ({"alpha": float("nan")}, "alpha: was nan, must be"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    given = {"a": np.zeros((2, 3, 3, 4), "f"), "b": np.zeros((2, 6, 4), "f"), "batch_dims": 1}
    with pytest.raises(tk.ArgumentError) as raised:
        lib.batched_contraction(**{**given, **changes})
    assert str(raised.value).startswith(says)
