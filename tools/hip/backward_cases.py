"""Gradients through a library with arrays of a HIP device: problems of tests/python/gradients.py against float64."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference.tolerance import Tolerance

from tests.python import gradients, problems
from tools.hip import cases
from tools.hip.device import DeviceArray, HipError

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
    found: dict[tuple[str, str, int, int], list[dict[str, Any]]] = {}
    here = target_here(library)
    for instance in cases.instances(library, FAMILY):
        if not instance.name.endswith(here):
            continue
        s = dict(instance.signature)
        own = found.setdefault((FAMILY, str(s["dtype"]), int(s["hdim_q"]), int(s["hdim_v"])), [])
        if s not in own:
            own.append(s)
    return found


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
    expected, bound, worst = problem.reference(), tolerance(problem), 0.0
    for name, array in made.items():
        if name == "delta":
            continue
        gradient = getattr(expected, name)
        limit = (bound.of_sink() if name == "d_sink" else bound).gradient_bound(gradient)
        if problem.dtype == "fp16" and name != "d_sink":  # P below 2^-14 errs by 2^-25, times dP - D
            known = gradient.magnitude > 0
            reach = np.divide(gradient.spread, gradient.magnitude, out=np.zeros_like(gradient.value), where=known)
            limit = limit + bound.tiny / 2 * reach
        if not problems.still_poison(array[~gradient.touched]):
            return np.inf
        rows = gradient.touched
        worst = max(worst, cases.share(array[rows], gradient.value[rows], limit[rows]))
    known = ~np.isnan(expected.delta)
    size = np.maximum(1.0, np.max(np.abs(expected.delta[known]), initial=0.0))
    if not np.allclose(made["delta"][known], expected.delta[known], rtol=0, atol=1e-5 * size):
        return np.inf
    return worst if problems.still_poison(made["delta"][~known]) else np.inf


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
    _, dtype, hdim_q, hdim_v = key
    draw = random.Random(f"{seed} {key}")
    order = draw.sample(own, len(own))
    outcome = cases.Outcome(dtype, hdim_q, hdim_v, "fmha_bwd")
    for case in range(count):
        signature = dict(order[case % len(order)])
        sizes = drawn_sizes(draw, signature)
        problem = gradients.make(signature, sizes, seed + case)
        outcome.cases += 1
        where = f"fmha_bwd, {signature}, {sizes}, seed {seed + case}"
        try:
            error = one(library, problem, bool(signature["deterministic"]))
        except (tk.ArgumentError, tk.NoKernelError, RuntimeError, HipError) as raised:
            error = np.inf
            outcome.wrong.append(f"{type(raised).__name__}: {str(raised).splitlines()[0]}: {where}")
        else:
            if error > 1:
                outcome.wrong.append(f"error {error:.3g} times its bound: {where}")
        outcome.worst = max(outcome.worst, error)
    return outcome
