# SPDX-License-Identifier: MIT
"""`import aiter` after install(), and with the drop-in directory on PYTHONPATH: each in a process of its own."""

from __future__ import annotations

import pathlib

import pytest

pytestmark = pytest.mark.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DROP_IN = ROOT / "python" / "compat" / "aiter"
USE = """
import importlib.metadata, importlib.util, torch
from aiter import flash_attn_func, mha_batch_prefill_func
from aiter.ops.mha import _flash_attn_backward, _flash_attn_varlen_backward, flash_attn_varlen_func
import aiter, aiter.ops.mha, tilekiln.compat.aiter.ops.mha
assert aiter is tilekiln.compat.aiter
assert aiter.ops.mha is tilekiln.compat.aiter.ops.mha
assert importlib.util.find_spec("aiter.ops.triton") is None
assert importlib.metadata.version("aiter") == aiter.__version__ == "0.1.9+tilekiln"
x = torch.randn(1, 4, 2, 16).bfloat16()
print(flash_attn_func(x, x, x, causal=True).shape)
"""


@pytest.fixture
def other(tmp_path):
    """An aiter of somebody else."""
    package = tmp_path / "site" / "aiter"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("flash_attn_func = 'theirs'\n")
    return package.parent


INSTALL = "import tilekiln.compat.aiter\ntilekiln.compat.aiter.install()\n"


def test_install_and_drop_in_directory(run):
    """Either, or both in any order."""
    assert "torch.Size([1, 4, 2, 16])" in run(INSTALL + USE, ROOT / "python")
    assert "torch.Size([1, 4, 2, 16])" in run(USE + INSTALL, DROP_IN)
    assert "torch.Size([1, 4, 2, 16])" in run(USE, DROP_IN.parent)


def test_the_drop_in_directory_carries_a_version(run):
    code = "import importlib.metadata as m, sys; print(m.version('aiter')); assert 'torch' not in sys.modules"
    version = run(code, DROP_IN).strip()
    assert run("import tilekiln.compat.aiter as a; print(a.__version__)", ROOT / "python").strip() == version


def test_never_over_an_installed_one_unless_told_to(run, other):
    said = run(INSTALL, ROOT / "python", other, fails="ImportError: aiter is installed at ")
    assert str(other / "aiter" / "__init__.py") in said
    told = "import tilekiln.compat.aiter\ntilekiln.compat.aiter.install(over_installed=True)\n"
    run("from aiter import flash_attn_func as old\n" + told + USE + "assert old == 'theirs'", ROOT / "python", other)
