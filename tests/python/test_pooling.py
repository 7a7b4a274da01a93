# SPDX-License-Identifier: MIT
"""pooling and pooling_bwd against float64 and PyTorch: windows, layouts, memory, special values, threads, every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import pooling as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

# Sides of x, and windows over them.
WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "2": ((6, 7), {"window": 2}),
    "3 by 2, padded": ((9, 41), {"window": 3, "stride": 2, "padding": 1}),
    "dilated": ((11, 70), {"window": (2, 3), "stride": (1, 2), "dilation": (3, 2), "padding": (1, 0)}),
    "ceil": ((8, 9), {"window": (3, 4), "stride": 3, "padding": (0, 2), "ceil_mode": True}),
    "whole": ((5, 6), {"window": (5, 6)}),
    "volume": ((4, 5, 37), {"window": (2, 3, 3), "stride": (2, 1, 1), "padding": (1, 1, 0)}),
    "none inside": ((2, 2), {"window": 2, "dilation": 3, "padding": 1}),
}
CHANNELS = (1, 3, 67, 161)


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(sides: tuple[int, ...], channels: int, layout: str, dtype: str) -> np.ndarray:
    shape = (2, *sides, channels) if layout == "nhwc" else (2, channels, *sides)
    return np.random.default_rng(channels).standard_normal(shape).astype(DTYPES[dtype])


@pytest.mark.sampled
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ["max", "mean", "mean of what is inside"])
def test_every_isa_and_window(
    lib: tk.Library, name: str, channels: int, layout: str, dtype: str, operation: str
) -> None:
    sides, how = WINDOWS[name]
    x = draw(sides, channels, layout, dtype)
    more = {
        "layout": layout,
        "operation": operation[:4].strip(),
        "count_padding": operation != "mean of what is inside",
    }
    how = {**how, **more}
    places = operation == "max"
    for one in instances(lib, "pooling", dtype=dtype):
        made = lib.pooling(x, **how, return_indices=places, instance=one)
        y, indices = made if places else (made, None)
        assert reference.excess(y, x, indices, **how) <= 1, one
        if places:
            assert lib.pooling(x, **how, instance=one).tobytes() == y.tobytes()


@pytest.mark.sampled
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("channels", [1, 3, 67])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ["max", "mean", "mean of what is inside"])
def test_gradients(lib: tk.Library, name: str, channels: int, layout: str, dtype: str, operation: str) -> None:
    """On every ISA, of any strides, by any number of threads."""
    sides, how = WINDOWS[name]
    x, places = draw(sides, channels, layout, dtype), operation == "max"
    how = {**how, "layout": layout, "operation": operation[:4].strip(), "count_padding": places or len(operation) == 4}
    right = reference.pooling(x, **how)
    dy = np.random.default_rng(7).standard_normal(right.y.shape).astype(DTYPES[dtype])
    given = {**how, "indices": right.indices if places else None}
    for one in instances(lib, "pooling_bwd", dtype=dtype):
        dx = lib.pooling_bwd(dy, x, **given, instance=one)
        assert reference.answer({"dy": dy, "x": x, **given}, {"dx": dx}) <= 1, one
        assert lib.pooling_bwd(dy, x, **given, instance=one, num_threads=3).tobytes() == dx.tobytes()
        wide = np.full((*x.shape, 3), 7, x.dtype)
        turned = np.stack([dy] * 2, -1)[..., 1]
        lib.pooling_bwd(turned, x, **given, dx=wide[..., 1], instance=one)
        assert wide[..., 1].tobytes() == dx.tobytes()
        assert (wide[..., ::2] == 7).all()


@pytest.mark.parametrize("operation", ["max", "mean"])
def test_strides(lib: tk.Library, operation: str) -> None:
    memory = draw((6, 7, 9), 38, "nhwc", "bf16")
    for x in (
        memory[::-1, :, ::-1, :, 3:38:5],
        memory.transpose(0, 3, 1, 4, 2),
        memory[:, :, :, ::2],
        np.broadcast_to(memory[:1, :, :, :, :1], memory.shape),
    ):
        how: dict[str, Any] = {"window": 2, "padding": 1, "operation": operation}
        y = lib.pooling(x, **how)
        assert reference.excess(y, x, **how) <= 1
        wide = np.full((*y.shape, 3), 7, y.dtype)
        lib.pooling(x, **how, y=wide[..., 1])
        assert wide[..., 1].tobytes() == y.tobytes()
        assert (wide[..., ::2] == 7).all()


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        for layout, channels in (("nhwc", 37), ("nchw", 2)):
            x = guarded(draw((5, 39), channels, layout, dtype), where)
            how: dict[str, Any] = {"window": 3, "stride": 2, "padding": 1, "layout": layout}
            y, indices = (guarded(one, where) for one in lib.pooling(x, **how, return_indices=True))
            for one in instances(lib, "pooling", dtype=dtype):
                y.fill(0), indices.fill(7)
                lib.pooling(x, **how, y=y, indices=indices, instance=one)
                assert reference.excess(y, x, indices, **how) <= 1


@pytest.mark.parametrize("operation", ["max", "mean"])
def test_special_values(lib: tk.Library, operation: str) -> None:
    for dtype in DTYPES:
        x = draw((12, 12), 40, "nhwc", dtype)
        x[0, ::3, 1], x[0, 4, 2:7], x[1, 5], x[1, 9, 9], x[1, 2, :, 8] = np.nan, np.nan, np.inf, -np.inf, -np.inf
        x[0, 9:, 9:], x[1, 9:, :5] = -np.inf, 0.0
        how: dict[str, Any] = {"window": 3, "operation": operation}
        for one in instances(lib, "pooling", dtype=dtype):
            made = lib.pooling(x, **how, return_indices=operation == "max", instance=one)
            y, indices = made if operation == "max" else (made, None)
            assert reference.excess(y, x, indices, **how) <= 1, (dtype, one)


def test_threads_and_streams_give_the_same_bits(lib: tk.Library) -> None:
    for layout in ("nhwc", "nchw"):
        x, how = draw((30, 31), 70, layout, "fp32"), {"window": 3, "operation": "mean", "layout": layout}
        one = lib.pooling(x, **how, num_threads=1)
        assert lib.pooling(x, **how, num_threads=3).tobytes() == one.tobytes()
        with tk.Stream() as stream:
            later = lib.pooling(x, **how, stream=stream)
        assert later.tobytes() == one.tobytes()


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in WINDOWS if name != "none inside"])
def test_beside_pytorch(lib: tk.Library, name: str) -> None:
    import torch

    sides, how = WINDOWS[name]
    x = torch.from_numpy(draw(sides, 5, "nchw", "fp32"))
    said = {"kernel_size": how["window"], "stride": how.get("stride"), "padding": how.get("padding", 0)}
    said |= {"ceil_mode": how.get("ceil_mode", False)}
    maximum = getattr(torch.nn.functional, f"max_pool{len(sides)}d")
    want, places = maximum(x, **said, dilation=how.get("dilation", 1), return_indices=True)
    y, indices = lib.pooling(x, **how, layout="nchw", return_indices=True)
    assert torch.equal(y, want)
    assert torch.equal(indices.long(), places)
    dy, leaf = torch.randn(y.shape), x.clone().requires_grad_()
    maximum(leaf, **said, dilation=how.get("dilation", 1)).backward(dy)
    dx = lib.pooling_bwd(dy, x, **how, layout="nchw", indices=indices)
    assert torch.allclose(dx, leaf.grad, atol=1e-6)
    if "dilation" not in how:
        for counts in (False, True):
            mean = getattr(torch.nn.functional, f"avg_pool{len(sides)}d")(x, **said, count_include_pad=counts)
            y = lib.pooling(x, **how, layout="nchw", operation="mean", count_padding=counts)
            assert torch.allclose(y, mean, atol=1e-6)
            own = {"operation": "mean", "count_padding": counts}
            leaf.grad = None
            getattr(torch.nn.functional, f"avg_pool{len(sides)}d")(leaf, **said, count_include_pad=counts).backward(dy)
            assert torch.allclose(lib.pooling_bwd(dy, x, **how, layout="nchw", **own), leaf.grad, atol=1e-6)


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"x": np.zeros((2, 3, 4), "f")},
        "x: had 3 dimensions, must have 4, (batch, second, third, fourth), or 5, (batch, second",
    ),
    ({"x": np.zeros((2, 3, 4, 5), "i4")}, "x: dtype was int32, must be fp32, fp16 or bf16"),
    ({"window": (2, 2, 2)}, "window: had 3 numbers, must have 1 or 2, one a side of x"),
    ({"window": 0}, "window: was 0, must be from 1 to 16777216"),
    ({"window": 9}, "window: was 9, must fit into the 6 elements of x with their padding and its dilation"),
    ({"stride": -1}, "stride: was -1, must be from 1 to 16777216"),
    ({"dilation": (1, 0)}, "dilation: was 0, must be from 1 to 16777216"),
    ({"padding": 2}, "padding: was 2, must be at most 1, half of the window"),
    ({"operation": "mean", "return_indices": True}, "indices: was given, must be null: a mean is of no one place"),
    ({"y": np.zeros((2, 3, 2, 5), "f")}, "y: shape was (2, 3, 2, 5), must be (2, 3, 3, 5)"),
    ({"indices": np.zeros((2, 3, 3, 5), "i8")}, "indices: dtype was int64, must be int32"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(tk.ArgumentError) as raised:
        lib.pooling(**{"x": np.zeros((2, 6, 7, 5), "f"), "window": 2, **changes})
    assert str(raised.value).startswith(says)


BAD_GRADIENTS: list[tuple[dict[str, Any], str]] = [
    ({"indices": None}, "indices: was null, must be what pooling made: the gradient of a maximum goes to its place"),
    ({"operation": "mean"}, "indices: was given, must be null: a mean is of no one place"),
    ({"dy": np.zeros((2, 3, 4, 5), "f"), "indices": None}, "dy: dimension 2 was 4 long, must be 3, the windows over x"),
    ({"x": np.zeros((2, 6, 7, 4), "f")}, "dy: had 5 channels, must have 4, as x"),
    ({"window": 9}, "window: was 9, must fit into the 6 elements of x with their padding and its dilation"),
    ({"dx": np.zeros((2, 6, 7, 4), "f")}, "dx: fourth length was 4, must be 5, the fourth length of x"),
]


@pytest.mark.parametrize(("changes", "says"), BAD_GRADIENTS, ids=[says[:40] for _, says in BAD_GRADIENTS])
def test_bad_gradients(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    given = {"dy": np.zeros((2, 3, 3, 5), "f"), "x": np.zeros((2, 6, 7, 5), "f"), "window": 2}
    with pytest.raises(tk.ArgumentError) as raised:
        lib.pooling_bwd(**given | {"indices": np.zeros((2, 3, 3, 5), "i4")} | changes)
    assert str(raised.value).startswith(says)
