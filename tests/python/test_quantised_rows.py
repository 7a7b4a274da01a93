# SPDX-License-Identifier: MIT
"""Rows quantised each with a scale: rmsnorm2d_rdquant, layernorm2d_rdquant, smoothquant, moe_smoothquant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import layernorm2d, quantised, rmsnorm2d, rows

from tests.python.guard import guarded
from tests.python.rows import DTYPES, SHAPES, draw, instances

TO = {word: NUMPY[word] for word in ("int8", "fp8")}
NORMS = ("rmsnorm2d_rdquant", "layernorm2d_rdquant")


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def normalised(name: str, x: Any, gamma: Any, beta: Any, residual: Any, rounding: str = "pytorch") -> tuple[Any, Any]:
    """Rows before quantisation, float64, and what fp32 may lose of them."""
    if name == "layernorm2d_rdquant":
        right = layernorm2d.layernorm2d(x, gamma, beta, residual)
        return right.y, right.error
    y = rmsnorm2d.rmsnorm2d(x, gamma, residual).y
    return y, rmsnorm2d.loss(y, x.dtype.name, rounding, gamma)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("to", TO)
def test_norms_at_every_isa_and_shape(lib: tk.Library, name: str, dtype: str, to: str) -> None:
    layer = name == "layernorm2d_rdquant"
    for shape in SHAPES:
        x, gamma, beta, residual = draw(*shape, DTYPES[dtype], "rows", "row", "row", "rows")
        smooth = np.abs(draw(*shape, DTYPES["fp32"], "row")[0])
        v, error = normalised(name, x, gamma, beta, residual)
        own = {"beta": "yes"} if layer else {"rounding": "pytorch"}
        call = getattr(lib, name)
        places = (x, gamma, beta) if layer else (x, gamma)
        total = rows.with_residual(x, residual)
        for number in instances(
            lib, name, dtype=dtype, y_dtype=to, add="add_store", smooth="yes", unquantised="yes", **own
        ):
            y, scale, stored, plain = call(
                *places,
                y_dtype=to,
                smooth_scale=smooth,
                residual=residual,
                return_residual=True,
                return_unquantised=True,
                instance=number,
            )
            assert (y.dtype, scale.dtype, plain.dtype) == (TO[to], np.float32, x.dtype)
            assert stored.tobytes() == total.tobytes()
            assert quantised.excess(y, scale, v * smooth, error * smooth) <= 1
            assert rows.excess(plain, v, error) <= 1
        for number in instances(lib, name, dtype=dtype, y_dtype=to, add="add", smooth="no", unquantised="no", **own):
            y, scale = call(*places, y_dtype=to, residual=residual, instance=number)
            assert quantised.excess(y, scale, v, error) <= 1


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rounding_as_transformers_have_it(lib: tk.Library, dtype: str) -> None:
    x, gamma = draw(9, 515, DTYPES[dtype], "rows", "row")
    v, error = normalised("rmsnorm2d_rdquant", x, gamma, None, None, "transformers")
    y, scale, plain = lib.rmsnorm2d_rdquant(x, gamma, rounding="transformers", return_unquantised=True)
    assert quantised.excess(y, scale, v, error) <= 1
    assert plain.tobytes() == lib.rmsnorm2d(x, gamma, rounding="transformers").tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("to", TO)
def test_smoothquant(lib: tk.Library, dtype: str, to: str) -> None:
    for shape in SHAPES:
        (x,), (smooth,) = draw(*shape, DTYPES[dtype], "rows"), draw(*shape, DTYPES["fp32"], "row")
        v = x.astype(np.float64) * smooth
        for number in instances(lib, "smoothquant", dtype=dtype, y_dtype=to):
            y, scale = lib.smoothquant(x, smooth, y_dtype=to, instance=number)
            assert quantised.excess(y, scale, v, np.abs(v) * rows.FP32) <= 1
            plain, plain_scale = lib.smoothquant(x, None, y_dtype=to, instance=number)
            assert quantised.excess(plain, plain_scale, x.astype(np.float64), np.abs(x).astype(np.float64) * 0) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("to", TO)
def test_moe_smoothquant(lib: tk.Library, dtype: str, to: str) -> None:
    random = np.random.default_rng(0)
    tokens, topk, experts = 13, 3, 5
    for columns in (1, 67, 5003):
        x = random.standard_normal((tokens, columns)).astype(DTYPES[dtype])
        smooth = random.standard_normal((experts, columns + 3)).astype(np.float32)[:, 1:-2]
        ids = random.integers(0, experts, (tokens, topk)).astype(np.int32)
        ids[2, 1], ids[4, 2] = -1, experts  # experts elsewhere
        there = np.where((ids >= 0) & (ids < experts), 1, 0)
        v = x.astype(np.float64)[None] * (smooth[ids.clip(0, experts - 1)] * there[..., None]).transpose(1, 0, 2)
        for number in instances(lib, "moe_smoothquant", dtype=dtype, y_dtype=to):
            y = np.ones((topk, tokens + 1, columns), TO[to])[:, 1:]
            scale = np.full((topk, tokens), 7, np.float32)
            lib.moe_smoothquant(x, smooth, ids, y=y, y_scale=scale, instance=number)
            assert quantised.excess(y, scale, v, np.abs(v) * rows.FP32) <= 1
            assert (y.base[:, 0].astype(np.float32) == 1).all()
    y, scale = lib.moe_smoothquant(x, smooth, ids, num_threads=3)
    assert (y.shape, scale.shape) == ((topk, tokens, columns), (topk, tokens))


@pytest.mark.parametrize("to", TO)
def test_special_rows(lib: tk.Library, to: str) -> None:
    x = np.ones((7, 70), np.float32)
    x[0], x[1, 3], x[2, 68], x[3, 0], x[4], x[5] = 0, np.nan, np.inf, -np.inf, 1e-31, 1e-29
    x[6, :4] = 3e38, -3e38, 1e38, 0
    for number in instances(lib, "smoothquant", dtype="fp32", y_dtype=to):
        y, scale = lib.smoothquant(x, y_dtype=to, instance=number, smooth_scale=None)
        assert (y[:5].astype(np.float32) == 0).all()
        assert scale[[0, 4]].tolist() == [0, 0]
        assert np.isnan(scale[1:4]).all()
        assert quantised.excess(y[5:], scale[5:], x[5:].astype(np.float64), x[5:].astype(np.float64) * 0) <= 1
        assert (np.abs(y[5:].astype(np.float32)).max(axis=1) == quantised.LARGEST[TO[to].name]).all()


@pytest.mark.parametrize("to", TO)
def test_a_special_row_leaves_its_neighbours_alone(lib: tk.Library, to: str) -> None:
    """Rows of 16 bits are taken two at a time; rows of rmsnorm2d are measured before 1 / rms is known."""
    x, gamma, residual = draw(7, 70, DTYPES["bf16"], "rows", "row", "rows")
    usual = [0, 2, 6]
    x[1, 3], x[3, 69], x[4], residual[4], x[5], residual[5] = np.nan, -np.inf, 0, 0, 1e-24, 0
    smooth = np.abs(draw(7, 70, DTYPES["fp32"], "row")[0]) * np.float32(1e-3)
    for number in instances(lib, "smoothquant", dtype="bf16", y_dtype=to):
        y, scale = lib.smoothquant(x, smooth, y_dtype=to, instance=number)
        assert (
            quantised.excess(
                y[[*usual, 4, 5]],
                scale[[*usual, 4, 5]],
                (v := x.astype(float) * smooth)[[*usual, 4, 5]],
                np.abs(v)[[*usual, 4, 5]] * rows.FP32,
            )
            <= 1
        )
        assert np.isnan(scale[[1, 3]]).all()
        assert (y[[1, 3]].astype(float) == 0).all()
    v, error = normalised("rmsnorm2d_rdquant", x, gamma, None, residual)
    total = rows.with_residual(x, residual)
    for number in instances(
        lib,
        "rmsnorm2d_rdquant",
        dtype="bf16",
        y_dtype=to,
        add="add_store",
        smooth="no",
        unquantised="no",
        rounding="pytorch",
    ):
        over = residual.copy()
        y, scale = lib.rmsnorm2d_rdquant(
            x, gamma, y_dtype=to, residual=over, residual_out=over, epsilon=0, instance=number
        )[:2]
        nan = np.isnan(total.astype(np.float32))  # of whatever bits: a GPU has others for it
        assert np.array_equal(np.isnan(over.astype(np.float32)), nan)
        assert np.array_equal(over.view(np.int16)[~nan], total.view(np.int16)[~nan])
        assert quantised.excess(y[usual], scale[usual], v[usual], error[usual]) <= 1
        assert np.isnan(scale[[1, 3]]).all()
        assert (y[[1, 3]].astype(float) == 0).all()


@pytest.mark.parametrize("factor", [2.0**-90, 2.0**110])
def test_rows_whose_gamma_is_far_from_1(lib: tk.Library, factor: float) -> None:
    """v gamma is outside of what is measured before 1 / rms: 2^-140 and 2^120 here."""
    x, gamma = draw(3, 70, DTYPES["fp32"], "rows", "row")
    x *= np.float32(2.0**-50 if factor < 1 else 2.0**10)
    gamma *= np.float32(factor)
    y_right = rmsnorm2d.rmsnorm2d(x, gamma, None, epsilon=0).y
    error = rmsnorm2d.loss(y_right, "float32", "pytorch", gamma)
    for number in instances(
        lib,
        "rmsnorm2d_rdquant",
        dtype="fp32",
        y_dtype="int8",
        add="none",
        smooth="no",
        unquantised="no",
        rounding="pytorch",
    ):
        y, scale = lib.rmsnorm2d_rdquant(x, gamma, epsilon=0, instance=number)
        assert (scale > 0).all()
        assert quantised.excess(y, scale, y_right, error) <= 1


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str) -> None:
    for columns in (1, 7, 33, 130):
        x, gamma, beta, residual = (
            guarded(array, where) for array in draw(3, columns, DTYPES["bf16"], "rows", "row", "row", "rows")
        )
        smooth = guarded(np.ones(columns, np.float32), where)
        y, scale = guarded(np.zeros(x.shape, np.int8), where), guarded(np.zeros(3, np.float32), where)
        total, plain = guarded(np.zeros_like(x), where), guarded(np.zeros_like(x), where)
        v, error = normalised("layernorm2d_rdquant", x, gamma, beta, residual)
        own = {"smooth": "yes", "unquantised": "yes", "beta": "yes"}
        for number in instances(lib, "layernorm2d_rdquant", dtype="bf16", y_dtype="int8", add="add_store", **own):
            lib.layernorm2d_rdquant(
                x,
                gamma,
                beta,
                y=y,
                y_scale=scale,
                smooth_scale=smooth,
                residual=residual,
                residual_out=total,
                unquantised=plain,
                instance=number,
            )
            assert quantised.excess(y, scale, v, error) <= 1


def test_the_dtype_of_y(lib: tk.Library) -> None:
    (x,) = draw(3, 8, DTYPES["fp32"], "rows")
    y = np.zeros((3, 8), np.int8)
    made, _ = lib.smoothquant(x, None, y=y)
    assert made is y
    with pytest.raises(tk.ArgumentError, match="y_dtype: was 'fp8', must be the dtype of y, or absent"):
        lib.smoothquant(x, None, y=y, y_dtype="fp8")
    with pytest.raises(tk.ArgumentError, match="y_dtype: was 'bf16', must be 'int8' or 'fp8'"):
        lib.smoothquant(x, None, y_dtype="bf16")
    with pytest.raises(tk.ArgumentError, match="y: dtype was fp32, must be int8 or fp8 when x is fp32"):
        lib.smoothquant(x, None, y=x.copy())


def test_threads_give_the_same_bits(lib: tk.Library) -> None:
    x, gamma = draw(301, 3001, DTYPES["bf16"], "rows", "row")
    one = [array.tobytes() for array in lib.rmsnorm2d_rdquant(x, gamma, num_threads=1)]
    for threads in (2, 7):
        assert [array.tobytes() for array in lib.rmsnorm2d_rdquant(x, gamma, num_threads=threads)] == one


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("columns", [1024, 1021, 8192])
def test_rows_from_memory_have_the_bits_of_rows_in_caches(lib: tk.Library, to: str, columns: int) -> None:
    """16 MB of x: y of int8 goes around the caches, where its rows are whole."""
    rows_ = (16 << 20) // (4 * columns) + 1
    x = np.tile(draw(7, columns, DTYPES["fp32"], "rows")[0], (rows_ // 7 + 1, 1))[:rows_]
    for number in instances(lib, "smoothquant", dtype="fp32", y_dtype=to):
        y, scale = lib.smoothquant(x, None, y_dtype=to, instance=number)
        few, few_scale = lib.smoothquant(x[:7], None, y_dtype=to, instance=number)
        for first in (0, rows_ // 7 * 7 - 7):
            assert np.array_equal(y[first : first + 7].view(np.uint8), few.view(np.uint8))
            assert np.array_equal(scale[first : first + 7], few_scale)


@pytest.mark.parametrize("columns", [1024, 1021])
def test_sums_from_memory_have_the_bits_of_sums_in_caches(lib: tk.Library, columns: int) -> None:
    """18 MB of x, residual and residual_out, which goes around the caches where its rows are whole."""
    rows_ = (6 << 20) // (2 * columns) // 7 * 7
    few = draw(7, columns, DTYPES["bf16"], "rows", "rows")
    (gamma,) = draw(7, columns, DTYPES["bf16"], "row")
    x, residual = (np.tile(one, (rows_ // 7, 1)) for one in few)
    own = {"smooth": "no", "unquantised": "no", "rounding": "pytorch", "add": "add_store"}
    for number in instances(lib, "rmsnorm2d_rdquant", dtype="bf16", y_dtype="int8", **own):
        more = {"return_residual": True, "instance": number}
        alone = lib.rmsnorm2d_rdquant(few[0], gamma, residual=few[1], **more)
        memory = np.zeros(rows_ * columns + 32, DTYPES["bf16"])  # whole lines: numpy's own arrays begin anywhere
        at = -memory.ctypes.data % 64 // 2
        total = memory[at : at + rows_ * columns].reshape(rows_, columns)
        together = lib.rmsnorm2d_rdquant(x, gamma, residual=residual, residual_out=total, instance=number)
        for one, all_ in zip(alone, (*together[:2], total), strict=True):
            assert (all_.view(np.uint8).reshape(rows_ // 7, -1) == one.view(np.uint8).reshape(-1)).all()
