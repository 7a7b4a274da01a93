# SPDX-License-Identifier: MIT
"""silu_and_mul and its gradients against float64: shapes, strides, memory, special values, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gated as reference

from tests.gpu_run import TARGETS
from tests.python.guard import guarded
from tests.python.rows import DTYPES

SHAPES = [(0, 8), (1, 1), (3, 1), (1, 7), (2, 64), (5, 67), (3, 257), (2, 8201)]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(rows: int, columns: int, dtype: str, scale: float = 3.0) -> list[np.ndarray]:
    random = np.random.default_rng(rows * 31 + columns)
    return [(scale * random.standard_normal((rows, columns))).astype(DTYPES[dtype]) for _ in range(3)]


def instances(lib: tk.Library, family: str, dtype: str) -> list[int]:
    found = lib.instances(f"family={family} dtype={dtype}")
    assert len(found) == TARGETS
    return [one.number for one in found if lib.instance_usable(one.number)]


@pytest.mark.parametrize("scale", [3.0, 60.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, shape: tuple[int, int], scale: float) -> None:
    gate, up, dy = draw(*shape, dtype, scale)
    for one in instances(lib, "silu_and_mul", dtype):
        assert reference.excess(lib.silu_and_mul(gate, up, instance=one), gate, up) <= 1
    for one in instances(lib, "silu_and_mul_bwd", dtype):
        made = lib.silu_and_mul_bwd(dy, gate, up, instance=one)
        assert reference.gradient_excess(*made, dy, gate, up) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, dtype: str, where: str) -> None:
    for columns in (1, 33, 130):
        gate, up, dy = (guarded(one, where) for one in draw(3, columns, dtype))
        y, dgate, dup = (guarded(np.zeros_like(gate), where) for _ in range(3))
        for one in instances(lib, "silu_and_mul", dtype):
            lib.silu_and_mul(gate, up, y=y, instance=one)
            assert reference.excess(y, gate, up) <= 1
        for one in instances(lib, "silu_and_mul_bwd", dtype):
            lib.silu_and_mul_bwd(dy, gate, up, dgate=dgate, dup=dup, instance=one)
            assert reference.gradient_excess(dgate, dup, dy, gate, up) <= 1


def test_halves_of_rows_and_in_place(lib: tk.Library) -> None:
    (both,) = draw(5, 140, "bf16")[:1]
    gate, up = both[:, :70], both[:, 70:]
    right = lib.silu_and_mul(gate.copy(), up.copy())
    assert lib.silu_and_mul(gate, up).tobytes() == right.tobytes()
    kept = both.copy()
    lib.silu_and_mul(gate, up, y=gate)
    assert gate.tobytes() == right.tobytes()
    assert up.tobytes() == kept[:, 70:].tobytes()
    dy, gate, up = draw(5, 70, "fp32")
    of_gate, of_up = lib.silu_and_mul_bwd(dy, gate, up)
    lib.silu_and_mul_bwd(dy, gate, up, dgate=gate, dup=up)
    assert (gate.tobytes(), up.tobytes()) == (of_gate.tobytes(), of_up.tobytes())
    with pytest.raises(tk.ArgumentError, match="y: shares memory with up"):
        lib.silu_and_mul(gate, up, y=up)
    with pytest.raises(tk.ArgumentError, match="up: column count was 69, must be 70"):
        lib.silu_and_mul(gate, up[:, 1:])


def test_special_values(lib: tk.Library) -> None:
    gate = np.array([[-np.inf, np.nan, np.inf, -200, 200, 1]], np.float32)
    up = np.array([[2, 2, 2, 2, 2, np.nan]], np.float32)
    for one in instances(lib, "silu_and_mul", "fp32"):
        y = lib.silu_and_mul(gate, up, instance=one)[0]
        assert np.isnan(y[[1, 5]]).all()
        assert (np.abs(y[[0, 3]]) < 2.0**-100).all()
        assert y[[2, 4]].tolist() == [np.inf, 400]


def test_threads_give_the_same_bits(lib: tk.Library) -> None:
    gate, up, dy = draw(301, 501, "bf16")
    one = lib.silu_and_mul(gate, up, num_threads=1).tobytes()
    assert lib.silu_and_mul(gate, up, num_threads=3).tobytes() == one
    with tk.Stream() as stream:
        later = lib.silu_and_mul(gate, up, stream=stream)
    assert later.tobytes() == one
    both = [array.tobytes() for array in lib.silu_and_mul_bwd(dy, gate, up, num_threads=1)]
    assert [array.tobytes() for array in lib.silu_and_mul_bwd(dy, gate, up, num_threads=3)] == both
