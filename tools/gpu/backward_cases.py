"""Backward through a library with CUDA tensors: problems of tests/python/gradients.py against float64."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk
import torch
from tilekiln import reference
from tilekiln.reference.tolerance import Tolerance

from tests.python import gradients, judged
from tools.gpu.cases import drawn_sizes, on_device, on_host
from tools.gpu.judge import TANH_ERROR, TOLERANCE
from tools.gpu.tally import Tally


def tolerance(dtype: str, terms: int, softcap: float) -> Tolerance:
    """Of gradients: P is rounded to the dtype and dS, made of it, again. In fp16 what is below 2^-14 errs by 2^-25.

    terms: rows or keys that a gradient sums over. A soft cap's tanh errs in P as in the forward, and its slope
    1 - tanh^2 by twice as much.
    """
    base = TOLERANCE[dtype]
    tiny = terms * 2.0**-24 if dtype == "fp16" else base.tiny
    weight = base.weight + base.out + ((softcap + 2) * TANH_ERROR if softcap else 0.0)
    return Tolerance(out=base.out, weight=weight, lse=base.lse, tiny=tiny)


def excess(problem: gradients.BackwardProblem, expected: reference.Gradients, made: dict[str, np.ndarray]) -> float:
    """The worst error as a share of its bound; inf for a NaN and for a byte where nothing may be written."""
    sizes = problem.sizes
    terms = max(*sizes.lengths_q, *sizes.lengths_k, 1) * sizes.nhead_q // sizes.nhead_k
    bound = tolerance(problem.dtype, terms, float(problem.inputs.get("softcap", 0.0)))
    return judged.gradient_excess(bound, expected, made)


def call(libraries: list[tk.Library], **arguments: Any) -> None:
    """By the first library that has the kernel."""
    for library in libraries[:-1]:
        try:
            library.fmha_bwd(**arguments)
            return
        except tk.NoKernelError:
            continue
    libraries[-1].fmha_bwd(**arguments)


def one(
    libraries: list[tk.Library], problem: gradients.BackwardProblem, unread: bool, options: dict[str, Any]
) -> tuple[float, bool]:
    """The error, and whether two more runs give the same bytes. `unread`: with max_seqlen_q and max_seqlen_k."""
    inputs = {
        name: on_device(value) if isinstance(value, np.ndarray) else value for name, value in problem.inputs.items()
    }
    sizes = problem.sizes
    if unread and max(sizes.lengths_k) > 0 and max(sizes.lengths_q) > 0:  # the kernel reads the index arrays
        more = 0 if "bias" in inputs else 3  # its columns are max_seqlen_k
        inputs |= {"max_seqlen_q": max(sizes.lengths_q) + more, "max_seqlen_k": max(sizes.lengths_k) + more}
    blank = problem.outputs()
    results = []
    for _ in range(3):
        made = {name: on_device(array) for name, array in blank.items()}
        call(libraries, **inputs, **made, **options)
        torch.cuda.synchronize()
        results.append({name: on_host(tensor, blank[name]) for name, tensor in made.items()})
    same = all(
        np.array_equal(results[0][n].view(np.uint8), other[n].view(np.uint8)) for other in results[1:] for n in blank
    )
    return excess(problem, problem.reference(), results[0]), same


def run(
    libraries: list[tk.Library], dtype: str, hdim: tuple[int, int], own: list[dict[str, Any]], cases: int, seed: int
) -> int:
    """Prints a line; the number of those that do not hold. Each is of another signature as long as there are any."""
    draw, tally = random.Random(f"bwd {seed} {dtype} {hdim}"), Tally(f"library fmha_bwd {dtype} {hdim[0]}x{hdim[1]}")
    order = draw.sample(own, len(own))
    for case in range(cases):
        signature, sizes = dict(order[case % len(order)]), drawn_sizes(draw, dtype, hdim)
        options = {"deterministic": bool(signature["deterministic"])}
        if signature["deterministic"] and draw.random() < 0.5:
            options["workers"] = draw.choice((1, 7, 30))
        problem = gradients.make(signature, sizes, seed + case)
        said = f"case {case}: {signature} {sizes} {options}"
        tally.judge(said, partial(one, libraries, problem, case % 2 == 0, options))
    return tally.told()
