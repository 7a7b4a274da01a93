# SPDX-License-Identifier: MIT
"""Libraries whose tile engines run anywhere on x86-64 with AVX-512: over tiles in plain C++."""

from __future__ import annotations

import platform

import pytest

TARGETS = "cpu-avx512bf16,cpu-amx,cpu-amxemulated"
"""Those of tests/kernels/test_tiles.py, whose folder has the engines."""
ENGINES = ["cpu-amxemulated", "cpu-amx"]

of_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are x86-64's")
