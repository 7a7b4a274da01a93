"""Drawn problems of norms, gates, moves and products through a library with arrays of a HIP device, against float64."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference.drawn import EDGES

from tests import cases as drawn
from tools.hip import cases
from tools.hip.device import DeviceArray


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
    calls = itertools.islice(drawn.calls(family, signatures, Hip.edges, f"{seed} {dtype}"), count)
    checks = (
        (f"{family}({call}), case {case} of seed {seed}", partial(drawn.share, library, family, call, Hip()))
        for case, call in enumerate(calls)
    )
    return cases.tried(cases.Outcome(dtype, 0, 0, family), checks)
