# SPDX-License-Identifier: MIT
"""Drawn problems of every operator through a library with CUDA tensors, against float64."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import numpy as np
import tilekiln as tk
import torch
from tilekiln._core.dtypes import TORCH, WORDS
from tilekiln.reference import attention_problems as attention
from tilekiln.reference.drawn import EDGES
from tilekiln.reference.gemm import LOST_OF_BYTES

from tests import cases
from tests.python import sample_rules

HANGS = 20.0  # s
TOLD = 5
"""Failures that are printed of one kind of problem."""
LARGE = {"bf16": 4e-3, "fp16": 5e-4}
"""The largest relative error of a large product, by dtype."""


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


class Cuda(cases.Device):
    """PyTorch's tensors."""

    edges, kernels, times, lost = EDGES["gpu"], "_cuda_", 2, LOST_OF_BYTES
    of_attention: ClassVar = (attention.EDGES["gpu"], attention.CUDA)

    def put(self, array: np.ndarray, written: bool) -> torch.Tensor:
        return on_device(array, shifted=True)

    def back(self, there: torch.Tensor, like: np.ndarray) -> np.ndarray:
        return on_host(there, like)


@contextmanager
def watched(said: str) -> Iterator[None]:
    """A kernel that does not end takes the process with it."""

    def hung() -> None:
        print(f"BAD no answer after {HANGS} s: {said}", flush=True)
        os._exit(3)

    watchdog = threading.Timer(HANGS, hung)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def run(library: tk.Library, kinds: list[cases.Kind], count: int, seed: int) -> int:
    """Prints a line of each; how many problems are wrong."""
    for kind in kinds:
        kind.run(library, Cuda, count, seed, watched)
        if kind.family == "fmha_fwd":
            for call in attention.named_calls(kind.signatures, attention.CUDA, seed):
                kind.judge(f"fmha_fwd({call})", partial(cases.share, library, "fmha_fwd", call, Cuda()), watched)
        print("\n".join([str(kind), *(f"BAD {text[:600]}" for text in kind.wrong[:TOLD])]), flush=True)
    return sum(len(kind.wrong) for kind in kinds)


def large(library: tk.Library, dtype: str) -> str:
    """4k and ragged near it, tiles of every width, in all layouts, by rows that PyTorch makes in fp64."""
    for m, n, k in ((4096, 4096, 4096), (4099, 4240, 4072), (512, 11008, 4096), (500, 4096, 4096), (1000, 9000, 4096)):
        rows = torch.randint(0, m, (64,), device="cuda")
        for turned_a in (False, True):
            for turned_b in (False, True):
                a = torch.randn((k, m) if turned_a else (m, k), device="cuda", dtype=TORCH[dtype])
                b = torch.randn((n, k) if turned_b else (k, n), device="cuda", dtype=TORCH[dtype])
                a, b = a.T if turned_a else a, b.T if turned_b else b
                try:
                    out = library.gemm(a, b)
                except tk.NoKernelError:  # of a layout
                    continue
                wide = a[rows].double() @ b.double()
                error = ((out[rows].double() - wide).norm() / wide.norm()).item()
                if not error < LARGE[dtype]:
                    return f"{m} x {n} x {k}, a turned {turned_a}, b turned {turned_b}: error {error:.2e}"
    return ""


def further(library: tk.Library) -> int:
    """Count of what is wrong beside drawn problems: tokens, large products. NaN and infinity have tests (suite.py)."""
    checks: dict[str, Callable[[], str]] = {}
    if any(one.family == "sample" and one.signature["dtype"] == "bf16" for one in library.instances()):
        checks["tokens"] = partial(sample_rules.wrong, library, on_device, lambda one: one.cpu().numpy())
    for dtype in LARGE:
        if any(one.family == "gemm" and one.signature["dtype"] == dtype for one in library.instances()):
            checks[f"gemm {dtype}, large"] = partial(large, library, dtype)
    return sum(report(name, lambda check=check: check() or None) for name, check in checks.items())  # type: ignore[misc]


def report(name: str, check: Callable[[], str | None]) -> int:
    """`check` answers None, or what is wrong."""
    try:
        wrong = check()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    print(f"{'BAD' if wrong else 'ok '} {name}{': ' + wrong if wrong else ''}", flush=True)
    return int(wrong is not None)
