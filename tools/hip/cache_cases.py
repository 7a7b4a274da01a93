"""KV caches through a library with arrays of a HIP device: problems of tests/python/kv_problems.py against float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk

from tests.python import judged, kv_problems, problems
from tools.hip import cases
from tools.hip.device import DeviceArray

FAMILIES = kv_problems.FAMILIES
EDGES_Q, EDGES_K = (1, 2, 5, 17, 70), (1, 15, 16, 63, 64, 65, 128, 130, 200)


def drawn_sizes(draw: random.Random, family: str) -> kv_problems.Sizes:
    batch, nhead_k = draw.randint(1, 2), draw.randint(1, 2)
    return kv_problems.Sizes(
        lengths_q=tuple(draw.choice(EDGES_Q) for _ in range(batch)),
        lengths_k=tuple(draw.choice(EDGES_K) for _ in range(batch)),
        nhead_q=nhead_k * draw.choice((1, 2, 4)),
        nhead_k=nhead_k,
        less=8 * draw.choice((0, 0, 1)) if family != "fmha_batch_prefill" else draw.choice((0, 1)),
        page_size=draw.choice((16, 48, 64, 128)),
        layout=draw.choice(("bshd", "bhsd")),
        **problems.drawn_mask(draw, ((6, 0), (-1, 0), (70, 3), (-1, -1), (100, 30)), (0, 2, 65)),
        leftpad=draw.random() < 0.3,
        rows=draw.random() < 0.3,
        seqlen_new=draw.randint(1, 3),
        num_splits=draw.choice((0, 1, 2, 3, 7)),
    )


def on_device(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: DeviceArray(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}


def fresh(problem: kv_problems.Problem) -> dict[str, Any]:
    """Inputs whose arrays that an append writes are copies."""
    return {**problem.inputs, **{name: problem.inputs[name].copy() for name in kv_problems.WRITTEN}}


def append(library: tk.Library, problem: kv_problems.Problem) -> float:
    """0 when every byte is the reference's, infinity else; then attention over the grown cache."""
    expected = problem_of(problem, attend=False)
    given = on_device(fresh(problem))
    library.fmha_fwd_appendkv(**given, attend=False)
    for name in kv_problems.WRITTEN:
        if given[name].host().tobytes() != expected[name].tobytes():
            return np.inf
    if not kv_problems.attends(problem):
        return 0.0
    result = problem_of(problem, attend=True)["result"]
    made = problem.outputs(result)
    given, out = on_device(fresh(problem)), DeviceArray(made["out"])
    library.fmha_fwd_appendkv(**given, out=out)
    return error_of(problem, result, {"out": out.host()})


def problem_of(problem: kv_problems.Problem, attend: bool) -> dict[str, Any]:
    """Arrays of an append after the reference has run, and its `result`."""
    given = fresh(problem)
    result = cases.reference.appendkv(**given, attend=attend)
    return {**given, "result": result}


def error_of(problem: kv_problems.Problem, expected: Any, made: dict[str, np.ndarray]) -> float:
    """As cases.excess."""
    return judged.excess(cases.TOLERANCE[problem.dtype], expected, made, problem.inputs.get("layout", "bshd"))


def one(library: tk.Library, problem: kv_problems.Problem, unread: bool) -> float:
    """The error of a call. `unread`: with max_seqlen_q and max_seqlen_k, so that the kernel reads index arrays."""
    if problem.family == "fmha_fwd_appendkv":
        return append(library, problem)
    expected = problem.reference()
    problem.randval = False  # HIP stores no bytes
    made = {name: DeviceArray(array) for name, array in problem.outputs(expected).items()}
    inputs = {**on_device(problem.inputs), **problem.only_facade}
    if unread and "bias" not in inputs:
        inputs |= {"max_seqlen_q": 80, "max_seqlen_k": 256}
    getattr(library, problem.family)(**inputs, **made)
    return error_of(problem, expected, {name: array.host() for name, array in made.items()})


def target_here(library: tk.Library) -> str:
    """The word of the target that answers on this GPU, such as gfx942; "" where none answers any signature."""
    tried = set()
    for family in FAMILIES:
        for one in cases.instances(library, family):
            s = dict(one.signature)
            if (family, s["dtype"]) in tried:
                continue
            tried.add((family, s["dtype"]))
            problem = kv_problems.make(family, s, kv_problems.Sizes(), 1)
            made = {}
            if family != "fmha_fwd_appendkv":
                made = {name: DeviceArray(array) for name, array in problem.outputs(problem.reference()).items()}
                made.pop("randval", None)
            try:
                number = getattr(library, f"{family}_find")(**on_device(problem.inputs), **problem.only_facade, **made)
            except tk.NoKernelError:
                continue
            first = number[0] if isinstance(number, tuple) else number  # of split-KV with its second stage
            return library.instance_name(first).rpartition("_hip_")[2]
    return ""


def signatures(library: tk.Library) -> dict[tuple[str, str, int, int], list[dict[str, Any]]]:
    """Of its instances over caches for the HIP target of this GPU, or for all where none answers; each once."""
    here = target_here(library)
    every = [cases.signatures_of(library, family, here) for family in FAMILIES]
    return {key: own for found in every for key, own in found.items()}


def run(
    library: tk.Library, key: tuple[str, str, int, int], own: list[dict[str, Any]], count: int, seed: int
) -> cases.Outcome:
    """`count` random problems of the signatures `own`, each of another signature as long as there are any."""
    family = key[0]

    def checks() -> Iterator[tuple[str, Callable[[], float]]]:
        draw = random.Random(f"{seed} {key}")
        order = draw.sample(own, len(own))
        for case in range(count):
            signature, sizes = order[case % len(order)], drawn_sizes(draw, family)
            problem = kv_problems.make(family, signature, sizes, seed + case)
            where = f"{family}, {signature}, {sizes}, seed {seed + case}"
            yield where, partial(one, library, problem, unread=case % 2 == 0)

    return cases.tried(cases.Outcome(*key[1:], family), checks())
