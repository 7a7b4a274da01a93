# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.normed LIBRARY: appends of normalised heads over cudasim, beside float64."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference import kv as reference

from tests.executor.ptx.device import DeviceArray
from tests.python.test_kv_norm import problem

WRITTEN = ("q", "k", "v")
UNIT, OTHERS = {"bf16": 2.0**-6, "fp16": 2.0**-9}, 0.02
"""Largest error, of a rounding of the norm and one more; largest share of elements that are rounded otherwise."""


def wrong(library: tk.Library, given: dict[str, Any], dtype: str) -> str:
    there = {name: DeviceArray(one) if isinstance(one, np.ndarray) else one for name, one in given.items()}
    out = DeviceArray(np.zeros_like(given["q"]))
    library.fmha_fwd_appendkv(**there, out=out)
    right = {name: np.array(one) if isinstance(one, np.ndarray) else one for name, one in given.items()}
    expected = reference.appendkv(**right)
    assert expected is not None
    for name in WRITTEN:
        mine, its = (one.astype(np.float64) for one in (there[name].host(), right[name]))
        far, most = np.abs(mine - its), UNIT[dtype] * max(1.0, float(np.abs(its).max()))
        if far.max() > most or (far > 0).mean() > (OTHERS if name != "v" else 0):
            return f"{name}: off by {far.max():.3g} of {most:.3g}, {(far > 0).mean():.3f} of it otherwise"
    far = np.abs(out.host().astype(np.float64) - np.asarray(expected.out, np.float64))
    return f"out: off by {far.max():.3g}" if far.max() > 4 * UNIT[dtype] else ""


def main(path: str) -> int:
    library, bad = tk.load(path), 0
    cases = itertools.product(("bf16", "fp16"), (64, 56), (False, True), ("pytorch", "transformers"), (False, True))
    for number, (dtype, hdim, paged, rounding, wide) in enumerate(cases):
        given = problem(dtype, hdim, paged, wide, number) | {"norm_rounding": rounding}
        given["rotary_interleaved"] = number % 3 == 0
        if said := wrong(library, given, dtype):
            bad += 1
            print(f"{dtype} {hdim} paged={paged} {rounding} factors of fp32={wide}: {said}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
