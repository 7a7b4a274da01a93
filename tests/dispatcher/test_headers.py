# SPDX-License-Identifier: MIT
"""The headers of include/, each alone, by every compiler that is here and in every standard that programs use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.programs import LLVM, need

HEADERS = sorted(path.relative_to(ROOT / "include").as_posix() for path in (ROOT / "include").rglob("*.h*"))
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]
# Clang and libstdc++ 12: std::stable_sort itself calls what that marks as deprecated.
OF = {"g++": ["-Wvolatile"], f"clang++-{LLVM}": ["-Wno-deprecated-declarations"]}


def compiled(compiler: str, header: str, *options: str) -> str:
    """Output of the compiler for a file that includes the header; "" where that compiles without a warning."""
    command = [compiler, *options, *WARNINGS, "-Iinclude", "-fsyntax-only", "-"]
    text = f"#include <{header}>\n"
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(done.stderr)
    return done.stderr


@pytest.mark.quick(1)
@pytest.mark.parametrize("standard", ["c++17", "c++20", "c++23"])
@pytest.mark.parametrize("compiler", OF)
@pytest.mark.parametrize("header", ["tilekiln/tilekiln.h", "tilekiln/dispatcher.hpp"])
def test_what_programs_include(compiler: str, standard: str, header: str) -> None:
    need(compiler)
    assert compiled(compiler, header, "-x", "c++", f"-std={standard}", *OF[compiler]) == ""


@pytest.mark.sampled(12)
@pytest.mark.parametrize("standard", ["c++17", "c++20", "c++23"])
@pytest.mark.parametrize("compiler", OF)
@pytest.mark.parametrize("header", [header for header in HEADERS if Path(header).parent.name])
def test_each_alone(compiler: str, standard: str, header: str) -> None:
    need(compiler)
    assert compiled(compiler, header, "-x", "c++", f"-std={standard}", *OF[compiler]) == ""


@pytest.mark.parametrize("standard", ["gnu89", "c99", "c11", "c17"])
@pytest.mark.parametrize("compiler", ["cc", f"clang-{LLVM}"])
def test_c(compiler: str, standard: str) -> None:
    need(compiler)
    assert compiled(compiler, "tilekiln/tilekiln.h", "-x", "c", f"-std={standard}", "-Wconversion") == ""


@pytest.mark.parametrize("standard", ["c89", "iso9899:199409"])
def test_older_c_is_told_so(standard: str) -> None:
    need("cc")
    said = compiled("cc", "tilekiln/tilekiln.h", "-x", "c", f"-std={standard}")
    assert "tilekiln.h is C99 and must be compiled as C99 or later: -std=c99" in said
