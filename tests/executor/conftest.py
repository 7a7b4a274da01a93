# SPDX-License-Identifier: MIT
"""The executor, built by the real build."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, Scons

LIBRARIES = ("libamdgcn.so", "hipsim/libamdhip64.so", "libptx.so", "cudasim/libcuda.so.1")


def build(scons: Scons) -> None:
    paths = [f"build/executor-release/{name}" for name in LIBRARIES]
    scons("receipt=fp32_min", *paths)
    assert all((ROOT / path).exists() for path in paths)


@pytest.fixture(scope="session", autouse=True)
def executor(scons: Scons) -> None:
    build(scons)
