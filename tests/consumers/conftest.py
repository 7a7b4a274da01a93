# SPDX-License-Identifier: MIT
"""Tilekiln as other projects get it: installed below a prefix, and vendored."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import filelock
import pytest

from tests.conftest import remembered
from tests.programs import LLVM, need

ROOT = Path(__file__).resolve().parents[2]
HOST_FLAGS = "-Ofast"
"""Flags of hosts that vendor, for all of their files, which ours cannot bear."""
JOBS = f"-j{len(os.sched_getaffinity(0))}"


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Output of a program; it must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env={**remembered(), **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def shown(library: Path, *options: str) -> list[str]:
    """The symbols that `nm` lists as global, weak or unique."""
    lines = run("nm", *options, library).splitlines()
    return sorted(re.split(r"[ @]", line[19:])[0] for line in lines if line[17:18].isupper() or line[17:18] in "uvw")


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """once(name, make) -> a folder that make(folder) has filled, once for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], None]) -> Path:
        place = shared / name
        with filelock.FileLock(f"{place}.lock"):
            if not (shared / f"{name}.done").exists():
                shutil.rmtree(place, ignore_errors=True)
                make(place)
                (shared / f"{name}.done").touch()
        return place

    return folder


@pytest.fixture(scope="session")
def installed(once, scons) -> Path:  # type: ignore[no-untyped-def]
    """A prefix that holds fp32_min and flash."""
    return once("prefix", lambda place: scons("receipt=fp32_min,flash", "install", f"prefix={place}"))


class Vendored(NamedTuple):
    """`options` of the command line that made `tree`; `library` is what has been built of it."""

    options: Sequence[str]
    tree: Path
    library: Path
    engines: list[Path]

    def listed(self) -> list[str]:
        """The names of its instances, as the listing gives them."""
        receipt, *rest = (option.partition("=")[2] for option in self.options)
        words = [word for name, value in zip(("--target", "--where"), rest, strict=True) for word in (name, value)]
        return run(sys.executable, "-m", "codegen", "list", receipt, *words, cwd=ROOT).splitlines()


@pytest.fixture(scope="session")
def made_by_make(once) -> Vendored:  # type: ignore[no-untyped-def]
    """Every family of flash in fp32 for two instruction sets, built by make."""
    need("make")
    options = ["receipt=flash", "target=cpu-generic,cpu-avx2", "where=dtype=fp32"]

    def make(place: Path) -> None:
        tree, traps = place / "tree", place / "traps"
        run(sys.executable, "-m", "SCons", "-Q", *options, f"vendor={tree}", cwd=ROOT)
        traps.mkdir()
        for name in ("python", "python3", "scons"):  # whoever builds it has none of these
            (traps / name).write_text("#!/bin/sh\nexit 97\n")
            (traps / name).chmod(0o755)
        run("make", JOBS, f"CXXFLAGS={HOST_FLAGS} -fno-exceptions", cwd=tree, PATH=f"{traps}:{remembered()['PATH']}")

    tree = once("vendored-make", make) / "tree"
    return Vendored(options, tree, tree / "build/libtilekiln_flash.so", sorted((tree / "build").glob("engine_*.o")))


@pytest.fixture(scope="session")
def made_by_llvm(once) -> Vendored:  # type: ignore[no-untyped-def]
    """Some forward instances for two instruction sets, built by make with LLVM's compiler, linker and objcopy alone."""
    tools = {"CXX": f"clang++-{LLVM}", "LD": f"ld.lld-{LLVM}", "OBJCOPY": f"llvm-objcopy-{LLVM}"}
    need("make", *tools.values())
    options = ["receipt=fp32_min", "target=cpu-generic,cpu-avx2", "where=family=fmha_fwd hdim_q=48"]

    def make(place: Path) -> None:
        run(sys.executable, "-m", "SCons", "-Q", *options, f"vendor={place}", cwd=ROOT)
        chosen = [f"{name}={tool}" for name, tool in tools.items()]
        run("make", JOBS, *chosen, f"LDFLAGS=-fuse-ld=lld-{LLVM}", cwd=place)

    tree = once("vendored-llvm", make)
    return Vendored(options, tree, tree / "build/libtilekiln_fp32_min.so", sorted((tree / "build").glob("engine_*.o")))


@pytest.fixture(scope="session")
def made_by_cmake(once) -> Vendored:  # type: ignore[no-untyped-def]
    """Some forward instances for two instruction sets, built inside tests/consumers/cpp_cmake, which links them."""
    need("cmake", "ninja")
    options = ["receipt=fp32_min", "target=cpu-generic,cpu-avx2", "where=family=fmha_fwd hdim_q=48"]

    def make(place: Path) -> None:
        run(sys.executable, "-m", "SCons", "-Q", *options, f"vendor={place / 'tree'}", cwd=ROOT)
        host, build = ROOT / "tests/consumers/cpp_cmake", place / "build"
        choice = (f"-DTILEKILN_VENDORED={place / 'tree'}", "-DTILEKILN_INSTALL=ON", "-DCMAKE_BUILD_TYPE=Debug")
        choice += (f"-DCMAKE_CXX_FLAGS={HOST_FLAGS}", "-DCMAKE_SHARED_LINKER_FLAGS=-ffast-math")
        run("cmake", "-G", "Ninja", "-S", host, "-B", build, *choice, "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON")
        run("cmake", "--build", build)

    place = once("vendored-cmake", make)
    built = place / "build/tilekiln"
    return Vendored(options, place / "tree", built / "libtilekiln_fp32_min.so", sorted((built / "engine").glob("*.o")))
