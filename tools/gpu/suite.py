# SPDX-License-Identifier: MIT
"""The CPU's own test files on a GPU, each in a process of its own: what passed, failed and was skipped, and why."""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "torch_sdpa", "torch_operators", "torch_calls", "torch_device_gradients", "torch_norms", "torch_compiled",
    "torch_native", "transformers", "jax", "flash_attn", "flash_attn_bad_input", "flash_attn_cross_entropy",
    "flash_attn_kvcache", "flash_attn_matrix", "flash_attn_mha", "flash_attn_modules", "flash_attn_rotary", "aiter",
    "aiter_matrix", "backward_torch", "frameworks", "norm_faces", "linear", "few_queries", "kv_cache",
    "bad_input", "gemm", "rmsnorm2d", "layernorm2d", "norm_backward", "softmax", "silu_and_mul",
    "cross_entropy", "rotary", "moves", "reduce", "quantised_rows", "steps", "prompts",
)  # fmt: skip
"""Those of tests/python and tests/optimize whose arrays lie on the GPU there: PyTorch's, JAX's, NumPy's by
moved_arrays.py.

Attention's drawn problems (test_kernels, test_backward, test_kv) are --only problems and cache, with the bounds of the
tensor cores.
"""
WHOLE = ("steps", "prompts")
"""Of them those of tests/optimize."""
MOST_SECONDS = 300
"""Of a file."""


class Outcome:
    """Of one file: its tests by what became of them."""

    def __init__(self, name: str, seconds: float, report: Path, output: str) -> None:
        self.name, self.seconds = name, seconds
        self.passed = 0
        self.failed: list[tuple[str, str]] = []
        self.skipped: collections.Counter[str] = collections.Counter()
        if not report.is_file():
            self.failed.append((name, (output.strip().splitlines() or ["it printed nothing"])[-1]))
            return
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            wrong = next((one for one in case if one.tag in ("failure", "error")), None)
            skip = case.find("skipped")
            if wrong is not None:
                self.failed.append((f"{name}::{case.get('name')}", _line(wrong.get("message"))))
            elif skip is not None:
                self.skipped[_line(skip.get("message"))] += 1
            else:
                self.passed += 1


def _line(message: str | None) -> str:
    lines = (message or "").strip().splitlines() or [""]
    return lines[-1 if "Traceback" in lines[0] else 0][:200]


def _run(name: str, libraries: Path, folder: Path) -> Outcome:
    begun, report = time.monotonic(), folder / f"{name}.xml"
    environment = {**os.environ, "TILEKILN_TEST_LIBRARIES": str(libraries)}
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several processes have the memory
    if name != "jax":  # whose default device is the GPU
        environment["TILEKILN_TEST_DEVICE"] = "cuda"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [f"--basetemp={folder / name}", f"tests/{'optimize' if name in WHOLE else 'python'}/test_{name}.py"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
        )
        output = done.stdout + done.stderr
        if done.returncode < 0:
            output += f"\nended by signal {-done.returncode}"
    except subprocess.TimeoutExpired:
        output = f"it did not end in {MOST_SECONDS} s"
    return Outcome(name, time.monotonic() - begun, report, output)


def run(libraries: list[Path], names: list[str]) -> int:
    """Runs the files of these names, or all; returns how many tests failed. One a pair of cores, beside each other."""
    unknown = [name for name in names if name not in FILES]
    if unknown:
        raise SystemExit(f"NAME: was {unknown[0]!r}, must be one of {' '.join(FILES)}")
    for library in libraries:
        for file in (library, library.with_suffix(".json")):
            if not file.is_file():
                raise SystemExit(f"--library: {file} was no file, must be a built library with its .json beside it")
    if len({library.name for library in libraries}) < len(libraries):
        raise SystemExit("--library: two were of one receipt, must be one of each: tests name receipts")
    with tempfile.TemporaryDirectory() as kept, ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 2)) as pool:
        given = Path(kept) / "libraries"
        given.mkdir()
        for library in libraries:
            for file in (library, library.with_suffix(".json")):
                shutil.copy(file, given)
        every = [pool.submit(_run, name, given, Path(kept)) for name in names or FILES]
        outcomes = [one.result() for one in every]
    print("file: passed, failed, skipped, seconds", flush=True)
    skipped: collections.Counter[str] = collections.Counter()
    for one in outcomes:
        skips = one.skipped.total()
        print(f"test_{one.name}: {one.passed}, {len(one.failed)}, {skips}, {one.seconds:.0f}", flush=True)
        skipped += one.skipped
    for reason, count in skipped.most_common():
        print(f"skipped {count}: {reason}", flush=True)
    failed = [pair for one in outcomes for pair in one.failed]
    for test, why in failed:
        print(f"BAD {test}: {why}", flush=True)
    print(f"{sum(one.passed for one in outcomes)} passed, {len(failed)} bad, {skipped.total()} skipped", flush=True)
    return len(failed)
