"""python run_cases.py LIBRARY CASES SEED [FAMILY:DTYPE:HDIM...]: problems through a library over cudasim."""

from __future__ import annotations

import dataclasses
import random
import sys
import time
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln import reference

from tests.executor.ptx import other_cases
from tests.executor.ptx.device import TARGET, DeviceArray
from tests.python import problems
from tools.hip import backward_cases, cache_cases, cases


def cuda_instances(library: tk.Library, family: str) -> list[Any]:
    return [one for one in library.instances() if one.family == family and one.name.endswith(TARGET)]


def sizes_of_fp8(draw: random.Random, hdim_q: int, hdim_v: int) -> problems.Sizes:
    """Rows of bytes are copied by 16."""
    sizes = SIZES(draw, hdim_q, hdim_v)
    even = {"hdim_q": -(-sizes.hdim_q // 16) * 16, "hdim_v": -(-sizes.hdim_v // 16) * 16}
    return dataclasses.replace(sizes, **even, strides=draw.choice(("dense", "exchanged")))


def sizes_in_shares(draw: random.Random, hdim_q: int, hdim_v: int) -> problems.Sizes:
    """Sometimes many query heads a key head, which CUDA's backward walks in shares (plan.h)."""
    sizes = SIZES(draw, hdim_q, hdim_v)
    return dataclasses.replace(sizes, nhead_q=8 * sizes.nhead_k) if draw.random() < 0.15 else sizes


def further(problem: problems.Problem, expected: reference.Result) -> Any:
    """Further term of out's bound for kernels of CUDA."""
    return problems.subnormal_weights(problem) + problems.sums_of_bytes(problem, expected)


SIZES, EDGES = cases.drawn_sizes, cases.EDGES
cases.instances = cuda_instances  # the problems are those of HIP's targets, on arrays of the other device
cases.further = further
for dtype in ("fp8bf16", "fp8fp32"):  # P of HIP's kernels is fp16
    cases.TOLERANCE[dtype] = dataclasses.replace(
        cases.reference.TOLERANCE[dtype], weight=problems.P_OF_E4M3, tiny=2.0**-126
    )
for module in (cases, backward_cases, cache_cases):
    module.DeviceArray = DeviceArray  # type: ignore[attr-defined, misc]
    module.target_here = lambda _: TARGET


def main(argv: list[str]) -> int:
    library, count, seed = tk.load(argv[0]), int(argv[1]), int(argv[2])
    every = {("fmha_fwd", *key): own for key, own in cases.signatures(library).items()}
    held = {str(one.signature) for one in cuda_instances(library, "fmha_fwd")}
    assert sum(map(len, every.values())) == len(held), "not every signature of the forward is drawn"
    for others in (backward_cases.signatures(library), cache_cases.signatures(library)):
        for family in {key[0] for key in others}:
            held = {str(one.signature) for one in cuda_instances(library, family)}
            drawn = sum(len(own) for key, own in others.items() if key[0] == family)
            assert drawn == len(held), f"{drawn} of the {len(held)} signatures of {family} are drawn"
        every |= others
    wrong = 0
    for key, own in every.items():
        name = "{}:{}:{}".format(*key)
        if argv[3:] and name not in argv[3:]:
            continue
        begun = time.process_time()
        if key[0] == "fmha_fwd":
            cases.EDGES = EDGES
            cases.drawn_sizes = sizes_of_fp8 if key[1].startswith("fp8") else SIZES
            outcome = cases.run(library, *key[1:], own, count, seed)
        elif key[0] == backward_cases.FAMILY:
            cases.drawn_sizes, cases.EDGES = sizes_in_shares, (*EDGES, 257, 300)  # blocks of keys that take turns at dq
            outcome = backward_cases.run(library, key, own, count, seed)
        else:
            outcome = cache_cases.run(library, key, own, count, seed)
        wrong += len(outcome.wrong)
        print(
            "\n".join(
                [f"{outcome.line}, {time.process_time() - begun:.1f} s", *(f"  {text}" for text in outcome.wrong[:5])]
            ),
            flush=True,
        )
    for name, check in other_cases.checks(library).items():
        if argv[3:] and name not in argv[3:]:
            continue
        begun = time.process_time()
        draw, numbers = random.Random(f"{seed} {name}"), np.random.default_rng(seed)
        said: list[str] = []
        for _ in range(30 * count):  # what has no kernel in this library is drawn again
            said.append(check(library, draw, numbers, name.split(":")[1]))
            if sum(text != "none" for text in said) == count:
                break
        bad = [text for text in said if text and text != "none"]
        wrong += len(bad)
        ran = sum(text != "none" for text in said)
        print(
            "\n".join(
                [
                    f"{name}: {ran} problems, {len(bad)} wrong, {time.process_time() - begun:.1f} s",
                    *(f"  {text}" for text in bad[:5]),
                ]
            ),
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
