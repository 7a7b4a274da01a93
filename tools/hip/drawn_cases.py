"""Drawn problems of norms, gates, moves and products through a library with arrays of a HIP device, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference.drawn import EDGES

from tests import cases as drawn
from tools.hip import cases
from tools.hip.device import DeviceArray, HipError


class Hip(drawn.Device):
    """Arrays in a GPU's memory."""

    edges, kernels = EDGES["hip"], "_hip_"

    def put(self, array: np.ndarray, written: bool) -> DeviceArray:
        return DeviceArray(array, shifted=True)

    def back(self, there: DeviceArray, like: np.ndarray) -> np.ndarray:
        return there.host()


def signatures(library: tk.Library) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Of its instances for HIP targets whose operators have a drawer, by family and dtype or element; each once."""
    return drawn.signatures(library, Hip.kernels)


def run(
    library: tk.Library, key: tuple[str, str], signatures: list[dict[str, Any]], count: int, seed: int
) -> cases.Outcome:
    """`count` random problems of a family and a dtype, each of another signature as long as there are any."""
    family, dtype = key
    outcome = cases.Outcome(dtype, 0, 0, family)
    for case, call in zip(range(count), drawn.calls(family, signatures, Hip.edges, f"{seed} {dtype}"), strict=False):
        outcome.cases += 1
        where = f"{family}({call}), case {case} of seed {seed}"
        try:
            error = drawn.share(library, family, call, Hip())
        except (tk.ArgumentError, tk.NoKernelError, RuntimeError, HipError) as raised:
            error = np.inf
            outcome.wrong.append(f"{type(raised).__name__}: {str(raised).splitlines()[0]}: {where}")
        else:
            if error > 1:
                outcome.wrong.append(f"error {error:.3g} times its bound: {where}")
        outcome.worst = max(outcome.worst, error)
    return outcome
