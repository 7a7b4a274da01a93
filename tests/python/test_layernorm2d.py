# SPDX-License-Identifier: MIT
"""layernorm2d against float64: shapes, strides, memory, rows far from 0, special values, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import layernorm2d as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, SHAPES, draw, instances

ALL = {"return_residual": True, "return_mean": True, "return_inv_std": True}


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, shape: tuple[int, int]) -> None:
    x, gamma, beta, residual = draw(*shape, DTYPES[dtype], "rows", "row", "row", "rows")
    n = shape[1]
    for number in instances(lib, "layernorm2d", dtype=dtype, add="none", beta="no", statistics="none"):
        y = lib.layernorm2d(x, gamma, instance=number)
        assert reference.excess(y, reference.layernorm2d(x, gamma)) <= 1
    right = reference.layernorm2d(x, gamma, beta, residual)
    stored = instances(lib, "layernorm2d", dtype=dtype, add="add_store", beta="yes", statistics="saved")
    added = instances(lib, "layernorm2d", dtype=dtype, add="add", beta="yes", statistics="none")
    for number, without in zip(stored, added, strict=True):
        y, total, mean, inv_std = lib.layernorm2d(x, gamma, beta, residual=residual, instance=number, **ALL)
        assert reference.excess(y, right) <= 1
        assert total.tobytes() == right.residual_out.tobytes()
        assert (abs(mean - right.mean) <= 2.0**-24 * (n / 4 + 6) * (abs(right.mean) + 1)).all()
        np.testing.assert_allclose(inv_std, right.inv_std, rtol=(n / 4 + 8) * 2.0**-24)
        also = lib.layernorm2d(x, gamma, beta, residual=residual, instance=without)
        assert also.tobytes() == y.tobytes()  # y does not depend on what else is written


@pytest.mark.parametrize("columns", [67, 4096])
def test_rows_far_from_zero_keep_six_digits(lib: tk.Library, columns: int) -> None:
    x, gamma, beta = draw(6, columns, DTYPES["fp32"], "rows", "row", "row")
    x[:3] += 10_000
    x[3:] -= 10_000
    right = reference.layernorm2d(x, gamma, beta)
    for number in instances(lib, "layernorm2d", dtype="fp32", add="none", beta="yes", statistics="saved"):
        y, mean, inv_std = lib.layernorm2d(x, gamma, beta, instance=number, return_mean=True, return_inv_std=True)
        assert abs(y - right.y).max() <= 2e-6 * abs(right.y).max()
        np.testing.assert_allclose(mean, right.mean, rtol=2.0**-23)
        np.testing.assert_allclose(inv_std, right.inv_std, rtol=1e-6)


@pytest.mark.parametrize("first", [1, 64, 100])
def test_rows_that_begin_unlike_the_rest(lib: tk.Library, first: int) -> None:
    x, gamma, beta = draw(4, 1031, DTYPES["fp32"], "rows", "row", "row")
    x[:2] *= 0.01
    x[:, :first] += np.float32([[30], [-1000], [1000], [1e5]])
    right = reference.layernorm2d(x, gamma, beta)
    for number in instances(lib, "layernorm2d", dtype="fp32", add="none", beta="yes", statistics="none"):
        assert reference.excess(lib.layernorm2d(x, gamma, beta, instance=number), right) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, dtype: str, where: str) -> None:
    for columns in (1, 7, 33, 130):
        drawn = draw(3, columns, DTYPES[dtype], "rows", "row", "row", "rows")
        x, gamma, beta, residual = (guarded(array, where) for array in drawn)
        y, total = guarded(np.zeros_like(x), where), guarded(np.zeros_like(x), where)
        right = reference.layernorm2d(x, gamma, beta, residual)
        for number in instances(lib, "layernorm2d", dtype=dtype, add="add_store", beta="yes", statistics="none"):
            lib.layernorm2d(x, gamma, beta, y=y, residual=residual, residual_out=total, instance=number)
            assert reference.excess(y, right) <= 1


@pytest.mark.parametrize("name", ["layernorm2d", "rmsnorm2d"])
@pytest.mark.parametrize(
    ("dtype", "rows", "residual"), [("fp32", 1030, False), ("bf16", 1400, True), ("fp16", 1400, True)]
)
def test_calls_past_the_caches_give_the_same_bits(
    lib: tk.Library, name: str, dtype: str, rows: int, residual: bool
) -> None:
    drawn, gamma = draw(7, 4096, DTYPES[dtype], "rows", "row")
    x = np.tile(drawn, (rows // 7 + 1, 1))[:rows]
    memory = np.empty(x.nbytes + 64, np.uint8)  # whole cache lines: results go around the caches
    y = memory[-memory.ctypes.data % 64 :][: x.nbytes].view(x.dtype).reshape(x.shape)
    own = {"beta": "no", "statistics": "none"} if name == "layernorm2d" else {"rounding": "pytorch", "save_rms": "no"}
    call = getattr(lib, name)
    for number in instances(lib, name, dtype=dtype, add="add" if residual else "none", **own):
        few = call(x[:7], gamma, residual=x[:7] if residual else None, instance=number)
        y.view(np.uint8)[:] = 255
        call(x, gamma, y=y, residual=x if residual else None, instance=number, num_threads=2)
        for first in range(0, rows, 7):
            assert y[first : first + 7].tobytes() == few[: min(7, rows - first)].tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_offsets_beside_what_16_bits_resolve(lib: tk.Library, dtype: str) -> None:
    x, gamma, beta = draw(6, 4096, DTYPES[dtype], "rows", "row", "row")
    offsets = np.float32([[0], [3], [100], [-10_000], [10_000], [10_000]])
    x = (x.astype(np.float32) * 100 + offsets).astype(x.dtype)
    x[5] = x[5, 0]
    x[5, 7] = x.dtype.type(10_100)
    right = reference.layernorm2d(x, gamma, beta)
    for number in instances(lib, "layernorm2d", dtype=dtype, add="none", beta="yes", statistics="saved"):
        y, mean, inv_std = lib.layernorm2d(x, gamma, beta, instance=number, return_mean=True, return_inv_std=True)
        assert reference.excess(y, right) <= 1
        np.testing.assert_allclose(mean, right.mean, rtol=2.0**-22, atol=1e-4)
        np.testing.assert_allclose(inv_std, right.inv_std, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e-10, 1e18, 1e30])
def test_rows_of_bf16_far_from_one(lib: tk.Library, scale: float) -> None:
    x, gamma = draw(5, 1031, DTYPES["bf16"], "rows", "row")
    x = (x.astype(np.float32) * np.float32(scale)).astype(x.dtype)
    y = {}
    for number in instances(lib, "layernorm2d", dtype="bf16", add="none", beta="no", statistics="saved"):
        y[number] = lib.layernorm2d(x, gamma, instance=number, return_mean=True, return_inv_std=True)
    (_, mean, inv_std), *others = y.values()
    for _, other_mean, other_inv_std in others:  # instructions for pairs of bf16 know no subnormal numbers
        np.testing.assert_allclose(other_mean, mean, rtol=1e-4, atol=1e-5 * scale)
        np.testing.assert_allclose(other_inv_std, inv_std, rtol=1e-5)


def test_strides(lib: tk.Library) -> None:
    x, gamma, beta = draw(6, 40, DTYPES["fp32"], "rows", "row", "row")
    y = np.full((12, 50), 7, np.float32)
    part = x[::-1, 3:36]
    lib.layernorm2d(part, gamma[:33], beta[5:38], y=y[::2, 5:38])
    assert reference.excess(y[::2, 5:38], reference.layernorm2d(part, gamma[:33], beta[5:38])) <= 1
    assert (y[1::2] == 7).all()
    assert (y[:, :5] == 7).all()
    assert (y[:, 38:] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(lib: tk.Library, dtype: str) -> None:
    x, gamma, beta, residual = draw(5, 301, DTYPES[dtype], "rows", "row", "row", "rows")
    right, total = lib.layernorm2d(x, gamma, beta, residual=residual, return_residual=True)
    y, added = x.copy(), residual.copy()
    lib.layernorm2d(y, gamma, beta, y=y, residual=added, residual_out=added)
    assert (y.tobytes(), added.tobytes()) == (right.tobytes(), total.tobytes())
    y = x.copy()
    lib.layernorm2d(y, gamma, beta, y=y, residual=residual)
    assert y.tobytes() == right.tobytes()


def test_special_values(lib: tk.Library) -> None:
    gamma, beta = np.ones(5, np.float32), np.full(5, 3, np.float32)
    x = np.ones((6, 5), np.float32)
    x[0, 2], x[1, 2], x[2], x[3], x[4, 0] = np.nan, np.inf, 0, 1e30, 1e30
    y, mean, inv_std = lib.layernorm2d(x, gamma, beta, return_mean=True, return_inv_std=True)
    assert np.isnan(y[0]).all()
    assert np.isnan(y[1]).all()
    assert (y[[2, 3, 5]] == 3).all()  # equal elements: no deviation
    assert mean[[2, 3, 5]].tolist() == [0, np.float32(1e30), 1]
    np.testing.assert_allclose(inv_std[[2, 3, 5]], 1e-5**-0.5, rtol=1e-6)
    assert (y[4] == 3).all()  # the squares leave fp32
    assert np.isnan(lib.layernorm2d(x[2:3], gamma, epsilon=0.0)).all()  # 0 / 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_streams_give_the_same_bits(lib: tk.Library, dtype: str) -> None:
    x, gamma, beta = draw(301, 3001, DTYPES[dtype], "rows", "row", "row")
    one = lib.layernorm2d(x, gamma, beta, num_threads=1)
    for threads in (2, 3, 7):
        assert lib.layernorm2d(x, gamma, beta, num_threads=threads).tobytes() == one.tobytes()
    with tk.Stream() as stream:
        later = lib.layernorm2d(x, gamma, beta, stream=stream)
    assert later.tobytes() == one.tobytes()


def test_beside_pytorch(lib: tk.Library) -> None:
    torch = pytest.importorskip("torch")
    x, gamma, beta = torch.randn(7, 129), torch.randn(129), torch.randn(129)
    made = lib.layernorm2d(x, gamma, beta)
    torch.testing.assert_close(made, torch.nn.functional.layer_norm(x, (129,), gamma, beta), rtol=2e-6, atol=2e-6)
