# SPDX-License-Identifier: MIT
"""Scalar instructions on every architecture that has them, against Python integers, with scc before and after."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executor.amdgcn import assembled, scalars
from tests.executor.amdgcn.assembled import ALL, INPUTS


def computed(architecture, place):
    """Results of an architecture's cases, (3, samples) each, and the code that ran."""
    cases = scalars.chosen(architecture)
    text = assembled.source(architecture, [scalars.snippet(case, n) for n, case in enumerate(cases)])
    code = assembled.assemble(architecture, text, place)
    made = assembled.run(code, np.zeros((INPUTS, 64), np.uint32), 3 * len(cases))
    return np.split(made[:, : scalars.SAMPLES], len(cases)), code


@pytest.mark.parametrize("architecture", ALL)
def test_scalars(architecture, tmp_path):
    wrong = []
    for number, (case, got) in enumerate(
        zip(scalars.chosen(architecture), computed(architecture, tmp_path)[0], strict=True)
    ):
        must = scalars.expected(case, number)
        close = np.abs(got.astype(np.int64) - must) <= 2 * (case.kind == "p")  # units in the last place
        if not close.all():
            at = tuple(np.argwhere(~close)[0])
            given = [hex(x) for x in scalars.operands(case, number)[at[1]]]
            wrong.append(f"{case.text} of {given}: word {at[0]} is {got[at]:#x}, must be {must[at]:#x}")
    assert not wrong, "\n".join(wrong)
