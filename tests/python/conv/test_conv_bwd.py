# SPDX-License-Identifier: MIT
"""conv_bwd_data and conv_bwd_weight against float64: as drawn, strides, memory, threads, bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import conv as reference
from tilekiln.reference.drawn import EDGES, Random

from tests.python.conv.test_conv_fwd import channels_last, drawn, images, run, usable
from tests.python.guard import guarded
from tests.python.rows import DTYPES


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("conv", targets="all")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", ["conv_bwd_data", "conv_bwd_weight"])
def test_every_isa_as_drawn(lib: tk.Library, operator: str, dtype: str) -> None:
    random = Random(f"{operator} {dtype}", EDGES["cpu"])
    instances = usable(lib, operator, random, 18, dtype=dtype)
    for instance in instances * 4:
        error, call = drawn(lib, operator, random, instance)
        assert error <= 1, call


def test_strides_that_no_tap_meets(lib: tk.Library) -> None:
    """Pixels between filters are 0, also where dilations share a factor with strides."""
    for how in (
        {"stride": [3]},
        {"stride": [4], "dilation": [2]},
        {"stride": [2, 3], "dilation": [3, 2], "padding": [1]},
    ):
        given = images((2, 5, 4, 3), 5, (2, 2))
        arrays = {"dy": given["x"], "weight": given["weight"].transpose(1, 0, 2, 3).copy(), **how}
        dx = lib.conv_bwd_data(*(arrays[name] for name in ("dy", "weight")), **how)
        assert reference.answer(arrays, {"dx": dx}) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_channels_of_patches(lib: tk.Library, dtype: str) -> None:
    """All places of a pixel in its stride are one convolution; bits are those of one thread, NaN stays in its patch."""
    for layout in (lambda x: x, channels_last):
        for channels, groups, taps, how, lengths in (
            (3, 1, (4, 4), {"stride": [4]}, (3, 5)),
            (1, 1, (1, 10), {"stride": [1, 5]}, (1, 9)),
            (4, 2, (2, 3), {"stride": [2, 1], "dilation": [1, 2], "padding": [0, 1]}, (6, 4)),
            (2, 1, (4, 2), {"stride": [2]}, (5, 5)),
        ):
            how |= {"groups": groups}
            dy = layout(images((2, 20, *lengths), 1, (1, 1), dtype)["x"])
            weight = images((1, channels // groups, 1, 1), 20, taps, dtype)["weight"]
            x = np.zeros_like(layout(lib.conv_bwd_data(dy, weight, **how)))
            made = [lib.conv_bwd_data(dy, weight, dx=x.copy("K"), num_threads=threads, **how) for threads in (1, 3)]
            assert made[0].tobytes() == made[1].tobytes()
            assert reference.answer({"dy": dy, "weight": weight, **how}, {"dx": made[0]}) <= 1
    dy = np.zeros((1, 8, 2, 2), np.float32)
    dy[0, 3, 1, 0] = np.nan
    dx = lib.conv_bwd_data(dy, np.ones((8, 3, 4, 4), np.float32), stride=[4])
    assert np.isnan(dx).sum() == np.isnan(dx[0, :, 4:, :4]).sum() == 48


def test_many_pixels_of_few_filters(lib: tk.Library) -> None:
    """Parts of the pixels are summed apart; all bits are those of one thread."""
    for layout in (lambda x: x, channels_last):
        for dtype in DTYPES:
            x = layout(images((3, 4, 40, 41), 1, (1, 1), dtype)["x"])
            dy = layout(images((3, 8, 40, 41), 1, (1, 1), dtype)["x"])
            made = [lib.conv_bwd_weight(x, dy, padding=[1], num_threads=threads) for threads in (1, 2, 7)]
            assert made[0].tobytes() == made[1].tobytes() == made[2].tobytes()
            assert reference.answer({"x": x, "dy": dy, "padding": [1]}, {"dweight": made[0]}) <= 1


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        for shape in ((2, 3, 7, 9), (1, 70, 5, 4)):
            given = images(shape, 6, (3, 3), dtype)
            dy = images((shape[0], 6, *(n - 2 for n in shape[2:])), 1, (1, 1), dtype)["x"]
            for arrays, result, operator in (
                ({"dy": dy, "weight": given["weight"]}, {"dx": np.zeros_like(given["x"])}, "conv_bwd_data"),
                ({"x": given["x"], "dy": dy}, {"dweight": np.zeros_like(given["weight"])}, "conv_bwd_weight"),
            ):
                made = {name: guarded(value, where) for name, value in result.items()}
                run(lib, operator, {name: guarded(value, where) for name, value in arrays.items()}, made)
                assert reference.answer(arrays, made) <= 1


def test_nothing_to_sum(lib: tk.Library) -> None:
    x, dy = np.zeros((0, 3, 5, 5), np.float32), np.zeros((0, 4, 3, 3), np.float32)
    assert (lib.conv_bwd_weight(x, dy) == np.zeros((4, 3, 3, 3))).all()
    assert lib.conv_bwd_data(dy, np.zeros((4, 3, 3, 3), np.float32)).shape == x.shape


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("conv_bwd_data", {"lengths": [5]}, "lengths: had 1 numbers, must have 2, the spatial lengths of dx, or none"),
    ("conv_bwd_data", {"lengths": [5, 6]}, "lengths: number 1 was 6, which makes 4 pixels of width, must"),
    ("conv_bwd_data", {"lengths": [5, -1]}, "lengths: number 1 was -1, must be at least 0"),
    ("conv_bwd_data", {"lengths": [1, 5]}, "weight: filter height was 3, with dilation 1 over 3 pixels, must"),
    ("conv_bwd_data", {"weight": zeros(5, 6, 3, 3)}, "weight: output count was 5, must be 4, the output count of dy"),
    ("conv_bwd_data", {"groups": 3}, "groups: was 3, must divide 4, the output count of weight"),
    ("conv_bwd_weight", {"filter": [3]}, "filter: had 1 numbers, must have 2, the spatial lengths of dweight"),
    ("conv_bwd_weight", {"filter": [3, 2]}, "filter: number 1 was 2, which makes 4 pixels of width, must"),
    ("conv_bwd_weight", {"filter": [3, 0]}, "filter: number 1 was 0, must be at least 1"),
    ("conv_bwd_weight", {"stride": [3]}, "dy: height was 3, must be at most 2: x has 5 pixels with its padding"),
    ("conv_bwd_weight", {"groups": 4}, "groups: was 4, must divide 6, the channel count of x"),
    ("conv_bwd_weight", {"dy": zeros(1, 4, 3, 3)}, "dy: batch was 1, must be 2, the batch of x"),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "changes", "says"), BAD, ids=[says[:40] for _, _, says in BAD])
def test_bad_input(lib: tk.Library, operator: str, changes: dict[str, Any], says: str) -> None:
    arrays: dict[str, Any] = {"dy": zeros(2, 4, 3, 3)}
    arrays |= {"weight": zeros(4, 6, 3, 3)} if operator == "conv_bwd_data" else {"x": zeros(2, 6, 5, 5)}
    with pytest.raises(tk.ArgumentError) as raised:
        run(lib, operator, arrays | changes, {})
    assert str(raised.value).startswith(says)
