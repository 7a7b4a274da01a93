# SPDX-License-Identifier: MIT
"""Features of processors that targets may ask for, in the headers by which libraries ask for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codegen.schema import cpu

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_feature_that_a_target_may_name_has_its_question(arch: str) -> None:
    header = (ROOT / f"kernels/backends/cpu/{arch}.h").read_text(encoding="utf-8")
    asked = set(re.findall(r"inline bool has_(\w+)\(\)", header))
    assert asked == {re.sub(r"\W", "_", name) for name in cpu.known(arch) - set(cpu.TILES)}
