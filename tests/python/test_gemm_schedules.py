# SPDX-License-Identifier: MIT
"""gemm cut along k: every schedule on every ISA against float64, with one result for any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gemm as reference

from tests.python.guard import guarded
from tests.python.test_gemm import DTYPES, TARGETS, draw, out_like
from tests.python.test_gemm_lists import instances

SCHEDULES = ("tiles", "persistent", "split_k", "stream_k", "stream_k_tree")
F32 = np.float32
# One block and several, of 240 x 256; parts of k of 4096, steps of 128 words, and their neighbours.
SHAPES = [(3, 70, 12_301), (16, 64, 16_384), (250, 300, 700), (1, 1, 8192), (5, 9, 1), (485, 260, 4099), (2, 3, 0)]


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_default", targets="all")


def kernel(library: tk.Library, target: str, schedule: str, *arrays: np.ndarray, **arguments: Any) -> int:
    every = instances(library, "gemm")
    signature = every[library.gemm_find(*arrays, **arguments)].signature
    alike = (one for one in every.values() if one.signature == signature and one.algorithm["target"] == target)
    number = next(one.number for one in alike if (one.algorithm["schedule"] or "tiles") == schedule)
    if not library.instance_usable(number):
        pytest.skip(f"this machine has no {target}")
    return number


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_schedule(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    for number, (m, n, k) in enumerate(SHAPES[:4] if target == "cpu-generic" else SHAPES):
        a, b = draw(random, m, k, dtype, number % 3 == 1), draw(random, k, n, dtype, number % 2 == 0)
        expected = reference.gemm(a, b)
        for schedule in SCHEDULES:
            out = out_like(m, n, dtype, False)
            instance = kernel(library, target, schedule, a, b, out=out)
            library.gemm(a, b, out=out, instance=instance)
            fault = reference.faults(out, expected)
            assert not fault, f"{target} {schedule} {(m, n, k)}: {fault}"
            for threads in (1, 3):
                again = library.gemm(a, b, instance=instance, num_threads=threads)
                assert again.tobytes() == out.tobytes(), (schedule, (m, n, k), threads)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "int8"])
@pytest.mark.parametrize("target", TARGETS)
def test_split_k_has_every_epilogue(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(2)
    m, n, k = 7, 66, 9001
    a, b = guarded(draw(random, m, k, dtype, False), "after"), guarded(draw(random, k, n, dtype, False), "before")
    extra = {"bias": guarded(random.standard_normal(n).astype(F32), "after"), "activation": "gelu", "alpha": 0.5}
    for column_major in (False, True):
        c = draw(random, m, n, dtype, True)
        out = out_like(m, n, dtype, column_major)
        instance = kernel(library, target, "split_k", a, b, out=out, c=c, **extra)
        library.gemm(a, b, c=c, out=out, instance=instance, **extra)
        fault = reference.faults(out, reference.gemm(a, b, c=c, **extra))
        assert not fault, fault


def test_integers_wrap_in_parts(library: tk.Library) -> None:
    a, b = np.full((3, 1 << 18), -128, np.int8), np.full((1 << 18, 5), -128, np.int8)
    for target in TARGETS:
        for schedule in ("split_k", "stream_k", "stream_k_tree"):
            made = library.gemm(a, b, instance=kernel(library, target, schedule, a, b))
            assert not reference.faults(made, reference.gemm(a, b)), (target, schedule)


def test_halves_and_order_are_what_they_say(library: tk.Library) -> None:
    """Of parts 1, 0, 2^-24, 2^-24: in order each small one is rounded away, by halves both together are not."""
    k = 16 * 128
    a, b = np.zeros((1, k), F32), np.ones((k, 1), F32)
    a[0, 0], a[0, 128], a[0, 256], a[0, 384] = 1, 0, 2.0**-24, 2.0**-24
    found = {}
    for schedule in ("stream_k", "stream_k_tree"):
        found[schedule] = float(library.gemm(a, b, instance=kernel(library, TARGETS[-1], schedule, a, b))[0, 0])
    assert found == {"stream_k": 1.0, "stream_k_tree": 1.0 + 2.0**-23}


def test_k_is_split_where_out_is_small(library: tk.Library) -> None:
    every = instances(library, "gemm")

    def schedule(m: int, n: int, k: int) -> Any:
        arrays = (np.zeros(shape, np.float16) for shape in ((m, k), (k, n)))  # of fp16, as tiles have one schedule
        number = library.gemm_find(*arrays)
        return every[number].algorithm["schedule"] or "tiles"

    assert schedule(16, 64, 65_536) == schedule(64, 256, 16_384) == "split_k"
    assert schedule(16, 64, 16_383) == schedule(65, 256, 16_384) == schedule(1, 257, 16_384) == "tiles"


def test_nan_and_infinity_of_a_part(library: tk.Library) -> None:
    random = np.random.default_rng(3)
    for schedule in ("split_k", "stream_k_tree"):
        a, b = draw(random, 5, 9000, "fp32", False), draw(random, 9000, 66, "fp32", False)
        a[1, 5000], b[8999, 3] = np.inf, np.nan
        made = library.gemm(a, b, instance=kernel(library, TARGETS[-1], schedule, a, b))
        assert not reference.faults(made, reference.gemm(a, b))
