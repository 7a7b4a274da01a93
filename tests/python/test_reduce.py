# SPDX-License-Identifier: MIT
"""reduce against float64: every set of axes, memory, special values, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import reduce as reference

from tests.gpu_run import TARGETS
from tests.python.guard import guarded
from tests.python.rows import DTYPES

OPERATIONS = ("sum", "mean", "max", "min")
# Rows past a flush, of parts of vectors; columns of one block and of several; nothing; one; eight dimensions.
SHAPES: list[tuple[int, ...]] = [
    (1,),
    (3, 70),
    (5, 20011),
    (301, 5),
    (3, 4, 2, 67),
    (2, 130, 3),
    (4, 0, 3),
    (1,) * 7 + (9,),
]
SOME: list[tuple[int, ...]] = [(2, 1, 3, 2, 1, 2, 3, 4), (70, 66), ()]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(DTYPES[dtype])


def instances(lib: tk.Library, dtype: str, operation: str) -> list[int]:
    found = lib.instances(f"family=reduce dtype={dtype} operation={operation}")
    assert len(found) == TARGETS
    return [one.number for one in found if lib.instance_usable(one.number)]


def sets(ndim: int) -> list[tuple[int, ...]]:
    return [axes for count in range(1, ndim + 1) for axes in combinations(range(ndim), count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_and_set_of_axes(lib: tk.Library, dtype: str, operation: str, shape: tuple[int, ...]) -> None:
    x = draw(shape, dtype)
    for axes in sets(len(shape)) if len(shape) < 5 else [(7,), (0, 7)]:
        if operation in ("max", "min") and 0 in [shape[axis] for axis in axes]:
            continue
        for one in instances(lib, dtype, operation):
            y = lib.reduce(x, axes=axes, operation=operation, instance=one)
            assert reference.excess(y, x, axes, operation) <= 1, (axes, one)


@pytest.mark.parametrize("shape", SOME, ids=str)
def test_keepdim_negative_axes_and_all(lib: tk.Library, shape: tuple[int, ...]) -> None:
    x = draw(shape, "fp32")
    for keepdim in (False, True):
        assert reference.excess(lib.reduce(x, keepdim=keepdim), x, keepdim=keepdim) <= 1
        for axes in sets(len(shape))[:: 1 if len(shape) < 3 else 17]:
            mirrored = [axis - len(shape) for axis in axes[::-1]]
            y = lib.reduce(x, axes=mirrored, operation="max", keepdim=keepdim)
            assert reference.excess(y, x, axes, "max", keepdim) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, dtype: str, where: str) -> None:
    for axes in ((0,), (1,), (2,), (0, 2)):
        x = guarded(draw((3, 7, 69), dtype), where)
        y = guarded(lib.reduce(x, axes=axes), where)
        y.fill(0)
        for one in instances(lib, dtype, "sum"):
            lib.reduce(x, axes=axes, y=y, instance=one)
            assert reference.excess(y, x, axes) <= 1


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
def test_strides(lib: tk.Library, axes: tuple[int, ...]) -> None:
    memory = draw((9, 40, 66), "bf16")
    for x in (
        memory[::-2, 3:38:5],
        memory.transpose(2, 0, 1),
        memory[:, :, ::3],
        np.broadcast_to(memory[0], (3, 40, 66)),
    ):
        y = lib.reduce(x, axes=axes, operation="mean")
        assert reference.excess(y, x, axes, "mean") <= 1
        wide = np.full((*y.shape, 3), 7, y.dtype)
        lib.reduce(x, axes=axes, operation="mean", y=wide[..., 1])
        assert wide[..., 1].tobytes() == y.tobytes()
        assert (wide[..., ::2] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_special_values(lib: tk.Library, dtype: str, operation: str) -> None:
    x = draw((9, 131), dtype)
    x[0, 3], x[1, 130], x[2, 64], x[3, 7], x[4], x[5, 1], x[5, 90] = (
        np.nan,
        np.nan,
        np.inf,
        -np.inf,
        -np.inf,
        np.inf,
        -np.inf,
    )
    x[6, 0], x[6, 127] = np.inf, np.nan
    for one in instances(lib, dtype, operation):
        for given, axis in ((x, 1), (np.ascontiguousarray(x.T), 0)):
            y = lib.reduce(given, axes=axis, operation=operation, instance=one)
            assert reference.excess(y, given, [axis], operation) <= 1


def test_long_sums_keep_their_digits(lib: tk.Library) -> None:
    x = np.full((1 << 21, 3), 0.1, np.float32)
    for y in (lib.reduce(x, axes=0), lib.reduce(np.ascontiguousarray(x.T), axes=1)):
        assert np.abs(y / (np.float64(np.float32(0.1)) * (1 << 21)) - 1).max() < 1e-6


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_and_streams_give_the_same_bits(lib: tk.Library, threads: int) -> None:
    x = draw((70, 33, 301), "fp32")
    for axes in ((0,), (1,), (2,), (0, 2)):
        one = lib.reduce(x, axes=axes, num_threads=1)
        assert lib.reduce(x, axes=axes, num_threads=threads).tobytes() == one.tobytes()
        with tk.Stream() as stream:
            later = lib.reduce(x, axes=axes, stream=stream)
        assert later.tobytes() == one.tobytes()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"axes": 3}, "axes: number 0 was 3, must be from -3 to 2: the array has 3 dimensions"),
    ({"axes": (0, -3)}, "axes: had dimension 0 twice, must have each once"),
    ({"operation": "prod"}, "operation: was 'prod', must be 'sum', 'mean', 'max' or 'min'"),
    ({"axes": 1, "y": np.zeros(2, "f")}, "y: shape was (2), must be (2, 4)"),
    ({"x": np.zeros((0, 3), "f"), "operation": "max"}, "x: dimension 0 was 0 long, must be 1 or more"),
    ({"x": np.zeros((2, 3), "i4")}, "x: dtype was int32, must be fp32, fp16 or bf16"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(tk.ArgumentError) as raised:
        lib.reduce(**{"x": np.zeros((2, 3, 4), "f"), **changes})
    assert str(raised.value).startswith(says)
