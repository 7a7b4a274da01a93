# SPDX-License-Identifier: MIT
"""Parts of a decode step of a model: see steps.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]


@pytest.mark.parametrize(
    ("name", "of"),
    [
        pytest.param("products", "products", marks=pytest.mark.turns(0)),
        pytest.param("words", "words", marks=pytest.mark.turns(2)),
        pytest.param("caches", "steps", marks=pytest.mark.turns(1)),
        pytest.param("caches", "whole", marks=pytest.mark.turns(1)),
    ],
)
def test_against_float64(name: str, of: str, emulated: Callable[..., Emulated]) -> None:
    library = emulated(name)
    said, code = library.python("-m", "tests.executor.ptx.steps", library.library, of)
    assert code == 0, said
