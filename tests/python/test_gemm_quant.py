# SPDX-License-Identifier: MIT
"""gemm_quant against float64: products that become int8 or fp8 on the way out, every ISA, static and by rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import gemm as reference

from tests.python.guard import guarded
from tests.python.test_gemm import TARGETS, draw
from tests.python.test_gemm_lists import kernel

F32 = np.float32
SHAPES = [(1, 1, 1), (7, 65, 33), (3, 300, 20), (241, 64, 130), (2, 5, 0), (0, 3, 4), (3, 0, 4)]


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_linear", targets="all")


def check(out: np.ndarray, scale: np.ndarray, want: reference.Quantised) -> None:
    with np.errstate(invalid="ignore"):
        near = np.abs(scale.astype(np.float64) - want.scale) <= want.error
        assert (near | (np.isnan(scale) & np.isnan(want.scale))).all(), (scale, want.scale)
        good = np.abs(out.astype(np.float64) * scale[:, None] - want.x) <= want.bound
    lost = ~np.isfinite(want.scale)
    assert (out[lost].astype(F32) == 0).all()
    assert good[~lost].all(), np.argwhere(~good & ~lost[:, None])[:3]


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("target", TARGETS)
def test_against_float64(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    choices = itertools.cycle(itertools.product(("int8", "fp8"), (0.0, 0.06), ("none", "gelu", "relu")))
    for m, n, k in SHAPES * 2:
        to, static, activation = next(choices)
        a, b = guarded(draw(random, m, k, dtype, False), "after"), draw(random, n, k, dtype, False).T
        extra: dict[str, Any] = {"bias": random.standard_normal(n).astype(F32), "alpha": 0.5}
        if dtype in ("int8", "fp8"):
            extra |= {"row_scale": random.random(m, F32) / 99, "column_scale": random.random(n, F32) / 99}
        call = {**extra, "activation": activation, "static_scale": static}
        whole = np.full((m, n + 3), 77, NUMPY[to])
        out, scale = whole[:, :n], guarded(np.zeros(m, F32), "after")
        number = kernel(library, "gemm_quant", target, a, b, out=out, out_scale=scale, **call)
        made = library.gemm_quant(a, b, out=out, out_scale=scale, instance=number, **call)
        assert made[0] is out
        assert made[1] is scale
        assert (whole[:, n:] == 77).all()
        check(out, scale, reference.gemm_quant(a, b, dtype=to, **call))
        again = library.gemm_quant(a, b, out_dtype=to, instance=number, num_threads=3, **call)
        assert again[0].tobytes() == out.tobytes()
        assert again[1].tobytes() == scale.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_special_values(library: tk.Library, target: str) -> None:
    """By rows: zeros stay zeros with the scale 0, a NaN or an infinity makes the scale NaN. Static: saturated."""
    a = np.zeros((5, 8), NUMPY["bf16"])
    a[1, 0], a[2, 0], a[3, 0], a[4, 0] = np.nan, np.inf, -np.inf, 3e30
    b = np.ones((70, 8), NUMPY["bf16"]).T
    for to, lowest, highest in (("int8", -128.0, 127.0), ("fp8", -448.0, 448.0)):
        number = kernel(library, "gemm_quant", target, a, b, out_dtype=to)
        out, scale = library.gemm_quant(a, b, out_dtype=to, instance=number)
        assert scale[0] == 0
        assert np.isnan(scale[1:4]).all()
        assert np.isfinite(scale[4])
        assert (out[:4].astype(F32) == 0).all()
        assert (out[4].astype(F32) == highest).all()
        number = kernel(library, "gemm_quant", target, a, b, out_dtype=to, static_scale=2.0)
        out, scale = library.gemm_quant(a, b, out_dtype=to, static_scale=2.0, instance=number)
        assert (scale == 2).all()
        wide = out.astype(F32)
        assert (wide[0] == 0).all()
        assert (wide[2] == highest).all()
        assert (wide[3] == lowest).all()
        assert (wide[4] == highest).all()
        assert (wide[1] == -128).all() if to == "int8" else np.isnan(wide[1]).all()


def test_a_layer_feeds_the_next(library: tk.Library) -> None:
    """Two layers of int8: what the first gives is what the second takes."""
    random = np.random.default_rng(3)
    x = draw(random, 9, 64, "bf16", False)
    first, second = draw(random, 96, 64, "bf16", False), random.integers(-127, 128, (70, 96)).astype(np.int8)
    h, scale = library.gemm_quant(x, first.T, activation="silu")
    made = library.gemm(h, second.T, row_scale=scale, out_dtype="fp32")
    exact = x.astype(np.float64) @ first.astype(np.float64).T
    exact = exact / (1 + np.exp(-exact)) @ second.astype(np.float64).T
    assert np.abs(made - exact).max() <= 0.02 * np.abs(exact).max()


def test_bad_input(library: tk.Library) -> None:
    a, b = np.zeros((2, 8), NUMPY["bf16"]), np.zeros((3, 8), NUMPY["bf16"]).T
    for call, text in (
        ({"static_scale": -1.0}, "static_scale: was -1, must be 0 or a finite number above"),
        ({"out_dtype": "fp16"}, "out_dtype: was 'fp16', must be 'int8' or 'fp8'"),
        ({"out_scale": np.zeros(3, F32)}, "out_scale: m was 3, must be 2, the m of a"),
        ({"row_scale": np.zeros(3, F32)}, "row_scale: m was 3, must be 2, the m of a"),
        ({"clamp_min": 7.0}, "clamp_min: was 7, must be at most 6, which is clamp_max"),
    ):
        with pytest.raises(tk.ArgumentError) as error:
            library.gemm_quant(a, b, **call)
        assert str(error.value).startswith(text), str(error.value)
