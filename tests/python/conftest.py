# SPDX-License-Identifier: MIT
"""Libraries for the facade's tests: built by the real build, loaded through the real binding."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tilekiln as tk

from tests.conftest import Scons, _variant
from tests.gpu_run import DEVICE

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def load(request: pytest.FixtureRequest) -> Callable[..., tk.Library]:
    """load(receipt, targets="native", where="") -> the library, built."""
    if sanitized := os.environ.get("TILEKILN_SANITIZED_LIBRARY"):  # by test_binding_sanitized.py, which has built it
        only = tk.Library(sanitized)
        return lambda receipt, **options: (
            only if (receipt, options) == ("flash", {}) else pytest.skip("only flash is built sanitized")
        )
    build_library: Callable[..., Path] = request.getfixturevalue("build_library")
    request.getfixturevalue("binding")
    kind: Callable[..., tk.Library] = tk.Library
    if DEVICE != "cpu":
        from tests.python import moved_arrays

        kind = moved_arrays.Library
    return functools.cache(lambda receipt, **options: kind(build_library(receipt, **options)))


@pytest.fixture(scope="session")
def flash(load: Callable[..., tk.Library]) -> tk.Library:
    return load("flash")


@pytest.fixture(scope="session")
def gemm_examples(scons: Scons, binding: object) -> str:
    """The library of examples/gemm/kernels.yaml, whose products have the tiles of the programs there."""
    scons("kernel_set=examples/gemm/kernels.yaml")
    return str(ROOT / _variant("native", "release", "").library("gemm_examples"))


@pytest.fixture
def gemm(gemm_examples: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """ctypes_utils, upstream's names of products, over that library."""
    from tilekiln.api import registry  # here, as it needs the binding

    monkeypatch.syspath_prepend(ROOT / "python" / "compat" / "ck_dispatcher")
    monkeypatch.setenv("TILEKILN_PATH", gemm_examples)
    registry.invalidate()
    import ctypes_utils

    yield ctypes_utils
    registry.invalidate()


@pytest.fixture(autouse=True)
def _native_kernels_forget() -> None:
    """Tests put libraries of their own in place: which one served a call of the test before is asked anew."""
    if native := sys.modules.get("tilekiln.torch.native"):
        native.forget()


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """finds(*libraries): the package's functions find these, and no other."""

    def finds(*libraries: tk.Library) -> None:
        monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [*libraries])
        monkeypatch.setattr("tilekiln.api.operators._served", {})

    return finds


@pytest.fixture
def at_hand(library: tk.Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's functions find the `library` of the test's file, and no other."""
    from tilekiln.api import operators, registry  # here, as it needs the binding

    registry.invalidate()
    monkeypatch.setattr(operators, "_at_hand", lambda: [library])
    yield
    operators._served.clear()


@pytest.fixture
def face(binding: object) -> Any:
    """The compatibility module flash_attn, unless the test's file has another."""
    return importlib.import_module("tilekiln.compat.flash_attn")


@pytest.fixture
def run(flash: tk.Library) -> Callable[..., str]:
    """run(code, *PYTHONPATH) -> what it printed; fails with what it said otherwise."""

    def run(code: str, *path: pathlib.Path, fails: str = "") -> str:
        environment = {**os.environ, "TILEKILN_PATH": flash.path, "PYTHONPATH": os.pathsep.join(map(str, path))}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/", check=False
        )
        if not fails:
            assert done.returncode == 0, done.stderr
            return done.stdout
        assert fails in done.stderr, done.stderr
        assert done.returncode != 0
        return done.stderr

    return run


@pytest.fixture
def two_processes(tmp_path: pathlib.Path) -> Callable[..., list[str]]:
    """two_processes(code, *PYTHONPATH, **environment) -> what each printed; code finds its rank in sys.argv[1].

    sys.argv[2] is the file by which torch.distributed's gloo processes find each other.
    """

    def run(code: str, *path: pathlib.Path, **environment: str) -> list[str]:
        places = os.pathsep.join(map(str, path or (ROOT / "python",)))
        everything = {**os.environ, "OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": places}
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(rank), str(tmp_path / "meeting")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=everything, cwd="/",
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=300) for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0, 0], "\n".join(errors for _, errors in said)
        return [printed for printed, _ in said]

    return run
