# SPDX-License-Identifier: MIT
"""cross_entropy and its gradient against float64: shapes, strides, memory, special values, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import cross_entropy as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

SHAPES = [(0, 8), (1, 1), (3, 1), (4, 7), (2, 64), (5, 67), (3, 2049), (2, 20011)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"logit_scale": -0.7, "label_smoothing": 0.2, "lse_square_scale": 1e-2, "total_classes": 50000},
]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(rows: int, classes: int, dtype: str, scale: float = 4.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """logits, labels, some of them of no class here, and dloss."""
    random = np.random.default_rng(rows * 31 + classes)
    labels = random.integers(0, classes, rows)
    labels[2::3] = -100
    labels[3::4] = classes + 5
    logits = (scale * random.standard_normal((rows, classes))).astype(DTYPES[dtype])
    return logits, labels, random.standard_normal(rows).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, shape: tuple[int, int], options: dict[str, Any]) -> None:
    logits, labels, dloss = draw(*shape, dtype)
    right = reference.cross_entropy(logits, labels, **options)
    for one in instances(lib, "cross_entropy", dtype=dtype):
        made = lib.cross_entropy(logits, labels, return_lse=True, instance=one, **options)
        assert reference.excess(made, right) <= 1
    lse = made[1]
    for one in instances(lib, "cross_entropy_bwd", dtype=dtype):
        dlogits = lib.cross_entropy_bwd(dloss, logits, labels, lse, instance=one, **options)
        assert dlogits.dtype == logits.dtype
        assert reference.gradient_excess(dlogits, dloss, logits, labels, lse, **options) <= 1


def test_logits_far_from_0_and_maxima_in_every_part(lib: tk.Library) -> None:
    for place in (0, 2047, 2048, 5000, 8191):
        logits = np.random.default_rng(place).standard_normal((2, 8192)).astype(np.float32)
        logits[:, place] += 30
        logits[1] += 3000
        labels = np.array([place, 5], np.int32)
        right = reference.cross_entropy(logits, labels)
        for one in instances(lib, "cross_entropy", dtype="fp32"):
            assert reference.excess(lib.cross_entropy(logits, labels, return_lse=True, instance=one), right) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, dtype: str, where: str) -> None:
    for classes in (1, 33, 130):
        logits, labels, dloss = (guarded(one, where) for one in draw(3, classes, dtype))
        loss, lse = (guarded(np.zeros(3, np.float32), where) for _ in range(2))
        dlogits = guarded(np.zeros_like(logits), where)
        right = reference.cross_entropy(logits, labels, label_smoothing=0.1)
        for one in instances(lib, "cross_entropy", dtype=dtype):
            lib.cross_entropy(logits, labels, label_smoothing=0.1, loss=loss, lse=lse, instance=one)
            assert reference.excess((loss, lse), right) <= 1
        for one in instances(lib, "cross_entropy_bwd", dtype=dtype):
            lib.cross_entropy_bwd(dloss, logits, labels, lse, dlogits=dlogits, instance=one)
            assert reference.gradient_excess(dlogits, dloss, logits, labels, lse) <= 1


def test_strides_labels_of_32_bits_and_in_place(lib: tk.Library) -> None:
    whole, labels, dloss = draw(8, 90, "bf16")
    logits = whole[::2, 5:75]
    labels, dloss = labels[:4].astype(np.int32), dloss[:4]
    loss, lse = lib.cross_entropy(logits, labels, return_lse=True)
    assert reference.excess((loss, lse), reference.cross_entropy(logits, labels)) <= 1
    right = lib.cross_entropy_bwd(dloss, logits, labels, lse)
    assert reference.gradient_excess(right, dloss, logits, labels, lse) <= 1
    kept = whole.copy()
    lib.cross_entropy_bwd(dloss, logits, labels, lse, dlogits=logits)
    assert logits.tobytes() == right.tobytes()
    assert whole[1::2].tobytes() == kept[1::2].tobytes()
    assert whole[:, 75:].tobytes() == kept[:, 75:].tobytes()
    with pytest.raises(tk.ArgumentError, match="dlogits: shares memory with logits"):
        lib.cross_entropy_bwd(dloss, logits, labels, lse, dlogits=whole[::2, 4:74])


def test_shares_of_the_classes_make_the_whole(lib: tk.Library) -> None:
    """As processes that share them do: lse of the lses, and the terms of the label and of smoothing from each."""
    logits, labels, dloss = draw(5, 96, "fp32")
    options = {"label_smoothing": 0.1, "logit_scale": 0.8, "total_classes": 96}
    shares = [(logits[:, first : first + 32], {"first_class": first, **options}) for first in (0, 32, 64)]
    lses = [lib.cross_entropy(x, labels, return_lse=True, **own)[1] for x, own in shares]
    zero = np.zeros(5, np.float32)
    loss, lse = lib.cross_entropy(logits, labels, return_lse=True, **options)
    parts = sum(lib.cross_entropy(x, labels, precomputed_lse=zero, **own) for x, own in shares)
    used = labels != -100
    np.testing.assert_allclose((np.logaddexp.reduce(lses) + parts)[used], loss[used], rtol=1e-5)
    right = lib.cross_entropy_bwd(dloss, logits, labels, lse, **options)
    made = [lib.cross_entropy_bwd(dloss, x, labels, lse, **own) for x, own in shares]
    np.testing.assert_array_equal(np.concatenate(made, axis=1), right)


def test_special_values(lib: tk.Library) -> None:
    infinite = np.inf
    logits = np.array(
        [
            [np.nan, 1, 2],
            [infinite, 1, 2],
            [-infinite, 1, 2],
            [-infinite, -infinite, -infinite],
            [np.nan, np.nan, -infinite],
            [np.nan, infinite, 0],
        ],
        np.float32,
    )
    labels = np.array([1, 1, 1, 1, 1, -100])
    for one in instances(lib, "cross_entropy", dtype="fp32"):
        loss, lse = lib.cross_entropy(logits, labels, return_lse=True, instance=one)
        assert np.isnan(loss[[0, 1, 3, 4]]).all()
        assert loss[2] == pytest.approx(np.log1p(np.e), rel=1e-6)
        assert lse[3] == -infinite
        assert (loss[5], lse[5]) == (0, 0)
    for one in instances(lib, "cross_entropy_bwd", dtype="fp32"):
        made = lib.cross_entropy_bwd(np.ones(6, np.float32), logits, labels, lse, instance=one)
        assert made[2, 0] == 0
        assert np.isfinite(made[2]).all()
        assert (made[5] == 0).all()
        assert np.isnan(made[0, 0])


def test_threads_and_streams_give_the_same_bits(lib: tk.Library) -> None:
    logits, labels, dloss = draw(301, 501, "bf16")
    loss, lse = lib.cross_entropy(logits, labels, return_lse=True, num_threads=1)
    assert lib.cross_entropy(logits, labels, num_threads=3).tobytes() == loss.tobytes()
    with tk.Stream() as stream:
        later = lib.cross_entropy(logits, labels, stream=stream)
    assert later.tobytes() == loss.tobytes()
    one = lib.cross_entropy_bwd(dloss, logits, labels, lse, num_threads=1).tobytes()
    assert lib.cross_entropy_bwd(dloss, logits, labels, lse, num_threads=3).tobytes() == one
