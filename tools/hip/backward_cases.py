"""Gradients through a library with arrays of a HIP device: problems of tests/python/gradients.py against float64."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference.tolerance import Tolerance

from tests.python import gradients, judged, problems
from tools.hip import cases
from tools.hip.device import DeviceArray

FAMILY = "fmha_bwd_dq_dk_dv"


def target_here(library: tk.Library) -> str:
    """The word of the target whose main stage answers on this GPU, such as gfx942; "" where none answers any dtype."""
    tried = set()
    for one in cases.instances(library, FAMILY):
        s = dict(one.signature)
        if s["dtype"] in tried:
            continue
        tried.add(s["dtype"])
        problem = gradients.make(s, problems.Sizes((1,), (1,), 4, 2, int(s["hdim_q"]), int(s["hdim_v"])), 1)
        given = {k: DeviceArray(v) if isinstance(v, np.ndarray) else v for k, v in problem.inputs.items()}
        made = {name: DeviceArray(array) for name, array in problem.outputs().items()}
        try:
            stages = library.fmha_bwd_find(**given, **made, deterministic=bool(s["deterministic"]))
        except tk.NoKernelError:
            continue
        return library.instance_name(stages[1]).rpartition("_hip_")[2]
    return ""


def signatures(library: tk.Library) -> dict[tuple[str, str, int, int], list[dict[str, Any]]]:
    """Of its instances of the main stage for the HIP target of this GPU, or for all where none answers, by family,
    dtype and head dims; each once.
    """
    return cases.signatures_of(library, FAMILY, target_here(library))


def drawn_sizes(draw: random.Random, signature: dict[str, Any]) -> problems.Sizes:
    sizes = cases.drawn_sizes(draw, signature["hdim_q"], signature["hdim_v"])
    # dbias has the full shape, and its sum over a broadcast bias is the caller's
    return dataclasses.replace(sizes, min_seqlen_q=0, bias_heads=True, bias_batch=True)


def tolerance(problem: gradients.BackwardProblem) -> Tolerance:
    """P is rounded to the dtype and dS, made of it, again; in fp16 a term below 2^-14 errs by 2^-25."""
    base, sizes = cases.TOLERANCE[problem.dtype], problem.sizes
    terms = max(*sizes.lengths_q, *sizes.lengths_k, 1) * sizes.nhead_q // sizes.nhead_k
    tiny = terms * 2.0**-24 if problem.dtype == "fp16" else base.tiny
    return dataclasses.replace(base, weight=base.weight + base.out, tiny=tiny)


def gradient_error(problem: gradients.BackwardProblem, made: dict[str, np.ndarray]) -> float:
    """The worst error as a share of its bound; infinity where something must stay untouched and was not."""
    bound = tolerance(problem)
    reach = bound.tiny / 2 if problem.dtype == "fp16" else 0.0  # P below 2^-14 errs by 2^-25, times dP - D
    return judged.gradient_excess(bound, problem.reference(), made, reach)


def one(library: tk.Library, problem: gradients.BackwardProblem, deterministic: bool) -> float:
    """The error of a call."""
    inputs = {k: DeviceArray(v) if isinstance(v, np.ndarray) else v for k, v in problem.inputs.items()}
    made = {name: DeviceArray(array) for name, array in problem.outputs().items()}
    library.fmha_bwd(**inputs, **made, deterministic=deterministic)
    return gradient_error(problem, {name: array.host() for name, array in made.items()})


def run(
    library: tk.Library, key: tuple[str, str, int, int], own: list[dict[str, Any]], count: int, seed: int
) -> cases.Outcome:
    """`count` random problems of the signatures `own`, each of another signature as long as there are any."""

    def checks() -> Iterator[tuple[str, Callable[[], float]]]:
        draw = random.Random(f"{seed} {key}")
        order = draw.sample(own, len(own))
        for case in range(count):
            signature = dict(order[case % len(order)])
            sizes = drawn_sizes(draw, signature)
            problem = gradients.make(signature, sizes, seed + case)
            where = f"fmha_bwd, {signature}, {sizes}, seed {seed + case}"
            yield where, partial(one, library, problem, bool(signature["deterministic"]))

    return cases.tried(cases.Outcome(*key[1:], "fmha_bwd"), checks())
