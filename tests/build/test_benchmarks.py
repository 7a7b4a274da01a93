# SPDX-License-Identifier: MIT
"""The C++ programs of tools/bench: no test runs them, so the compiler at least reads each."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from build_support.programs import Program, read_programs
from codegen.emit.flags import COMMON_HEADERS, HEADERS, STANDARD
from tests.codegen.test_golden import COMPILERS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [one for one in read_programs(str(ROOT / "tests/programs.yaml")) if one.name.startswith("bench_")]


def test_none_is_forgotten() -> None:
    of_scons = {source for program in PROGRAMS for source in program.sources}
    by_themselves = {"tools/bench/peak.cpp", "tools/bench/read.cpp"}  # their benchmarks compile them
    assert {f"tools/bench/{path.name}" for path in ROOT.glob("tools/bench/*.cpp")} == of_scons | by_themselves


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_compiler_takes_it(program: Program, build_library: Callable[..., Path]) -> None:
    build_library("flash")  # which writes the headers of operators
    include = [f"-I{path}" for path in (*HEADERS, COMMON_HEADERS)]
    flags = [f"-std={STANDARD}", *program.flags, *include, "-fsyntax-only"]
    command = [COMPILERS[0], *flags, *program.sources]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
