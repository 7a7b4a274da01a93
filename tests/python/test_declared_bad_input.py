# SPDX-License-Identifier: MIT
"""A library refuses what each operator.yaml declares wrong, in its words: cases drawn from the declarations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tilekiln as tk

from codegen.emit.operators.cases import Case
from tests.python.drawn import OPERATORS, drawn, made, receipt


@pytest.fixture
def library(load: Callable[..., tk.Library], name: str) -> tk.Library:
    return load(receipt(name))


CASES = [(name, case) for name in OPERATORS for case in drawn(name).cases()]


@pytest.mark.parametrize("name", OPERATORS)
def test_a_drawn_call_is_good(library: tk.Library, name: str) -> None:
    getattr(library, f"{name}_find")(**made(name, drawn(name).required))


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name} {case.about}" for name, case in CASES])
def test_refused_in_the_declared_words(library: tk.Library, name: str, case: Case) -> None:
    arguments = made(name, drawn(name).required, case.changes)
    with pytest.raises(tk.ArgumentError) as raised:
        getattr(library, name)(**arguments)
    assert str(raised.value).startswith(case.sentence)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 100
    # Moves take elements of any kind in any shape: tests/python/test_moves.py has what they refuse.
    assert set(OPERATORS) - {name for name, _ in CASES} == {"batched_transpose", "copy", "permute"}
