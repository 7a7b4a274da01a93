# SPDX-License-Identifier: MIT
"""group_norm against float64: shapes, layouts, strides, images far from 0, memory, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import group_norm as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

# batch, channels, positions, groups: a channel each, all of them, parts of vectors, more than sums hold at once.
SHAPES = [
    (0, 4, 5, 2),
    (1, 1, 1, 1),
    (2, 6, 9, 6),
    (1, 35, 67, 5),
    (2, 320, 16, 32),
    (1, 264, 70, 1),
    (1, 70, 2, 70),
    (1, 2, 8200, 1),
]
LAYOUTS = ("nchw", "nhwc")


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(shape: tuple[int, ...], dtype: str, layout: str, away: float = 0.0) -> tuple[Any, ...]:
    """x, gamma, beta."""
    batch, channels, positions, _ = shape
    random = np.random.default_rng(sum(shape))
    x = random.standard_normal((batch, channels, positions)) + away
    x = x if layout == "nchw" else x.swapaxes(1, 2)
    given = (np.ascontiguousarray(x), random.standard_normal(channels), random.standard_normal(channels))
    return tuple(one.astype(DTYPES[dtype]) for one in given)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, layout: str, shape: tuple[int, ...]) -> None:
    given = draw(shape, dtype, layout)
    how = {"groups": shape[-1], "layout": layout}
    for activation in ("none", "silu"):
        right = reference.group_norm(*given, **how, activation=activation)
        for one in instances(lib, "group_norm", dtype=dtype, activation=activation):
            named = {**how, "activation": activation, "instance": one}
            y, mean, inverse = lib.group_norm(*given, return_mean=True, return_inv_std=True, **named)
            of = dict(zip(("x", "gamma", "beta"), given, strict=True)) | how | {"activation": activation}
            assert reference.answer(of, {"y": y, "mean": mean, "inv_std": inverse}) <= 1
            again = given[0].copy()
            assert lib.group_norm(again, *given[1:], y=again, **named) is again
            assert again.tobytes() == y.tobytes()
    assert shape[2] < 2 or not y.size or reference.excess(-y, right) > 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_images_far_from_zero_keep_their_digits(lib: tk.Library, dtype: str, layout: str) -> None:
    """A mean of many deviations, and first positions that are unlike the rest."""
    for away in (1000.0, 0.0):
        x, gamma, _ = draw((2, 12, 300, 4), dtype, layout, away)
        if not away:
            x[:, :1] = 3000
        right = reference.group_norm(x, gamma, groups=4, layout=layout)
        for one in instances(lib, "group_norm", dtype=dtype, activation="none"):
            y = lib.group_norm(x, gamma, None, groups=4, layout=layout, instance=one)
            assert reference.excess(y, right) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinities_stay_in_their_group(lib: tk.Library, layout: str) -> None:
    for value in (np.nan, np.inf, -np.inf):
        x, gamma, beta = draw((2, 8, 40, 4), "fp32", layout)
        (x if layout == "nchw" else x.swapaxes(1, 2))[1, 3, 7] = value
        for one in instances(lib, "group_norm", dtype="fp32", activation="none"):
            y = lib.group_norm(x, gamma, beta, groups=4, layout=layout, instance=one)
            lost = np.isnan(y if layout == "nchw" else y.swapaxes(1, 2))
            assert lost[1, 2:4].all()
            assert lost.sum() == lost[1, 2:4].size


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str, layout: str) -> None:
    for shape in ((1, 3, 33, 3), (2, 10, 1, 2), (1, 66, 5, 11)):
        given = [guarded(one, where) for one in draw(shape, "bf16", layout)]
        y = guarded(np.zeros_like(given[0]), where)
        for one in instances(lib, "group_norm", dtype="bf16", activation="silu"):
            how = {"groups": shape[-1], "activation": "silu", "layout": layout}
            lib.group_norm(*given, y=y, instance=one, **how)
            assert reference.excess(y, reference.group_norm(*given, **how)) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_threads_and_streams_give_the_same_bits(lib: tk.Library, layout: str) -> None:
    x, *factors = draw((3, 128, 400, 32), "bf16", layout)
    how: dict[str, Any] = {"groups": 32, "layout": layout}
    one = lib.group_norm(x, *factors, num_threads=1, **how).tobytes()
    assert lib.group_norm(x, *factors, num_threads=3, **how).tobytes() == one
    room = np.zeros((6, x.shape[1] + 1, x.shape[2] + 3), x.dtype)
    apart = room[::2, :-1, 2:-1]
    apart[...] = x
    assert lib.group_norm(apart, *factors, y=apart, **how).tobytes() == one
    with tk.Stream() as stream:
        later = lib.group_norm(x, *factors, stream=stream, **how)
    assert later.tobytes() == one


def test_bad_input(lib: tk.Library) -> None:
    x, gamma, beta = draw((1, 6, 4, 3), "fp32", "nchw")
    with pytest.raises(tk.ArgumentError, match="groups: was 4, must divide 6, the channels of x"):
        lib.group_norm(x, gamma, beta, groups=4)
    with pytest.raises(tk.ArgumentError, match=r"groups: was 0, must be in \[1, 2147483647\]"):
        lib.group_norm(x, gamma, beta, groups=0, return_mean=True)
    with pytest.raises(tk.ArgumentError, match="gamma: channels was 6, must be 4, the channel count of x"):
        lib.group_norm(x, gamma, beta, groups=2, layout="nhwc")
    with pytest.raises(tk.ArgumentError, match="y: shares memory with x"):
        lib.group_norm(x[:, :, 1:], gamma, beta, groups=3, y=x[:, :, :3])
