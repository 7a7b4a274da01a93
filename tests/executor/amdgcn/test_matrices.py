# SPDX-License-Identifier: MIT
"""Matrix products against float64 (integers: exactly), in the layouts that `matrices` has from AMD's references."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executor.amdgcn import assembled, matrices
from tests.executor.amdgcn.assembled import ALL


def computed(architecture, place):
    """Products with their problems, what was made of them, (registers, lanes) each, and the code that ran."""
    cases = matrices.chosen(architecture)
    text = assembled.source(architecture, [matrices.snippet(*case, architecture) for case in cases])
    code = assembled.assemble(architecture, text, place)
    counts = [len(problem.registers[2]) for _, problem in cases]
    made = assembled.run(code, matrices.inputs(cases), sum(counts))
    return cases, np.split(made, np.cumsum(counts)[:-1]), code


@pytest.mark.parametrize("architecture", ALL)
def test_products(architecture, tmp_path):
    cases, made, _ = computed(architecture, tmp_path)
    for (product, problem), got in zip(cases, made, strict=True):
        if product.a == "i8":
            assert np.array_equal(got.view(np.int32), problem.d_of_lanes), product
        else:
            np.testing.assert_allclose(
                got.view(np.float32), problem.d_of_lanes, rtol=1e-5, atol=2e-4, err_msg=str(product)
            )
