"""Common parts of these programs: options, arrays, configs and verdicts.

They import it first: in a checkout it finds tilekiln and ctypes_utils there, unless PYTHONPATH names others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / folder) for folder in ("python", "python/compat/ck_dispatcher")]

from ctypes_utils import KernelConfig, Validator  # noqa: E402 by that path

MOST = 54


def options(about: str | None, kernels: int | None = None) -> int:
    """--num-kernels of the command line; --help prints about. kernels: where it is not given; None: no such option."""
    program = argparse.ArgumentParser(description=about, allow_abbrev=False)
    if kernels is not None:
        how_many = f"how many configs, 1 to {MOST} ({kernels})"
        program.add_argument("--num-kernels", type=int, default=kernels, metavar="N", help=how_many)
    count: int = getattr(program.parse_args(), "num_kernels", 1)
    if not 1 <= count <= MOST:
        program.error(f"--num-kernels: was {count}, must be 1 to {MOST}")
    return count


def matrices(m: int, n: int, k: int, seed: int = 42) -> tuple[Any, Any]:
    """A (m, k) and B (k, n), fp16, small enough for upstream's tolerance."""
    random = np.random.default_rng(seed)
    return tuple((random.standard_normal(shape) / np.sqrt(k)).astype(np.float16) for shape in ((m, k), (k, n)))


def configs(count: int) -> list[KernelConfig]:
    """Configs that all differ: tiles, pipelines and schedulers; at most MOST."""
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
