# SPDX-License-Identifier: MIT
"""img2col against its reference, bit for bit, and against torch.nn.functional.unfold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference.moves import img2col as patches

from tests.python.guard import guarded


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


CASES: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = [
    ((2, 5, 6, 3), {"filter": (3, 3), "padding": (1, 1)}),
    ((1, 9, 11, 8), {"filter": (3, 2), "stride": (2, 3), "groups": 4}),
    ((1, 9, 11, 20), {"filter": (2, 3), "dilation": (3, 4), "padding": (2, 5)}),
    ((3, 4, 4, 6), {"filter": (1, 1), "stride": (3, 1), "groups": 3}),
    (
        (1, 2, 2, 5),
        {"filter": (3, 3), "padding": (4, 7), "dilation": (2, 3), "stride": (2, 1)},
    ),  # rows of nothing but padding
    ((0, 4, 4, 6), {"filter": (2, 2)}),
    ((2, 4, 4, 0), {"filter": (2, 2)}),
    ((1, 7, 1, 1), {"filter": (7, 1)}),
]


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("shape", "how"), CASES, ids=str)
def test_patches(lib: tk.Library, dtype: Any, shape: tuple[int, ...], how: dict[str, Any]) -> None:
    x = np.random.default_rng(1).integers(-99, 99, shape).astype(dtype)
    expected = patches(x, **how)
    x = guarded(x, "after") if x.size else x
    element = f"bytes{x.itemsize}"
    for one in lib.instances(f"family=img2col element={element}"):
        if lib.instance_usable(one.number):
            y = lib.img2col(x, **how, instance=one.number)
            assert y.dtype == x.dtype
            assert np.array_equal(y, expected)
    assert np.array_equal(lib.img2col(x, **how, num_threads=2), expected)


def test_strides_and_guard_pages(lib: tk.Library) -> None:
    memory = np.random.default_rng(2).standard_normal((4, 9, 12, 10)).astype("f")
    x, how = memory[::2, ::-1, 1::3, 2:8], {"filter": (3, 2), "padding": (1, 0), "groups": 2}
    expected = patches(x, **how)
    for where in ("before", "after"):
        y = guarded(np.zeros_like(expected), where)
        lib.img2col(x, y=y, **how)
        assert np.array_equal(y, expected)
    wide = np.full((2, expected.shape[1], expected.shape[2] + 5), 7, "f")
    lib.img2col(x, y=wide[:, :, :-5], **how)
    assert np.array_equal(wide[:, :, :-5], expected)
    assert (wide[:, :, -5:] == 7).all()


def test_beside_pytorch(lib: tk.Library) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 8, 9, 6)
    how = {"stride": (2, 1), "dilation": (1, 2), "padding": (1, 2)}
    theirs = torch.nn.functional.unfold(x.permute(0, 3, 1, 2), (3, 2), **how)  # batch, (c, y, x), outputs
    ours = lib.img2col(x, filter=(3, 2), **how)[0].reshape(2, -1, 6, 6)
    assert torch.equal(ours.permute(0, 3, 2, 1).reshape(theirs.shape), theirs)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"groups": 4}, "groups: was 4, must divide 6, the channels of x"),
    ({"groups": 0}, "groups: was 0, must be"),
    ({"filter": (6, 1)}, "filter: was (6, 1), must fit into x of (5, 5) with its padding and dilation"),
    ({"filter": (2, 2), "dilation": (9, 1)}, "filter: was (2, 2), must fit into x"),
    ({"filter": 3}, "filter: was 3, must be a pair (height, width)"),
    ({"stride": (0, 1)}, "stride: was 0, must be"),
    ({"padding": (-1, 0)}, "padding: was -1, must be"),
    ({"padding": (2**31 - 1, 2**31 - 1)}, "filter: was (1, 1), makes a matrix that no memory holds"),
    ({"y": np.zeros((1, 25, 7), "f")}, "y: shape was (1, 25, 7), must be (1, 25, 6)"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(tk.ArgumentError) as raised:
        lib.img2col(**{"x": np.zeros((1, 5, 5, 6), "f"), **changes})
    assert str(raised.value).startswith(says)
