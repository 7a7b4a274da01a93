# SPDX-License-Identifier: MIT
"""Problems of attention (tilekiln.reference.problems and those beside it) through a library, held to the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln import reference
from tilekiln.reference.gradients import BackwardProblem
from tilekiln.reference.kv_problems import STORAGE, WRITTEN, Problem, attends


def run_gradients(
    library: tk.Library, problem: BackwardProblem, expected: reference.Gradients, **options: Any
) -> dict[str, np.ndarray]:
    """Gradients as the call made them."""
    made = problem.outputs()
    library.fmha_bwd(**problem.inputs, **made, **options)
    problem.check(made, expected)
    return made


def run_cache(library: tk.Library, problem: Problem, expected: reference.Result | None = None, **options: Any) -> None:
    """Calls of any family of KV caches. expected: what the problem's reference makes, where a caller has it."""
    if problem.family == "fmha_fwd_appendkv":
        return _append(library, problem, options)
    expected = expected or problem.reference()
    made = problem.outputs(expected)
    result = getattr(library, problem.family)(**problem.inputs, **problem.only_facade, **made, **options)
    assert result is made["out"]
    return problem.check(made, expected)


def _append(library: tk.Library, problem: Problem, options: dict[str, Any]) -> None:
    """Without attention and with it: the reference's bytes everywhere, and what attends within tolerance."""
    for attend in (False, True) if attends(problem) else (False,):
        ours, theirs = ({**problem.inputs, **{one: problem.inputs[one].copy() for one in WRITTEN}} for _ in range(2))
        expected = reference.appendkv(**theirs, attend=attend)
        out = library.fmha_fwd_appendkv(**ours, **({} if attend else {"attend": False}), **options)
        for name in WRITTEN:
            assert ours[name].tobytes() == theirs[name].tobytes(), f"{name} differs, attend={attend}"
        if not attend:
            assert out is None
            continue
        assert out.dtype == STORAGE[problem.dtype][1]
        worst = reference.excess(problem.dtype, expected, out)
        assert worst <= 1, f"error {worst:.3g} times its bound"
