# SPDX-License-Identifier: MIT
"""peak: the arithmetic peak of one core, fp32 FMA and bf16 dot product, in Gflop/s of thread CPU time."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).with_suffix(".cpp")
BUILD = SOURCE.parents[2] / "build" / "tools"
KINDS = {"fma": 0, "bf16": 1, "tiles": 2, "avx2": 3}


def compiled(source: pathlib.Path, *flags: str) -> pathlib.Path:
    """A source of this directory as a shared library, compiled when its text is new."""
    path = BUILD / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    if not path.is_file():
        BUILD.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")  # renamed when whole: several processes may come here at once
        cxx = os.environ.get("CXX", "g++")
        subprocess.run(
            [cxx, "-O2", "-fPIC", "-shared", "-fvisibility=hidden", *flags, str(source), "-o", str(made)], check=True
        )
        made.replace(path)
    return path


@functools.cache
def _function() -> ctypes._CFuncPtr:
    function = ctypes.CDLL(str(compiled(SOURCE, "-ffp-contract=fast"))).tilekiln_peak
    function.argtypes, function.restype = (ctypes.c_int, ctypes.c_double), ctypes.c_double
    return function


def peak(kind: str, seconds: float = 0.1) -> float:
    """Peak of this core in flop/s, 0.0 when the CPU lacks the kind: "fma" (fp32), "avx2" (fp32, 8 lanes), "bf16" (dot
    product into fp32) or "tiles" (of bf16, AMX)."""
    return float(_function()(KINDS[kind], seconds))


def main(argv: list[str]) -> int:
    seconds = float(argv[0]) if argv else 1.0
    for kind in KINDS:
        print(f"{kind:5} {peak(kind, seconds) / 1e9:7.1f} Gflop/s")
    return 0
