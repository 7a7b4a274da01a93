# SPDX-License-Identifier: MIT
"""The executor, where LLVM's tools are, which these tests assemble and compile with."""

from __future__ import annotations

import pytest

from tests.conftest import Scons
from tests.executor.conftest import build
from tests.programs import OF_LLVM, need


@pytest.fixture(scope="session", autouse=True)
def executor(scons: Scons) -> None:
    need(*OF_LLVM)
    build(scons)
