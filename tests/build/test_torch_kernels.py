# SPDX-License-Identifier: MIT
"""`scons torch`: kernels for PyTorch's dispatcher, for who has PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.elf import left_to_the_loader

ROOT = Path(__file__).resolve().parents[2]


def test_without_pytorch_it_says_what_to_do():
    code = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['scons', '-Q', '-n', 'torch']; "
        "runpy.run_module('SCons', None, '__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "tilekiln: PyTorch, whose headers its kernels need, is not installed, or is older than 2.10. "
        "Use tools/dev --with torch scons torch.\n"
    )


@pytest.mark.torch
def test_it_needs_neither_pytorch_nor_python_to_load(torch_kernels):
    needed = subprocess.run(["readelf", "-d", torch_kernels], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in needed
    assert "libtorch" not in needed
    assert "python" not in needed
    assert not left_to_the_loader(torch_kernels)
