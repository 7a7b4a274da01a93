# SPDX-License-Identifier: MIT
"""Every instruction of `instructions` on every architecture that has it, against NumPy: one kernel an architecture."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executor.amdgcn import compares, instructions
from tests.executor.amdgcn.assembled import ALL
from tests.executor.amdgcn.cases import computed, differs, sources


@pytest.mark.parametrize("architecture", ALL)
def test_arithmetic(architecture, tmp_path):
    cases = [case for case in [*instructions.CASES, *compares.CASES] if architecture in case.on]
    made, _ = computed(architecture, cases, tmp_path)
    wrong = []
    for number, (case, got) in enumerate(zip(cases, made, strict=True)):
        words = sources(case, number)
        kinds = len(case.sources)
        expected = np.atleast_2d(np.asarray(case.expected(*words[:kinds]), np.uint32))
        problem = differs(case, got, expected)
        if problem:
            wrong.append(problem)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("architecture", instructions.FP8)
def test_conversions_to_fp8(architecture, tmp_path):
    made, _ = computed(architecture, instructions.FP8_CONVERSIONS, tmp_path)
    for number, (case, got) in enumerate(zip(instructions.FP8_CONVERSIONS, made, strict=True)):
        a, b, *_ = sources(case, number)
        expected = instructions.fp8_expected(case, architecture, a, b)
        assert not differs(case, got, np.atleast_2d(expected)), case.text


@pytest.mark.parametrize("architecture", instructions.FP8)
def test_conversions_from_fp8(architecture, tmp_path):
    """By ml_dtypes; a NaN is any NaN."""
    cases = [case for case in instructions.FROM_FP8 if architecture in case.on]
    made, _ = computed(architecture, cases, tmp_path)
    for number, (case, got) in enumerate(zip(cases, made, strict=True)):
        words = sources(case, number)[0, : got.shape[-1]]
        expected = case.expected(words, instructions.fp8_format(case, architecture)).view(np.float32)
        assert np.isnan(expected).any(), case.text
        assert np.array_equal(got.view(np.float32), np.atleast_2d(expected), equal_nan=True), case.text
