# SPDX-License-Identifier: MIT
"""rmsnorm2d_bwd and layernorm2d_bwd against float64 and PyTorch's autograd: shapes, memory, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import norm_backward as reference
from tilekiln.reference import rows

from tests.python.guard import guarded
from tests.python.rows import DTYPES, draw, instances

SHAPES = [(0, 8), (1, 1), (3, 7), (16, 64), (17, 67), (70, 257), (1030, 33), (2, 8200)]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def problem(layer: bool, shape: tuple[int, int], dtype: str) -> tuple[Any, ...]:
    dy, x, gamma = draw(*shape, DTYPES[dtype], "rows", "rows", "row")
    wide = x.astype(np.float64) + 3
    x = wide.astype(DTYPES[dtype])
    mean = x.astype(np.float64).mean(axis=1).astype(np.float32)
    middle = mean[:, None].astype(np.float64) if layer else 0
    inverse = 1 / np.sqrt(((x.astype(np.float64) - middle) ** 2).mean(axis=1) + 1e-5)
    return (dy, x, gamma, *([mean] if layer else []), inverse.astype(np.float32))


def call(lib: tk.Library, layer: bool, given: tuple[Any, ...], **more: Any) -> tuple[Any, ...]:
    name = "layernorm2d_bwd" if layer else "rmsnorm2d_bwd"
    return getattr(lib, name)(*given, **({"return_dbeta": True} if layer else {}), **more)


def check(layer: bool, given: tuple[Any, ...], made: tuple[Any, ...]) -> None:
    dy, x, gamma, *mean, inverse = given
    right = reference.backward(dy, x, gamma, mean[0] if layer else None, inverse)
    assert len(made) == 2 + layer
    for got, one, error in zip(made, right[:3], right.errors, strict=False):
        assert rows.excess(got, one, error) <= 1


def all_of(lib: tk.Library, layer: bool, dtype: str) -> list[int]:
    more = {"dbeta": "yes"} if layer else {}
    return instances(lib, "layernorm2d_bwd" if layer else "rmsnorm2d_bwd", dtype=dtype, **more)


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, layer: bool, dtype: str, shape: tuple[int, int]) -> None:
    given = problem(layer, shape, dtype)
    for one in all_of(lib, layer, dtype):
        check(layer, given, call(lib, layer, given, instance=one))


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, layer: bool, dtype: str, where: str) -> None:
    given = tuple(guarded(one, where) for one in problem(layer, (19, 69), dtype))
    results = [guarded(np.zeros_like(given[i]), where) for i in ((1, 2, 2) if layer else (1, 2))]
    for one in all_of(lib, layer, dtype):
        names = ("dx", "dgamma", "dbeta")
        check(layer, given, call(lib, layer, given, **dict(zip(names, results, strict=False)), instance=one))


@pytest.mark.parametrize("layer", [False, True])
def test_strides_in_place_threads_and_streams(lib: tk.Library, layer: bool) -> None:
    given = problem(layer, (301, 130), "bf16")
    one = [a.tobytes() for a in call(lib, layer, given, num_threads=1)]
    for threads in (2, 3):
        assert [a.tobytes() for a in call(lib, layer, given, num_threads=threads)] == one
    with tk.Stream() as stream:
        later = call(lib, layer, given, stream=stream)
    assert [a.tobytes() for a in later] == one
    wide = np.full((301, 200), 7, given[0].dtype)
    wide[:, 5:135] = given[0]
    made = call(lib, layer, (wide[:, 5:135], *given[1:]), dx=wide[:, 5:135])
    assert [np.ascontiguousarray(a).tobytes() for a in made] == one
    assert (wide[:, :5] == 7).all()
    assert (wide[:, 135:] == 7).all()


def test_dbeta_is_made_when_asked_for(lib: tk.Library) -> None:
    given = problem(True, (5, 9), "fp32")
    assert len(lib.layernorm2d_bwd(*given)) == 2
    with pytest.raises(tk.ArgumentError, match=r"^dx: shares memory with x, must have its own"):
        lib.layernorm2d_bwd(*given, dx=given[1])
