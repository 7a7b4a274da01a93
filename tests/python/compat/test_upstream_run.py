# SPDX-License-Identifier: MIT
"""tests/upstream/run: tests of a checkout over flash_attn as Tilekiln has it, CUDA tensors as the CPU's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]
TESTS = """
import pytest
import torch
from flash_attn import flash_attn_func
from flash_attn.modules.mlp import Mlp

assert torch.cuda.get_device_capability("cuda") == (9, 0)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_on_what_is_said_to_be_cuda(heads):
    q = torch.randn(1, 4, heads, 16, device="cuda", dtype=torch.bfloat16)
    k = torch.zeros_like(q, device=torch.device("cuda", 0)).cuda()
    assert q.device.type == k.device.type == "cpu"
    assert flash_attn_func(q, k, k).shape == q.shape
    with torch.autocast("cuda", torch.bfloat16):
        assert Mlp(8, device="cuda").cuda().to("cuda")(torch.ones(2, 8)).dtype is torch.bfloat16
"""


def run(load: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TILEKILN_PATH": str(load("flash").path)}
    command = [sys.executable, str(ROOT / "tests/upstream/run"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)


def test_a_checkout(load: Any, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_mine.py").write_text(TESTS)
    done = run(load, str(tmp_path), "tests/test_mine.py", "--sample", "2")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 passed" in done.stdout


def test_a_folder_that_is_none(load: Any, tmp_path: Path) -> None:
    done = run(load, str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path} has no tests/losses/test_cross_entropy.py" in done.stderr
