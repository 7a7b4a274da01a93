# SPDX-License-Identifier: MIT
"""Instructions between lanes on every architecture that has them, against the models of `lanes`."""

from __future__ import annotations

import pytest

from tests.executor.amdgcn import lanes
from tests.executor.amdgcn.assembled import ALL
from tests.executor.amdgcn.cases import computed, differs, sources
from tools.executor.amdgcn.code_object import wave_size


@pytest.mark.parametrize("architecture", ALL)
def test_lanes(architecture, tmp_path):
    cases = [case for case in lanes.CASES if architecture in case.on]
    made, _ = computed(architecture, cases, tmp_path)
    wrong = []
    for number, (case, got) in enumerate(zip(cases, made, strict=True)):
        expected = case.expected(*sources(case, number)[:3], lanes=wave_size(architecture))
        problem = differs(case, got, expected)
        if problem:
            wrong.append(problem)
    assert not wrong, "\n".join(wrong)
