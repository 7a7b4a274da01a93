"""The executor, built by the real build; LLVM's tools, which its tests assemble with."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, Scons
from tests.programs import need
from tools.executor.amdgcn.code_object import LLVM

LIBRARIES = ("libamdgcn.so", "hipsim/libamdhip64.so", "libptx.so", "cudasim/libcuda.so.1")


@pytest.fixture(scope="session", autouse=True)
def executor(scons: Scons) -> None:
    need(*(f"{tool}-{LLVM}" for tool in ("clang", "llvm-mc", "llvm-objdump", "ld.lld")))
    paths = [f"build/executor-release/{name}" for name in LIBRARIES]
    scons("receipt=fp32_min", *paths)
    assert all((ROOT / path).exists() for path in paths)
