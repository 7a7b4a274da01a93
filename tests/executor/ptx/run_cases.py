"""python run_cases.py LIBRARY CASES SEED [FAMILY:DTYPE[:HDIMS]...]: problems through a library over cudasim."""

from __future__ import annotations

import random
import sys
import time
from functools import partial

import numpy as np
import tilekiln as tk

from tests import cases
from tests.executor.ptx import other_cases
from tests.executor.ptx.device import TARGET
from tests.executor.ptx.other_cases import Executed
from tests.python import attention_problems as attention


def every_kind(library: tk.Library) -> dict[str, cases.Kind]:
    """Of all that is drawn here, by name. AssertionError: a signature of attention is not."""
    every = cases.kinds(library, Executed)
    for family in attention.FAMILIES:
        held = {str(one.signature) for one in library.instances() if one.family == family and one.name.endswith(TARGET)}
        drawn = sum(len(kind.signatures) for kind in every.values() if kind.family == family)
        assert drawn == len(held), f"{drawn} of the {len(held)} signatures of {family} are drawn"
    for name in other_cases.products(library):
        every[name] = cases.Kind(*name.split(":"), "", [])
    return every


def run_products(library: tk.Library, kind: cases.Kind, count: int, seed: int) -> None:
    """What has no kernel in this library is drawn again."""
    check = other_cases.products(library)[kind.name]
    draw, numbers = random.Random(f"{seed} {kind.name}"), np.random.default_rng(seed)
    for _ in range(30 * count):
        said = check(library, draw, numbers, kind.dtype)
        if said != "none":
            kind.judge(said, partial(float, "inf" if said else 0))
        if kind.problems == count:
            break


def main(argv: list[str]) -> int:
    library, count, seed = tk.load(argv[0]), int(argv[1]), int(argv[2])
    every, wrong = every_kind(library), 0
    for kind in cases.chosen(every, argv[3:]):
        begun = time.process_time()
        if kind.signatures:
            kind.run(library, Executed, count, seed)
        else:
            run_products(library, kind, count, seed)
        wrong += len(kind.wrong)
        seconds = f"{time.process_time() - begun:.1f} s"
        print("\n".join([f"{kind}, {seconds}", *(f"  {text}" for text in kind.wrong[:5])]), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
