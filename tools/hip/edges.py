# SPDX-License-Identifier: MIT
"""Lengths around the tiles of a kernel, every mask, one sequence and many, in several interleavings of waves.

    python -m tools.hip.edges --library LIBRARY --family FAMILY --dtype DTYPE [--sample SEED]

Over the executor alone (docs/how-to/hip.md), which draws the order of waves and workgroups from a seed. Without
--sample every combination; with it this architecture's share of some in which every two values, architectures among
them, meet that meet in any, drawn by the seed. A line for each that is wrong, then how many there were.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import kv_problems, problems
from tilekiln.reference.attention_problems import BACKWARD

from tests import cases, sampling
from tools.executor.amdgcn.code_object import ARCHITECTURES
from tools.hip.cases import Hip
from tools.hip.device import HipError, emulated

INTERLEAVINGS = (1, 2, 3, 4, 5)
LENGTHS: dict[str, Callable[[int], int]] = {
    "none": lambda tile: 0,
    "one": lambda tile: 1,
    "one less": lambda tile: tile - 1,
    "a tile": lambda tile: tile,
    "one more": lambda tile: tile + 1,
}
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"window": (-1, 0)},
    "causal_top_left": {"window": (-1, 0), "mask_origin": "top_left"},
    "window": {"window": (17, 5)},
    "window_top_left": {"window": (64, 1), "mask_origin": "top_left"},
    "sink_keys": {"window": (9, 0), "sink_size": 5},
}
SEQUENCES = ("batch", "group", "seqlen", "cu_seqlens")
"""One; packed ones, of which one has no query and one no key; the same padded, by lengths and by sums of them."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Edge of each axis in one problem. Rows are more than keys in some, and without keys."""

    rows: str  # of LENGTHS, as keys
    keys: str
    mask: str
    sequences: str
    paged: bool = False

    def lengths(self, tile: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        rows, keys = LENGTHS[self.rows](tile[0]), LENGTHS[self.keys](tile[1])
        if self.sequences == "batch":
            return {"lengths_q": (rows,), "lengths_k": (keys,)}
        return {"lengths_q": (0, rows, 5), "lengths_k": (7, keys, 0)}

    def signature(self) -> dict[str, Any]:
        """Values of the signature that the problem needs."""
        group = self.sequences in ("group", "cu_seqlens")
        mask = {"mask": "none" if self.mask == "none" else "window", "sink": self.mask == "sink_keys"}
        return {"mode": "group" if group else "batch", **mask, "paged": self.paged}


PLAIN = {"bias": "none", "softcap": False, "lse": True, "dropout": False, "qscale": "none", "dbias": False}
PLAIN |= {"skip_min_seqlen_q": False, "kv_dtype": "same", "page_size": 16, "layout": "linear", "lookup": "vllm"}


def matrix(family: str, dtype: str, signatures: list[dict[str, Any]]) -> list[tuple[Case, dict[str, Any]]]:
    """The whole, with the signature of each."""
    cache, fp8, found = family in kv_problems.FAMILIES, dtype.startswith("fp8"), []
    sequences = SEQUENCES[:2] if cache else SEQUENCES  # caches know no padding of queries
    paged = (False, True) if family == "fmha_fwd_splitkv" else (family == "fmha_fwd_pagedkv",)
    for one in itertools.product(LENGTHS, LENGTHS, MASKS, sequences, paged):
        case = Case(*one)
        wanted = {**PLAIN, "dropout": "none" if family == BACKWARD else False, **case.signature()}
        wanted["lse"] = family != "fmha_fwd_pagedkv" and dtype != "fp8bf16"  # they have none
        wanted["qscale"] = "pertensor" if fp8 else "none"
        fits = [s for s in signatures if all(s[name] == value for name, value in wanted.items() if name in s)]
        if fits:
            found.append((case, fits[-1]))
    return found


def error(
    library: tk.Library, family: str, case: Case, tile: tuple[int, int], signature: dict[str, Any], seed: int
) -> list[float]:
    """Of each interleaving, as a share of its bound; LSE is always checked where there is one."""
    mask, lengths = MASKS[case.mask], case.lengths(tile)
    if family in kv_problems.FAMILIES:
        sizes: Any = kv_problems.Sizes(**{"sink_size": 0, **lengths, **mask})
    else:
        padding = case.sequences if "seqlen" in case.sequences else "none"
        dims = {"hdim_q": signature["hdim_q"], "hdim_v": signature["hdim_v"]}
        sizes = problems.Sizes(**{**lengths, **dims, "padding": padding, "store_randval": False, **mask})
    problem = attention.made(family, signature, sizes, seed)
    assert family != "fmha_fwd" or problem.lse
    options = {"deterministic": bool(signature["deterministic"])} if family == BACKWARD else {}
    call = attention.call(family, problem, attention.HIP, **options)
    return [cases.share(library, cases.operator_of(family), call, Hip()) for _ in interleaved()]


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
    whole = matrix(asked.family, asked.dtype, signatures)
    here, numbers = os.environ["TILEKILN_HIPSIM_ARCH"], list(range(len(whole)))
    if asked.sample is not None:
        of_all = [{**vars(case), "architecture": one} for one in ARCHITECTURES for case, _ in whole]
        drawn = sampling.sample(of_all, f"{asked.sample} {asked.family} {asked.dtype}")
        numbers = [one % len(whole) for one in drawn if of_all[one]["architecture"] == here]
    wrong, worst = 0, 0.0
    for number in numbers:
        case, signature = whole[number]
        try:
            errors = error(library, asked.family, case, tile, signature, number)
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
