# SPDX-License-Identifier: MIT
"""permute, copy, transpose, batched_transpose: bits in another order, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY

from tests.gpu_run import DEVICE, TARGETS
from tests.python.guard import guarded

ELEMENTS = {"bytes1": np.uint8, "bytes2": np.int16, "bytes4": np.int32, "bytes8": np.int64}
DTYPES = {"bytes1": np.uint8, "bytes2": np.float16, "bytes4": np.float32, "bytes8": np.float64}
# Rows, planes of whole tiles, of tiles and a rest, of less than a tile; a long row; nothing; one; eight dimensions.
PERMUTATIONS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()),
    ((7,), (0,)),
    ((70001,), (0,)),
    ((0, 3), (1, 0)),
    ((1, 1), (1, 0)),
    ((64, 64), (1, 0)),
    ((67, 131), (1, 0)),
    ((3, 517), (1, 0)),
    ((330, 5), (1, 0)),
    ((2, 7, 3, 128), (0, 2, 1, 3)),
    ((2, 70, 9, 11), (0, 2, 3, 1)),
    ((2, 9, 11, 70), (0, 3, 1, 2)),
    ((4, 5, 6), (2, 1, 0)),
    ((17, 4, 19, 3), (3, 0, 2, 1)),
    ((2, 3, 2, 3, 2, 3, 2, 5), (7, 5, 6, 1, 0, 4, 3, 2)),
    ((2, 1, 3, 1, 1, 33, 1, 18), (7, 1, 5, 3, 0, 4, 2, 6)),
]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def bits(shape: tuple[int, ...], element: str) -> np.ndarray:
    """Random bits, NaNs among them, in the type that the library is given."""
    count = int(np.prod(shape)) * np.dtype(DTYPES[element]).itemsize
    raw = np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)
    return raw.view(DTYPES[element]).reshape(shape)


def same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def instances(lib: tk.Library, family: str, element: str) -> list[int]:
    found = lib.instances(f"family={family} element={element}")
    assert len(found) == TARGETS
    return [one.number for one in found if lib.instance_usable(one.number)]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(("shape", "axes"), PERMUTATIONS, ids=str)
def test_every_isa_permutes(lib: tk.Library, element: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = bits(shape, element)
    for one in instances(lib, "permute", element):
        assert same(lib.permute(x, axes=axes, instance=one), x.transpose(axes))
    assert same(lib.permute(x), x.transpose())  # all, last first
    assert same(lib.permute(x, axes=[axis - x.ndim for axis in axes]), x.transpose(axes))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, element: str, where: str) -> None:
    tiled = [((67, 131), (1, 0)), ((3, 9, 13), (0, 2, 1)), ((2, 5, 7), (0, 2, 1))]
    for shape, axes in [*tiled, ((5, 3, 7), (0, 2, 1)), ((2, 31, 6), (1, 0, 2)), ((3,), (0,))]:
        x = guarded(bits(shape, element), where)
        y = guarded(np.zeros_like(np.ascontiguousarray(x.transpose(axes))), where)
        for one in instances(lib, "permute", element):
            y.fill(0)
            lib.permute(x, axes=axes, y=y, instance=one)
            assert same(y, x.transpose(axes))


def test_strides(lib: tk.Library) -> None:
    memory = bits((40, 50, 6), "bytes4")
    x = memory[::-2, 3:40, ::3]  # steps of every kind, one of them backwards
    y = np.zeros((9, 80, 40), np.float32)
    part = y[1:5:2, ::2, 1:38][:, :20]
    lib.permute(x, axes=(2, 0, 1), y=part)
    assert same(part.copy(), x.transpose(2, 0, 1))
    assert not y[::2].any()
    assert not y[1:5:2, 1::2].any()
    assert not y[:, :, 38:].any()
    repeated = np.broadcast_to(memory[0, 0], (4, 6))  # a stride of 0
    assert same(lib.copy(repeated), repeated)
    turned = np.zeros((7, 5), np.float32).T  # y whose rows are not contiguous
    lib.copy(memory[:5, :7, 0], y=turned)
    assert same(turned.copy(), memory[:5, :7, 0])


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
                                   np.uint64, np.float16, np.float32, np.float64, NUMPY["bf16"].type,
                                   NUMPY["fp8"].type, NUMPY["bf8"].type])  # fmt: skip
def test_results_have_the_dtype_of_x(lib: tk.Library, dtype: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    for y in (lib.permute(x), lib.transpose(x), lib.batched_transpose(x[None])[0], lib.copy(x).T):
        assert same(np.ascontiguousarray(y), np.ascontiguousarray(x.T))


@pytest.mark.parametrize("element", ELEMENTS)
def test_transposes(lib: tk.Library, element: str) -> None:
    x = bits((3, 45, 6, 13), element)
    for one in instances(lib, "batched_transpose", element):
        assert same(lib.batched_transpose(x, instance=one), x.transpose(0, 2, 3, 1))
        assert same(lib.batched_transpose(x, layout="nhwc", instance=one), x.transpose(0, 3, 1, 2))
        assert same(lib.batched_transpose(x[0], instance=one), x[0].transpose(0, 2, 1))
    for one in instances(lib, "transpose", element):
        assert same(lib.transpose(x[0, :, 2], instance=one), x[0, :, 2].T)


def test_large_copies_go_around_the_caches(lib: tk.Library) -> None:
    """Past 16 MB, at every place of a line."""
    x = np.arange((1 << 22) + 70001, dtype=np.float32)
    y = np.zeros(len(x) + 16, np.float32)
    for start in (0, 1, 15):
        y[:] = 0
        lib.copy(x[: -start or None], y=y[start : len(x)])
        assert (y[start : len(x)] == x[: len(x) - start]).all()
        assert not y[:start].any()
        assert not y[len(x) :].any()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_and_streams_give_the_same_bits(lib: tk.Library, threads: int) -> None:
    x = bits((3, 301, 517), "bytes2")
    assert same(lib.permute(x, axes=(2, 0, 1), num_threads=threads), x.transpose(2, 0, 1))
    with tk.Stream() as stream:
        later = lib.batched_transpose(x, stream=stream)
    assert same(later, x.transpose(0, 2, 1))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("permute", {"axes": (0, 1)}, "axes: had 2 dimensions, must have the 3 of x, or none"),
    ("permute", {"axes": (0, 1, 3)}, "axes: number 2 was 3, must be from -3 to 2: the array has 3 dimensions"),
    ("permute", {"axes": (0, 1, -2)}, "axes: had dimension 1 twice, must have each once"),
    ("permute", {"axes": "012"}, "axes: was '012', must be a dimension or several"),
    ("permute", {"axes": (0.5, 1, 2)}, "axes: was 0.5, must be an integer"),
    ("permute", {"axes": range(9)}, "axes: had 9 dimensions, must have at most 8"),
    ("permute", {"y": np.zeros((2, 3, 4))}, "y: dtype was fp64, must be fp32, the dtype of x"),
    ("permute", {"y": np.zeros((2, 3, 4), "f")}, "y: shape was (2, 3, 4), must be (4, 3, 2)"),
    ("copy", {"y": np.zeros((2, 3), "f")}, "y: shape was (2, 3), must be (2, 3, 4)"),
    ("copy", {"y": np.broadcast_to(np.zeros(4, "f"), (2, 3, 4))}, "y: was read-only, must be writable"),
    (
        "copy",
        {"x": np.zeros((2, 3, 4), "c8")},
        "x: dtype was complex64, must be fp32, fp16, bf16, fp8, bf8, int8, int16",
    ),
    ("transpose", {}, "x: had 3 dimensions, must have 2: (rows, columns)"),
    ("batched_transpose", {"x": np.zeros((2, 3), "f")}, "x: had 2 dimensions, must have 3, (batch, rows, columns), or"),
    ("batched_transpose", {"layout": "nchwc"}, "layout: was 'nchwc', must be 'nchw' or 'nhwc'"),
]


@pytest.mark.parametrize(("name", "changes", "says"), BAD, ids=[says[:50] for _, _, says in BAD])
def test_bad_input(lib: tk.Library, name: str, changes: dict[str, Any], says: str) -> None:
    if DEVICE != "cpu" and "read-only" in says:
        pytest.skip("arrays exported without a version of DLPack do not say that they are read-only")
    with pytest.raises(tk.ArgumentError) as raised:
        getattr(lib, name)(**{"x": np.zeros((2, 3, 4), "f"), **changes})
    assert str(raised.value).startswith(says)


def test_nothing_is_moved_in_place(lib: tk.Library) -> None:
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    for name in ("permute", "transpose", "copy"):
        with pytest.raises(tk.ArgumentError, match=r"^y: shares memory with x, must have its own$"):
            getattr(lib, name)(x, y=x)
    assert (x.ravel() == np.arange(16)).all()
