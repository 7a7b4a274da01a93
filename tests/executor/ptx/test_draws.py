"""Sizes of problems that every run draws, whatever the seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.executor.ptx import other_cases


@pytest.mark.parametrize("seed", range(5))
def test_every_wide_size_has_its_turn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a third of what is drawn has no kernel."""
    draw, ran = random.Random(seed), list[tuple[int, int, int]]()

    def product_of(sizes: tuple[int, int, int], *_: Any, turned: bool) -> str:
        assert not turned
        if draw.random() < 0.3:
            return "none"
        ran.append(sizes)
        return ""

    monkeypatch.setattr(other_cases, "product_of", product_of)
    check: Any = other_cases.WideProducts()
    while len(ran) < len(other_cases.WIDE):
        assert check(None, draw, np.random.default_rng(seed), "fp16") in ("", "none")
    assert sorted(ran) == sorted(other_cases.WIDE)
