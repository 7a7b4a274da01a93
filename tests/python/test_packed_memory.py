# SPDX-License-Identifier: MIT
"""Packed weights begin a cache line, and a huge page where they are large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln._core.memory import HUGE_PAGE, LINE, aligned_zeros

FRAMEWORKS = ["numpy", "torch"]


def weight(like: str, *shape: int) -> Any:
    made = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return made.astype(NUMPY["bf16"]) if like == "numpy" else pytest.importorskip("torch").from_numpy(made)


def address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())


@pytest.mark.parametrize("like", FRAMEWORKS)
def test_packed_weights(like: str) -> None:
    large = weight(like, 1030, 1024)
    packed = tk.PackedWeight(large)
    assert address(packed.panels) % HUGE_PAGE == 0
    assert type(packed.panels) is type(large)
    if like == "torch":
        assert packed.panels.untyped_storage().nbytes() == packed.panels.nbytes
    assert (packed.unpack() == large).all()
    last = packed.panels[-1:]
    del packed
    assert (tk.PackedWeight(large).panels[-1:] == last).all()  # memory lives as long as a view of it
    assert all(address(tk.PackedWeight(weight(like, 64, k)).panels) % LINE == 0 for k in range(1, 20))


@pytest.mark.parametrize("like", FRAMEWORKS)
def test_quantised_weights(like: str) -> None:
    packed = tk.QuantisedWeight(weight(like, 64 * 66, 1024), 8)
    assert address(packed.panels) % HUGE_PAGE == 0
    packed = tk.QuantisedWeight(weight(like, 64, 96))
    assert address(packed.panels) % LINE == address(packed.scale) % LINE == 0


@pytest.mark.parametrize("like", FRAMEWORKS)
def test_experts(like: str) -> None:
    gate_up, down = weight(like, 3, 2 * 256, 1024), weight(like, 3, 1024, 256)
    packed = tk.PackedExperts(gate_up, down)
    assert address(packed.gate_up) % HUGE_PAGE == 0
    for e, part in np.ndindex(3, 2):
        of_part = tk.PackedWeight(gate_up[e, 256 * part : 256 * (part + 1)]).panels
        assert (packed.gate_up[e, 4 * part : 4 * (part + 1)] == of_part).all()
        assert (packed.down[e] == tk.PackedWeight(down[e]).panels).all()


def test_a_linux_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice that the kernel does not know is refused by EINVAL, as MADV_HUGEPAGE is there."""
    monkeypatch.setattr("mmap.MADV_HUGEPAGE", 9999)
    assert not aligned_zeros((HUGE_PAGE,), np.float32).any()


def test_no_room() -> None:
    with pytest.raises(MemoryError, match="no room for an array of 1125899906842624 bytes"):
        aligned_zeros((1 << 48,), np.float32)


def test_arrays_without_numbers() -> None:
    assert aligned_zeros((0, 5), np.float32).shape == (0, 5)
    assert not aligned_zeros((2, HUGE_PAGE), np.int8).any()
