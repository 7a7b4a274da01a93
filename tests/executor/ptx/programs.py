# SPDX-License-Identifier: MIT
"""Libraries for CUDA targets in a process whose driver is cudasim, and the PTX of their kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tools.executor.ptx import sources

ALWAYS = (
    *("attention", "ampere", "ampere_wide", "caches", "rows", "fp8"),
    *(
        "ampere_products",
        "products_of_bytes",
        "products_of_int8",
        "sums_of_int8",
        "tiles",
        "groups",
        "experts",
        "convolutions",
        "words",
        "lists",
        "cache_bytes",
        "latent",
    ),
)
"""Libraries whose kernels run without --full."""
TURNS = (
    ("caches", "fp8", "cache_bytes", "ampere_products", "products_of_bytes", "groups", "words", "latent"),
    ("ampere_wide", "rows", "products_of_int8", "sums_of_int8", "experts", "lists", "tiles", "convolutions"),
)
"""Those of even and of odd days, for problems of the day and calls of the host: nvcc takes seconds for each kernel."""
NEEDS = ("nvcc", "cuobjdump")
"""For libraries and the PTX in them (tests/programs.py)."""
WHOLE = ("flash", "aiter", "gemm_default", "norm_default")
"""Receipts of which --full runs every kernel, for both targets."""


def of_its_days(name: str) -> Any:
    """`name` as a case of a test, on the days of its library."""
    return pytest.param(name, marks=[pytest.mark.turns(turn) for turn in (0, 1) if name in TURNS[turn]])


CUDASIM = ROOT / "build" / "executor-release" / "cudasim"


class Emulated:
    """A library, the folder with the PTX of its kernels, and the target whose rows the driver's device has."""

    def __init__(self, library: Path | None, folder: Path, target: str) -> None:
        self.library, self.folder = library, folder
        self.architecture = target.removeprefix("cuda-").replace("sm", "sm_").removesuffix("a")
        self.texts = sources.write_all([library], folder) if library else {}

    def python(
        self, *arguments: object, seed: int = 1, folder: Path | None = None, coverage: Path | None = None
    ) -> tuple[str, int]:
        """Output and exit code of a Python program whose driver is cudasim."""
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(CUDASIM),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python"), *sys.path]),
            "TILEKILN_CUDASIM_ARCH": self.architecture,
            "TILEKILN_CUDASIM_PTX": str(folder or self.folder),
            "TILEKILN_CUDASIM_SEED": str(seed),
        }
        if coverage:
            environment["TILEKILN_CUDASIM_COVERAGE"] = str(coverage)
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr, done.returncode

    def run(self, cases: int, seed: int, *names: str, **where: Path | None) -> tuple[str, int]:
        """Of run_cases.py."""
        program = ("-m", "tests.executor.ptx.run_cases", self.library, cases, seed, *names)
        return self.python(*program, seed=seed, **where)  # type: ignore[arg-type]
