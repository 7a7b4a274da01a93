# SPDX-License-Identifier: MIT
"""elementwise against float64: every operation on every ISA, shapes that are broadcast, memory, special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import elementwise as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

# Shapes of x and of the others: alike, of parts of vectors, rows, columns, scalars, more dimensions than x, nothing.
SHAPES: list[list[tuple[int, ...]]] = [
    [(3, 70), (3, 70)],
    [(5, 1037), (1037,), (5, 1)],
    [(4, 1, 67), (3, 1), (4, 3, 67), ()],
    [(1,), (2, 3, 4, 5)],
    [(0, 5), (1, 5)],
    [(1, 2, 1, 3, 1, 2, 1, 33), (2, 1, 2, 1, 2, 1, 2, 33)],
]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(*shapes: tuple[int, ...], dtype: str = "fp32") -> list[np.ndarray]:
    random = np.random.default_rng(len(shapes))
    return [np.asarray(random.standard_normal(shape) * 2).astype(DTYPES[dtype]) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", [*reference.MANY, *reference.ONE])
def test_every_isa_and_operation(lib: tk.Library, dtype: str, operation: str) -> None:
    for shapes in SHAPES if operation in reference.MANY else SHAPES[:2]:
        arrays = draw(*(shapes if operation in reference.MANY else shapes[:1]), dtype=dtype)
        for one in instances(lib, "elementwise", dtype=dtype):
            y = lib.elementwise(*arrays, operation=operation, instance=one)
            assert reference.excess(y, arrays, operation) <= 1, (shapes, one)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(lib: tk.Library, dtype: str) -> None:
    special = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3e4, -3e4, 1e-7, -90, 88]
    x = np.array([[a, b] for a in special for b in special], np.float32).T.astype(DTYPES[dtype])
    for operation in (*reference.MANY, *reference.ONE):
        arrays = [*x] if operation in reference.MANY else [x]
        for one in instances(lib, "elementwise", dtype=dtype):
            y = lib.elementwise(*arrays, operation=operation, instance=one)
            assert reference.excess(y, arrays, operation) <= 1, (operation, one)


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        arrays = [guarded(x, where) for x in draw((7, 69), (69,), (7, 1), (1, 1), dtype=dtype)]
        y = guarded(np.zeros((7, 69), DTYPES[dtype]), where)
        for one in instances(lib, "elementwise", dtype=dtype):
            lib.elementwise(*arrays, operation="mul", y=y, instance=one)
            assert reference.excess(y, arrays, "mul") <= 1


def test_strides(lib: tk.Library) -> None:
    for dtype in DTYPES:
        memory, row = draw((9, 40, 66), (66,), dtype=dtype)
        for x in (
            memory[::-2, 3:38:5, ::-1],
            memory.transpose(2, 0, 1),
            memory[:, :, ::3],
            np.broadcast_to(memory[0], (3, 40, 66)),
        ):
            beside = x[::-1]
            y = lib.elementwise(x, beside, x, operation="sub")
            assert reference.excess(y, [x, beside, x], "sub") <= 1
            wide = np.full((*y.shape, 3), 7, y.dtype)
            lib.elementwise(x, beside, x, operation="sub", y=wide[..., 1])
            assert wide[..., 1].tobytes() == y.tobytes()
            assert (wide[..., ::2] == 7).all()
        y = lib.elementwise(np.ascontiguousarray(memory), row)
        assert lib.elementwise(memory, row, y=memory).tobytes() == y.tobytes()


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_and_streams_give_the_same_bits(lib: tk.Library, threads: int) -> None:
    arrays = draw((70, 33, 301), (33, 1))
    one = lib.elementwise(*arrays, operation="div", num_threads=1)
    assert lib.elementwise(*arrays, operation="div", num_threads=threads).tobytes() == one.tobytes()
    with tk.Stream() as stream:
        later = lib.elementwise(*arrays, operation="div", stream=stream)
    assert later.tobytes() == one.tobytes()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"x1": np.zeros(5, "f")}, "x1: dimension 0 was 5 long, must be 1 or 4 as others are"),
    ({"operation": "exp", "x1": np.zeros(4, "f")}, "x1: was given, must be null: the operation is of one array"),
    ({"x1": np.zeros(4, np.float16)}, "x1: dtype was fp16, must be fp32"),
    ({"x1": np.zeros(4, "f"), "operation": "pow"}, "operation: was 'pow', must be 'add', 'sub', 'mul'"),
    ({"x1": np.zeros((2, 1, 1), "f"), "y": np.zeros((2, 4), "f")}, "y: shape was (2, 4), must be (2, 3, 4)"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(tk.ArgumentError) as raised:
        lib.elementwise(**{"x": np.zeros((3, 4), "f"), **changes})
    assert str(raised.value).startswith(says)
