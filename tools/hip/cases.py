"""Forward through a library with arrays of a HIP device: problems of tests/python/problems.py against float64."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln import reference

from tests.python import judged, problems
from tools.hip.device import DeviceArray, HipError

EDGES = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 150)
# P is rounded to the dtype before it meets V, once and at worst all to the same side. bf16 may be cut (p_rounding).
TOLERANCE = {
    "fp16": dataclasses.replace(reference.TOLERANCE["fp16"], weight=2.0**-11 + 2.0**-20),
    "bf16": dataclasses.replace(reference.TOLERANCE["bf16"], weight=2.0**-7 + 2.0**-12),
    "fp8": reference.TOLERANCE["fp8"],
    # P of 8-bit inputs is fp16
    **{
        dtype: dataclasses.replace(reference.TOLERANCE[dtype], tiny=reference.TOLERANCE["fp16"].tiny)
        for dtype in ("fp8bf16", "fp8fnuzbf16", "bf8fnuzbf16")
    },
    "fp8fp32": dataclasses.replace(
        reference.TOLERANCE["fp8fp32"], weight=2.0**-11 + 2.0**-20, tiny=reference.TOLERANCE["fp16"].tiny
    ),
}


@dataclasses.dataclass
class Outcome:
    """Of many problems of one dtype and pair of head dims, 0x0 where there are none."""

    dtype: str
    hdim_q: int
    hdim_v: int
    family: str = "fmha_fwd"
    cases: int = 0
    worst: float = 0.0  # error as a share of its bound
    wrong: list[str] = dataclasses.field(default_factory=list)

    @property
    def line(self) -> str:
        hdim = f" {self.hdim_q}x{self.hdim_v}" if self.hdim_q else ""
        said = f"{self.family} {self.dtype}{hdim}: {self.cases} problems, {len(self.wrong)} wrong"
        return f"{said}, worst error {self.worst:.2f} of its bound"


def instances(library: tk.Library, family: str) -> list[Any]:
    """Those of a family for HIP targets; a library may have none."""
    return [one for one in library.instances() if one.family == family and "_hip_" in one.name]


def signatures_of(library: tk.Library, family: str, here: str) -> dict[tuple[str, str, int, int], list[dict[str, Any]]]:
    """Of its instances for a target, or for all where `here` is "", by family, dtype and head dims; each once."""
    found: dict[tuple[str, str, int, int], list[dict[str, Any]]] = {}
    for one in instances(library, family):
        if one.name.endswith(here):
            s = dict(one.signature)
            own = found.setdefault((family, str(s["dtype"]), int(s["hdim_q"]), int(s["hdim_v"])), [])
            if s not in own:
                own.append(s)
    return found


def tried(outcome: Outcome, checks: Iterable[tuple[str, Callable[[], float]]]) -> Outcome:
    """Counts what is wrong of problems: each a text about it, and its error as a share of the bound."""
    for where, check in checks:
        outcome.cases += 1
        try:
            error = check()
        except (tk.ArgumentError, tk.NoKernelError, RuntimeError, HipError) as raised:
            error = np.inf
            outcome.wrong.append(f"{type(raised).__name__}: {str(raised).splitlines()[0]}: {where}")
        else:
            if error > 1:
                outcome.wrong.append(f"error {error:.3g} times its bound: {where}")
        outcome.worst = max(outcome.worst, error)
    return outcome


def target_here(library: tk.Library) -> str:
    """The word of the target that answers on this GPU, such as gfx942; "" where none answers any signature."""
    tried = set()
    for one in instances(library, "fmha_fwd"):
        s = dict(one.signature)
        if s["dtype"] in tried:
            continue
        tried.add(s["dtype"])
        sizes = problems.Sizes((1,), (1,), 4, 2, int(s["hdim_q"]), int(s["hdim_v"]))
        problem = problems.make(s, sizes, 1)
        given = {k: DeviceArray(v) if isinstance(v, np.ndarray) else v for k, v in problem.inputs.items()}
        made = {name: DeviceArray(array) for name, array in problem.outputs().items()}
        try:
            return library.instance_name(library.fmha_fwd_find(**given, **made)).rpartition("_hip_")[2]
        except tk.NoKernelError:
            continue
    return ""


def signatures(library: tk.Library) -> dict[tuple[str, int, int], list[dict[str, Any]]]:
    """Of its instances for the HIP target of this GPU, or for all where none answers; each once."""
    every = signatures_of(library, "fmha_fwd", target_here(library))
    return {key[1:]: own for key, own in every.items()}


def drawn_sizes(draw: random.Random, hdim_q: int, hdim_v: int) -> problems.Sizes:
    return problems.drawn_sizes(draw, (hdim_q, hdim_v), EDGES)


def further(problem: problems.Problem, expected: reference.Result) -> Any:
    """Further term of out's bound for kernels of other devices than HIP's; their tests replace this function."""
    return 0.0


def excess(
    problem: problems.Problem, made: dict[str, np.ndarray], bound: reference.tolerance.Tolerance | None = None
) -> float:
    """The worst error of out and lse as a share of its bound; infinity where a row must stay untouched and was not.

    bound: another than TOLERANCE's.
    """
    expected = problem.reference()
    bound = bound or TOLERANCE[problem.dtype]
    return judged.excess(bound, expected, made, problem.sizes.layout, further(problem, expected))


def one(library: tk.Library, problem: problems.Problem, unread: bool) -> float:
    """The error of a call. `unread`: with max_seqlen_q and max_seqlen_k, so that the kernel reads index arrays."""
    inputs = {k: DeviceArray(v) if isinstance(v, np.ndarray) else v for k, v in problem.inputs.items()}
    if unread and max(problem.sizes.lengths_k) > 0:
        more = 0 if "bias" in inputs else 3  # its columns are max_seqlen_k
        inputs["max_seqlen_q"] = max(1, *problem.sizes.lengths_q) + more
        inputs["max_seqlen_k"] = max(1, *problem.sizes.lengths_k) + more
    made = {name: DeviceArray(array) for name, array in problem.outputs().items()}
    library.fmha_fwd(**inputs, **made)
    return excess(problem, {name: array.host() for name, array in made.items()})


def run(
    library: tk.Library, dtype: str, hdim_q: int, hdim_v: int, own: list[dict[str, Any]], cases: int, seed: int
) -> Outcome:
    """`cases` random problems of the signatures `own`, each of another signature as long as there are any."""

    def checks() -> Iterator[tuple[str, Callable[[], float]]]:
        draw = random.Random(f"{seed} {dtype} {hdim_q} {hdim_v}")
        order = draw.sample(own, len(own))
        for case in range(cases):
            signature, sizes = order[case % len(order)], drawn_sizes(draw, hdim_q, hdim_v)
            if signature["qscale"] == "blockscale":  # arrays of one element would be pertensor
                sizes = dataclasses.replace(sizes, nhead_q=4, nhead_k=2)
            problem = problems.make(signature, sizes, seed + case)
            yield f"{signature}, {sizes}, seed {seed + case}", partial(one, library, problem, unread=case % 2 == 0)

    return tried(Outcome(dtype, hdim_q, hdim_v), checks())
