"""Forward through a library with CUDA tensors: problems of tests/python/problems.py against float64."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk
import torch
from tilekiln import reference
from tilekiln._core.dtypes import TORCH, WORDS

from tests.python import judged, problems
from tools.gpu.judge import tolerance
from tools.gpu.tally import Tally

EDGES = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 131, 191, 192, 193, 300)


def on_device(array: np.ndarray, shifted: bool = False) -> torch.Tensor:
    """A copy with the strides of `array`, also where they leave gaps; shifted: and with its address modulo 16."""
    kind = TORCH[WORDS[array.dtype.name]]
    steps = [stride // array.itemsize for stride in array.strides]
    bits = np.dtype(f"u{array.itemsize}")
    if array.size == 0 or min(steps, default=0) < 0:
        packed = np.array(array, order="C").reshape(-1).view(bits)
        return torch.from_numpy(packed).view(kind).cuda().reshape(array.shape)
    span = sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True)) + 1
    start = array.ctypes.data % 16 // array.itemsize if shifted else 0
    flat = np.empty(start + span, bits)
    flat[start:] = np.lib.stride_tricks.as_strided(array.view(bits), (span,), (array.itemsize,))
    return torch.from_numpy(flat).view(kind).cuda().as_strided(array.shape, steps, start)


def on_host(tensor: torch.Tensor, like: np.ndarray) -> np.ndarray:
    bits = TORCH[f"uint{8 * like.itemsize}"]
    return tensor.contiguous().view(bits).cpu().numpy().view(like.dtype)


def signatures(libraries: list[tk.Library], family: str) -> dict[tuple[str, tuple[int, int]], list[dict[str, Any]]]:
    """Of the libraries' kernels of GPUs, by dtype and head dims; each once."""
    found: dict[tuple[str, tuple[int, int]], list[dict[str, Any]]] = {}
    for one in (one for library in libraries for one in library.instances()):
        if one.family == family and "_cuda_sm" in one.name:
            s = dict(one.signature)
            own = found.setdefault((str(s["dtype"]), (int(s["hdim_q"]), int(s["hdim_v"]))), [])
            if s not in own:
                own.append(s)
    return found


def drawn_sizes(draw: random.Random, dtype: str, hdim: tuple[int, int]) -> problems.Sizes:
    sizes = problems.drawn_sizes(draw, hdim, EDGES, most=(3, 3), far=130, scale=0.4 if dtype == "bf16" else 0.1)
    if not dtype.startswith("fp8"):
        return sizes
    # The copy engine counts in 16 bytes: head dims and strides of 16 elements.
    if draw.random() < 0.2:
        sizes = dataclasses.replace(sizes, nhead_q=2, nhead_k=1)
    even = {"hdim_q": hdim[0] - 16 * draw.choice((0, 0, 1)), "hdim_v": hdim[1] - 16 * draw.choice((0, 0, 1))}
    return dataclasses.replace(sizes, **even, strides=draw.choice(("dense", "exchanged")))


def excess(dtype: str, problem: problems.Problem, expected: reference.Result, made: dict[str, np.ndarray]) -> float:
    """The worst error as a share of its bound; inf for a NaN and for a byte in rows that must stay untouched."""
    bound = tolerance(dtype, float(problem.inputs.get("softcap", 0.0)))
    more: Any = problems.subnormal_weights(problem) + problems.sums_of_bytes(problem, expected)
    return judged.excess(bound, expected, made, problem.sizes.layout, more)


def run(
    libraries: list[tk.Library], dtype: str, hdim: tuple[int, int], own: list[dict[str, Any]], cases: int, seed: int
) -> int:
    """Prints a line; the number of those that do not hold. Each case is of another signature as long as there are any;
    it goes to the first library that has it.
    """
    draw, tally = random.Random(f"{seed} {dtype} {hdim}"), Tally(f"library fmha_fwd {dtype} {hdim[0]}x{hdim[1]}")
    order = draw.sample(own, len(own))
    for case in range(cases):
        signature, sizes = dict(order[case % len(order)]), drawn_sizes(draw, dtype, hdim)
        if signature["qscale"] == "blockscale" and sizes.nhead_q == 1:  # one block each is pertensor
            signature["qscale"] = "pertensor"
        problem = problems.make(signature, sizes, seed + case)
        tally.judge(f"case {case}: {signature} {sizes}", partial(one, libraries, dtype, problem, case % 2 == 0))
    return tally.told()


def call(libraries: list[tk.Library], **arguments: Any) -> None:
    for library in libraries[:-1]:
        try:
            library.fmha_fwd(**arguments)
            return
        except tk.NoKernelError:
            continue
    libraries[-1].fmha_fwd(**arguments)


def one(libraries: list[tk.Library], dtype: str, problem: problems.Problem, unread: bool) -> tuple[float, bool]:
    """The error, and whether a second run gives the same bytes. `unread`: with max_seqlen_q and max_seqlen_k."""
    expected = problem.reference()
    inputs = {
        name: on_device(value) if isinstance(value, np.ndarray) else value for name, value in problem.inputs.items()
    }
    if unread and max(problem.sizes.lengths_k) > 0:  # the kernel reads the index arrays
        more = 0 if "bias" in inputs else 3  # its columns are max_seqlen_k
        inputs |= {
            "max_seqlen_q": max(1, *problem.sizes.lengths_q) + more,
            "max_seqlen_k": max(1, *problem.sizes.lengths_k) + more,
        }
    blank = problem.outputs()
    results = []
    for _ in range(2):
        made = {name: on_device(array) for name, array in blank.items()}
        call(libraries, **inputs, **made)
        torch.cuda.synchronize()
        results.append({name: on_host(tensor, blank[name]) for name, tensor in made.items()})
    same = all(np.array_equal(results[0][n].view(np.uint8), results[1][n].view(np.uint8)) for n in blank)
    return excess(dtype, problem, expected, results[0]), same


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("odd head dim", {"hdim": 60}, "head dim"),
    ("reversed", {"flip": True}, ""),
    ("negative scale", {"softmax_scale": -0.1}, "softmax_scale: was -0.1, must be above 0 on cuda"),
]


def refusals(library: tk.Library) -> int:
    """Count of wrong refusals: an error that the device alone finds names the argument, and nothing is written."""
    bad = 0
    for name, change, said in REFUSED:
        if "flip" in change:  # torch has no negative strides: one that is no multiple of 8
            q = torch.zeros(1, 40, 2, 68, device="cuda", dtype=torch.bfloat16)[..., :64]
            said = "q: a stride was 68 elements, must be a multiple of 8"
        else:
            q = torch.zeros(1, 40, 2, change.get("hdim", 64), device="cuda", dtype=torch.bfloat16)
        out = torch.full(q.shape, 7.0, device="cuda", dtype=q.dtype)
        more = {key: value for key, value in change.items() if key not in ("flip", "hdim")}
        try:
            library.fmha_fwd(q, q, q, out=out, **more)
            text = "it ran"
        except tk.ArgumentError as error:
            text = str(error)
        ok = said in text and bool((out == 7).all())
        bad += not ok
        print(f"{'ok ' if ok else 'BAD'} refused, {name}: {text}", flush=True)
    return bad


def report(name: str, check: Callable[[], str | None]) -> int:
    """`check` answers None, or what is wrong."""
    try:
        wrong = check()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    print(f"{'BAD' if wrong else 'ok '} {name}{': ' + wrong if wrong else ''}", flush=True)
    return int(wrong is not None)
