"""Common parts of these programs: arrays, configs and verdicts. PYTHONPATH=python:python/compat/ck_dispatcher."""

from __future__ import annotations

from typing import Any

import numpy as np
from ctypes_utils import KernelConfig, Validator


def matrices(m: int, n: int, k: int, seed: int = 42) -> tuple[Any, Any]:
    """A (m, k) and B (k, n), fp16, small enough for upstream's tolerance."""
    random = np.random.default_rng(seed)
    return tuple((random.standard_normal(shape) / np.sqrt(k)).astype(np.float16) for shape in ((m, k), (k, n)))


def configs(count: int) -> list[KernelConfig]:
    """Configs that all differ: tiles, pipelines and schedulers."""
    tiles = [(m, n, k) for m in (64, 128, 256) for n in (64, 128, 256) for k in (32, 64)]
    made = [
        KernelConfig(tile_m=m, tile_n=n, tile_k=k, pipeline=pipeline, scheduler=scheduler)
        for pipeline, scheduler in (("compv3", "intrawave"), ("compv4", "intrawave"), ("mem", "interwave"))
        for m, n, k in tiles
    ]
    return made[:count]


def verdict(label: str, good: bool, more: object = "") -> None:
    """A line, and the end of the program where it is bad."""
    print(f"{label:<40} {more!s:<30} {'PASS' if good else 'FAIL'}".rstrip())
    if not good:
        raise SystemExit(1)


def check(label: str, dispatcher: Any, a: Any, b: Any) -> Any:
    """Runs a product and holds it to NumPy's."""
    result = dispatcher.run(a, b, a.shape[0], b.shape[1], a.shape[1])
    validator = Validator()
    good = result.success and validator.check(result.output, validator.compute_reference(a, b))[0]
    verdict(label, good, f"{a.shape[0]} x {b.shape[1]} x {a.shape[1]}")
    return result
