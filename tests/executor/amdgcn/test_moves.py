# SPDX-License-Identifier: MIT
"""Loads, stores and atomics of every kind of memory against NumPy views of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executor.amdgcn import assembled, moves
from tests.executor.amdgcn.assembled import ALL
from tools.executor.amdgcn.code_object import wave_size


def computed(architecture, place):
    """Results of an architecture's cases, (results, lanes) each, and the code that ran."""
    cases = [case for case in moves.CASES if architecture in case.on]
    snippets = [moves.snippet(case, architecture) for case in cases]
    text = assembled.source(architecture, snippets, moves.LDS_BYTES, moves.SCRATCH_BYTES)
    code = assembled.assemble(architecture, text, place)
    counts = [case.results for case in cases]
    made = assembled.run(code, moves.inputs(len(cases)), sum(counts) + moves.FAR // 256)
    return cases, np.split(made[: sum(counts)], np.cumsum(counts)[:-1]), code


@pytest.mark.parametrize("architecture", ALL)
def test_moves(architecture, tmp_path):
    cases, made, _ = computed(architecture, tmp_path)
    lanes, wrong = wave_size(architecture), []
    for number, (case, got) in enumerate(zip(cases, made, strict=True)):
        must = case.expected(moves.data(number)[:lanes]).T
        if not np.array_equal(got, must):
            at = tuple(np.argwhere(got != must)[0])
            wrong.append(f"{case.text} ({case.memory}) word, lane {at}: {got[at]:#x}, must be {must[at]:#x}")
    assert not wrong, "\n".join(wrong)
