# SPDX-License-Identifier: MIT
"""The binding and the library under AddressSanitizer and UndefinedBehaviorSanitizer: tests of streams, bad and hostile
input once more, in a Python that has the sanitizer's runtime preloaded and no allocator of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build_support.artifacts import extension_suffix
from build_support.variant import Variant

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "test_streams.py",
    "test_stream_ends.py",
    "test_hostile_arguments.py",
    "test_bad_input.py",
    "test_kv_bad_input.py",
    "test_backward_bad_input.py",
    "test_frameworks.py",
)
pytestmark = [pytest.mark.instrumented("sanitize"), pytest.mark.day]
NOT_SANITIZED = "torch or jax or threads_run_at_once"
"""Frameworks are not ours to check; timing means nothing here."""


@pytest.fixture(scope="module")
def sanitized(scons, build_library) -> dict[str, str]:
    """The environment of a Python with the sanitized binding and library."""
    binding = ROOT / Variant((), "sanitize").python_directory / f"_binding{extension_suffix()}"
    scons("receipt=fp32_min", "mode=sanitize", str(binding.relative_to(ROOT)))
    library = build_library("flash", mode="sanitize")
    runtime = subprocess.run(
        [os.environ.get("CXX", "g++"), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert os.path.isabs(runtime), "the compiler has no libasan.so"
    return {
        **os.environ,
        "LD_PRELOAD": runtime,
        # Python itself leaves memory at exit.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=86:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests/python/sanitized", ROOT / "python", ROOT))),
        "TILEKILN_SANITIZED_BINDING": str(binding.parent),
        "TILEKILN_SANITIZED_LIBRARY": str(library),
    }


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_it_is_the_sanitized_binding_and_it_sees(sanitized):
    """Else the runs below prove nothing: a read past the end of an array's memory is reported."""
    code = (
        "import os, ctypes, numpy as np, tilekiln as tk; from tilekiln import _binding; print(_binding.__file__)\n"
        "lib = tk.Library(os.environ['TILEKILN_SANITIZED_LIBRARY'])\n"
        "q = np.lib.stride_tricks.as_strided(np.ones((1, 2, 1, 32), np.float32), (1, 90, 1, 32))\n"
        "lib.fmha_fwd(q, q, q, num_threads=1)"
    )
    done = python(sanitized, "-c", code)
    assert done.stdout.startswith(sanitized["TILEKILN_SANITIZED_BINDING"])
    assert "ERROR: AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert done.returncode == 86


@pytest.mark.parametrize("name", TESTS)
def test_under_sanitizers(sanitized, name):
    done = python(
        sanitized, "-m", "pytest", f"tests/python/{name}", "-n", "0", "-q", "-x", "-p", "no:cacheprovider",
        "-k", f"not ({NOT_SANITIZED})",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert " passed" in done.stdout
