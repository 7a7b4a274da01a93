# SPDX-License-Identifier: MIT
"""python run_cases.py LIBRARY CASES SEED [FAMILY:DTYPE[:HDIMS]...]: problems through a library over cudasim."""

from __future__ import annotations

import sys
import time

import tilekiln as tk
from tilekiln.reference import attention_problems as attention
from tilekiln.reference.drawn import WIDE

from tests import cases
from tests.executor.ptx.device import TARGET, Executed


def every_kind(library: tk.Library) -> dict[str, cases.Kind]:
    """Of all that is drawn here, by name. AssertionError: a signature of attention is not."""
    every = cases.kinds(library, Executed)
    for family in attention.FAMILIES:
        held = {str(one.signature) for one in library.instances() if one.family == family and one.name.endswith(TARGET)}
        drawn = sum(len(kind.signatures) for kind in every.values() if kind.family == family)
        assert drawn == len(held), f"{drawn} of the {len(held)} signatures of {family} are drawn"
    for kind in [kind for kind in every.values() if kind.family == "gemm"]:
        rows = [one for one in kind.signatures if one["layout_out"] == "row"]
        if rows:
            every[f"wide_{kind.name}"] = cases.Kind("gemm", kind.dtype, "", rows, WIDE)
    return every


def main(argv: list[str]) -> int:
    library, count, seed = tk.load(argv[0]), int(argv[1]), int(argv[2])
    wrong = 0
    for kind in cases.chosen(every_kind(library), argv[3:]):
        begun = time.process_time()
        kind.run(library, Executed, count, seed)
        wrong += len(kind.wrong)
        seconds = f"{time.process_time() - begun:.1f} s"
        print("\n".join([f"{kind}, {seconds}", *(f"  {text}" for text in kind.wrong[:5])]), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
