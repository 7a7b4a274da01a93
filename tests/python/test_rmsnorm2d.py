# SPDX-License-Identifier: MIT
"""rmsnorm2d against float64: shapes, strides, memory, special values, threads, every ISA; what its library holds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import dtypes
from tilekiln.reference import rmsnorm2d as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, SHAPES, draw, instances


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def arrays(rows: int, columns: int, dtype: np.dtype) -> tuple[Any, Any, Any]:
    """x, gamma, residual."""
    x, gamma, residual = draw(rows, columns, dtype, "rows", "row", "rows")
    return x, gamma, residual


def check(made: Any, x: Any, gamma: Any, residual: Any = None, epsilon: float = 1e-6) -> None:
    """made: y, or (y, residual_out, inv_rms)."""
    right = reference.rmsnorm2d(x, gamma, residual, epsilon)
    y, *more = made if isinstance(made, tuple) else (made,)
    assert reference.excess(y, right.y) <= 1
    if more:
        assert np.array_equal(more[0].astype(np.float32), right.residual_out.astype(np.float32), equal_nan=True)
        np.testing.assert_allclose(more[1], right.inv_rms, rtol=(x.shape[1] / 8 + 4) * 2.0**-24)


def kernels(lib: tk.Library, dtype: str, add: str, save_rms: str, rounding: str = "pytorch") -> list[int]:
    return instances(lib, "rmsnorm2d", dtype=dtype, add=add, save_rms=save_rms, rounding=rounding)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, shape: tuple[int, int]) -> None:
    x, gamma, residual = arrays(*shape, DTYPES[dtype])
    for one in kernels(lib, dtype, "none", "no"):
        check(lib.rmsnorm2d(x, gamma, instance=one), x, gamma)
    for one in kernels(lib, dtype, "add_store", "yes"):
        both = {"return_residual": True, "return_inv_rms": True}
        made = lib.rmsnorm2d(x, gamma, residual=residual, instance=one, **both)
        check(made, x, gamma, residual)
    for one, stores in zip(
        kernels(lib, dtype, "add", "no"), kernels(lib, dtype, "add_store", "no"), strict=True
    ):  # y does not depend on whether the sum is stored
        y = lib.rmsnorm2d(x, gamma, residual=residual, instance=one)
        also, _ = lib.rmsnorm2d(x, gamma, residual=residual, return_residual=True, instance=stores)
        assert y.tobytes() == also.tobytes()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rounding_as_transformers_have_it(lib: tk.Library, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x, gamma, _ = arrays(20, 515, DTYPES[dtype])
    right = reference.rmsnorm2d(x, gamma).y
    # LlamaRMSNorm and T5LayerNorm, operation by operation.
    wide = torch.from_numpy(x.astype(np.float32))
    kind = dtypes.TORCH[dtype]
    scaled = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)
    theirs = (torch.from_numpy(gamma.astype(np.float32)).to(kind) * scaled).float().numpy()
    once = lib.rmsnorm2d(x, gamma).astype(np.float32)
    for number in kernels(lib, dtype, "none", "no", "transformers"):
        y = lib.rmsnorm2d(x, gamma, rounding="transformers", instance=number)
        assert reference.excess(y, right, "transformers", gamma) <= 1
        assert (y.astype(np.float32) == theirs).mean() > 0.998  # the rest: 1 / sqrt(..) on either side of a tie
        assert 0.5 < (y.astype(np.float32) == once).mean() < 0.9


def test_subnormal_numbers_before_gamma(lib: tk.Library) -> None:
    """x / rms rounded to fp16 loses digits that a large gamma shows."""
    x, gamma, _ = arrays(9, 515, DTYPES["fp16"])
    x, gamma = (x * 2e-6).astype(np.float16), (200 * gamma).astype(np.float16)
    x[:, 0] = 1
    right = reference.rmsnorm2d(x, gamma).y
    for number in kernels(lib, "fp16", "none", "no", "transformers"):
        y = lib.rmsnorm2d(x, gamma, rounding="transformers", instance=number)
        assert reference.excess(y, right, "transformers", gamma) <= 1
        assert reference.excess(y, right, "transformers", np.zeros_like(gamma)) > 1  # the term is needed
    with pytest.raises(ValueError, match="gamma: was None"):
        reference.excess(x, right, "transformers")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, dtype: str, where: str) -> None:
    for columns in (1, 7, 33, 130):
        x, gamma, residual = (guarded(array, where) for array in arrays(3, columns, DTYPES[dtype]))
        y, total = guarded(np.zeros_like(x), where), guarded(np.zeros_like(x), where)
        for one in kernels(lib, dtype, "add_store", "no"):
            lib.rmsnorm2d(x, gamma, y=y, residual=residual, residual_out=total, instance=one)
            assert reference.excess(y, reference.rmsnorm2d(x, gamma, residual).y) <= 1


def test_strides(lib: tk.Library) -> None:
    x, gamma, residual = arrays(6, 40, DTYPES["fp32"])
    y = np.full((12, 50), 7, np.float32)
    x_part, factors, others = x[::-1, 3:36], gamma[:33], residual[::2].repeat(2, 0)[:, :33]
    lib.rmsnorm2d(x_part, factors, y=y[::2, 5:38], residual=others)
    assert reference.excess(y[::2, 5:38], reference.rmsnorm2d(x_part, factors, others).y) <= 1
    assert (y[1::2] == 7).all()
    assert (y[:, :5] == 7).all()
    assert (y[:, 38:] == 7).all()
    repeated = np.broadcast_to(x[0], x.shape)  # a stride of 0
    check(lib.rmsnorm2d(repeated, gamma), repeated, gamma)


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(lib: tk.Library, dtype: str) -> None:
    x, gamma, residual = arrays(5, 301, DTYPES[dtype])
    right = lib.rmsnorm2d(x, gamma, residual=residual, return_residual=True)
    y, total = x.copy(), residual.copy()
    lib.rmsnorm2d(y, gamma, y=y, residual=total, residual_out=total)
    assert (y.tobytes(), total.tobytes()) == (right[0].tobytes(), right[1].tobytes())
    y = x.copy()
    lib.rmsnorm2d(y, gamma, y=y, residual=residual)
    assert y.tobytes() == right[0].tobytes()


def test_other_overlaps_are_refused(lib: tk.Library) -> None:
    memory, gamma = np.zeros((9, 8), np.float32), np.ones(8, np.float32)
    with pytest.raises(tk.ArgumentError, match="y: shares memory with x, must have its own or be x, with its strides"):
        lib.rmsnorm2d(memory[:8], gamma, y=memory[1:])
    with pytest.raises(tk.ArgumentError, match=r"y: shares memory with residual, must have its own$"):
        lib.rmsnorm2d(memory[:4], gamma, residual=memory[4:8], y=memory[4:8])
    assert not memory.any()


def test_special_values(lib: tk.Library) -> None:
    gamma = np.ones(5, np.float32)
    x = np.ones((5, 5), np.float32)
    x[0, 2], x[1, 2], x[2], x[3], x[4] = np.nan, np.inf, 0, 3e30, 1e-30
    y = lib.rmsnorm2d(x, gamma)
    assert np.isnan(y[0]).all()
    assert np.isnan(y[1, 2])
    assert (np.delete(y[1], 2) == 0).all()
    assert (y[2] == 0).all()
    assert (y[3] == 0).all()  # the square leaves fp32
    assert np.isfinite(y[4]).all()
    assert np.isnan(lib.rmsnorm2d(x[2:3], gamma, epsilon=0.0)).all()  # 0 / 0
    check(lib.rmsnorm2d(x[4:], gamma, epsilon=0.5), x[4:], gamma, epsilon=0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_streams_give_the_same_bits(lib: tk.Library, dtype: str) -> None:
    x, gamma, residual = arrays(301, 3001, DTYPES[dtype])
    one = lib.rmsnorm2d(x, gamma, residual=residual, num_threads=1)
    for threads in (2, 3, 7):
        assert lib.rmsnorm2d(x, gamma, residual=residual, num_threads=threads).tobytes() == one.tobytes()
    with tk.Stream() as stream:
        later = lib.rmsnorm2d(x, gamma, residual=residual, stream=stream)
    assert later.tobytes() == one.tobytes()


def test_beside_pytorch(lib: tk.Library) -> None:
    torch = pytest.importorskip("torch")
    x, gamma = torch.randn(7, 129), torch.randn(129)
    made = lib.rmsnorm2d(x, gamma, epsilon=1e-5)
    torch.testing.assert_close(made, torch.nn.functional.rms_norm(x, (129,), gamma, 1e-5), rtol=2e-6, atol=1e-6)


def test_the_library_names_no_operator_of_other_receipts(lib: tk.Library) -> None:
    assert "rmsnorm2d" in lib.operators
    assert "fmha_fwd" not in lib.operators
    symbols = subprocess.run(["nm", lib.path], capture_output=True, text=True, check=True).stdout
    words = subprocess.run(["strings", lib.path], capture_output=True, text=True, check=True).stdout
    assert "tilekiln_rmsnorm2d" in symbols
    assert "fmha" not in symbols + words
    with pytest.raises(AttributeError, match=r"library norm_default has no fmha_fwd; its operators: .*rmsnorm2d"):
        _ = lib.fmha_fwd
