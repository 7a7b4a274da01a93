# SPDX-License-Identifier: MIT
"""Lengths around the tiles of a kernel, every mask, one sequence and many, in several interleavings of waves.

    python -m tools.hip.edges --library LIBRARY --family FAMILY --dtype DTYPE [--sample SEED]

Over the executor alone (docs/how-to/hip.md), which draws the order of waves and workgroups from a seed. Without
--sample every combination; with it this architecture's share of some in which every two values, architectures among
them, meet that meet in any, drawn by the seed. A line for each that is wrong, then how many there were.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference import attention_tiles, of_gpus

from tests import cases, sampling
from tools.executor.amdgcn.code_object import ARCHITECTURES
from tools.hip.cases import Hip
from tools.hip.device import HipError, emulated

INTERLEAVINGS = (1, 2, 3, 4, 5)


def interleaved() -> Any:
    for seed in INTERLEAVINGS:
        os.environ["TILEKILN_HIPSIM_SEED"] = str(seed)
        yield seed


def of_library(library: tk.Library, family: str, dtype: str) -> tuple[tuple[int, int], list[dict[str, Any]]]:
    """The tile of the GPU's instances of a family and dtype, and their signatures."""
    here = f"_hip_{os.environ['TILEKILN_HIPSIM_ARCH']}"
    own = [one for one in library.instances() if one.family == family and one.name.endswith(here)]
    own = [one for one in own if dict(one.signature)["dtype"] == dtype]
    tiles = re.findall(r"_waves_b(\d+)x(\d+)", own[0].name)
    if not tiles:
        raise SystemExit(f"{own[0].name}: its name has no tile")
    signatures = {tuple(sorted(dict(one.signature).items(), key=str)): None for one in own}
    return (int(tiles[0][0]), int(tiles[0][1])), [dict(one) for one in signatures]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.hip.edges")
    for name in ("library", "family", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--sample", type=int)
    asked = parser.parse_args(words)
    if not emulated():
        raise SystemExit("the HIP runtime here is not the one over the executor: LD_LIBRARY_PATH (docs/how-to/hip.md)")
    library = tk.Library(asked.library)
    tile, signatures = of_library(library, asked.family, asked.dtype)
    whole = attention_tiles.matrix(asked.family, asked.dtype, signatures)
    here, numbers = os.environ["TILEKILN_HIPSIM_ARCH"], list(range(len(whole)))
    if asked.sample is not None:
        of_all = [{**vars(case), "architecture": one} for one in ARCHITECTURES for case, _ in whole]
        drawn = sampling.sample(of_all, f"{asked.sample} {asked.family} {asked.dtype}")
        numbers = [one % len(whole) for one in drawn if of_all[one]["architecture"] == here]
    wrong, worst, operator = 0, 0.0, cases.operator_of(asked.family)
    for number in numbers:
        case, signature = whole[number]
        try:
            call = attention_tiles.call(asked.family, case, tile, signature, of_gpus.HIP, number)
            errors = [cases.share(library, operator, call, Hip()) for _ in interleaved()]
        except (tk.ArgumentError, tk.NoKernelError, RuntimeError, AssertionError, HipError) as raised:
            errors = [np.inf]
            print(f"{type(raised).__name__}: {str(raised).splitlines()[0]}: {case}", flush=True)
        if max(errors) > 1:
            wrong += 1
            print(f"error {errors} times its bound: {case}, {signature}, seed {number}", flush=True)
        worst = max(worst, *errors)
    print(
        f"{asked.family} {asked.dtype} tile {tile[0]}x{tile[1]}: {len(numbers)} of {len(whole)} cases in"
        f" {len(INTERLEAVINGS)} interleavings, {wrong} wrong, worst error {worst:.2f} of its bound"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
