# SPDX-License-Identifier: MIT
"""softmax against float64: shapes, strides, memory, special values, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import FLOATS
from tilekiln.reference import softmax as reference

from tests.gpu_run import TARGETS
from tests.python.guard import guarded

DTYPES = FLOATS
# Rows of no vector, of a part, of several and a part, and past the exponentials that are kept.
SHAPES = [(0, 8), (1, 1), (3, 1), (1, 7), (2, 64), (5, 67), (3, 257), (3, 8192), (7, 8201), (2, 20011)]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def logits(rows: int, columns: int, dtype: np.dtype, scale: float = 3.0) -> np.ndarray:
    return (scale * np.random.default_rng(rows * 31 + columns).standard_normal((rows, columns))).astype(dtype)


def instances(lib: tk.Library, dtype: str) -> list[int]:
    """One a target; those that this machine can run."""
    found = lib.instances(f"family=softmax dtype={dtype}")
    assert len(found) == TARGETS
    return [one.number for one in found if lib.instance_usable(one.number)]


@pytest.mark.parametrize("scale", [0.0, 3.0, 40.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, shape: tuple[int, int], scale: float) -> None:
    x = logits(*shape, DTYPES[dtype], scale)
    for one in instances(lib, dtype):
        assert reference.excess(lib.softmax(x, instance=one), x) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, dtype: str, where: str) -> None:
    for columns in (1, 7, 33, 130, 8203):
        x = guarded(logits(3, columns, DTYPES[dtype]), where)
        y = guarded(np.zeros_like(x), where)
        for one in instances(lib, dtype):
            lib.softmax(x, y=y, instance=one)
            assert reference.excess(y, x) <= 1


def test_strides(lib: tk.Library) -> None:
    x = logits(6, 40, DTYPES["fp32"])
    y = np.full((12, 50), 7, np.float32)
    part = x[::-1, 3:36]
    lib.softmax(part, y=y[::2, 5:38])
    assert reference.excess(y[::2, 5:38], part) <= 1
    assert (y[1::2] == 7).all()
    assert (y[:, :5] == 7).all()
    assert (y[:, 38:] == 7).all()
    repeated = np.broadcast_to(x[0], x.shape)  # a stride of 0
    assert reference.excess(lib.softmax(repeated), repeated) <= 1


@pytest.mark.parametrize("columns", [301, 8300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(lib: tk.Library, dtype: str, columns: int) -> None:
    x = logits(5, columns, DTYPES[dtype])
    for one in instances(lib, dtype):
        y = x.copy()
        assert lib.softmax(y, y=y, instance=one) is y
        assert y.tobytes() == lib.softmax(x, instance=one).tobytes()


def test_other_overlaps_are_refused(lib: tk.Library) -> None:
    memory = np.zeros((9, 8), np.float32)
    with pytest.raises(tk.ArgumentError, match="y: shares memory with x, must have its own or be x, with its strides"):
        lib.softmax(memory[:8], y=memory[1:])
    assert not memory.any()


@pytest.mark.parametrize("columns", [5, 70, 8300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(lib: tk.Library, dtype: str, columns: int) -> None:
    inf, lowest = np.inf, {"fp16": -65504.0}.get(dtype, -3.38e38)
    x = np.ones((8, columns), DTYPES[dtype])
    x[0, 2], x[1, -1], x[2, 2], x[3], x[4, 1:] = np.nan, np.nan, inf, -inf, -inf
    x[5], x[6], x[7, 1] = lowest, -lowest, -inf
    x[6, 1] = lowest
    for one in instances(lib, dtype):
        y = lib.softmax(x, instance=one)
        assert reference.excess(y, x) <= 1
        assert np.isnan(y[:4]).all()
        assert (y[4] == np.eye(1, columns)).all()
        assert (y[6:, 1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_streams_give_the_same_bits(lib: tk.Library, dtype: str) -> None:
    x = logits(301, 3001, DTYPES[dtype])
    one = lib.softmax(x, num_threads=1)
    for threads in (2, 3, 7):
        assert lib.softmax(x, num_threads=threads).tobytes() == one.tobytes()
    with tk.Stream() as stream:
        later = lib.softmax(x, stream=stream)
    assert later.tobytes() == one.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_are_those_of_few(lib: tk.Library, dtype: str) -> None:
    """32 MB of x and y, which goes around the caches where its rows are whole lines."""
    size = DTYPES[dtype].itemsize
    rows = (16 << 20) // (2048 * size)
    x = np.tile(logits(64, 2048, DTYPES[dtype]), (rows // 64, 1))
    memory = np.empty(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    whole = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    for one in instances(lib, dtype):
        few = lib.softmax(x[:64], instance=one)
        lib.softmax(x, y=whole, instance=one)
        assert (whole.view(f"u{size}").reshape(-1, *few.shape) == few.view(f"u{size}")).all()
    place = x.copy()
    lib.softmax(place, y=place, num_threads=2)
    assert place.tobytes() == lib.softmax(x).tobytes()


def test_beside_pytorch(lib: tk.Library) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(7, 129)
    x[0, 3], x[1], x[2, 5], x[3, 8] = float("nan"), float("-inf"), float("inf"), float("-inf")
    made = lib.softmax(x)
    torch.testing.assert_close(made, torch.softmax(x, -1), rtol=2e-6, atol=1e-12, equal_nan=True)
