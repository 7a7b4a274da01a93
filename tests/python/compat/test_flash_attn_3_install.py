# SPDX-License-Identifier: MIT
"""`import flash_attn_interface` after install(), and with the drop-in directory on PYTHONPATH; flash_attn.cute."""

from __future__ import annotations

import pathlib

import pytest

pytestmark = pytest.mark.torch
ROOT = pathlib.Path(__file__).resolve().parents[3]
DROP_IN = ROOT / "python/compat/flash_attn_3"
USE = """
import importlib.metadata, torch
from flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
import flash_attn_interface, flash_attn_3, flash_attn_3.flash_attn_interface
assert flash_attn_interface is flash_attn_3.flash_attn_interface
assert flash_attn_interface.__name__ == "tilekiln.compat.flash_attn_3.flash_attn_interface"
assert importlib.metadata.version("flash-attn-3") == flash_attn_3.__version__ == "3.0.0"
named = importlib.metadata.packages_distributions()
assert "flash_attn_3" in named["flash_attn_interface"] and "flash_attn_3" in named["flash_attn_3"]
x = torch.randn(1, 4, 2, 16)
print(flash_attn_func(x, x, x, causal=True).shape)
"""
INSTALL = "import tilekiln.compat.flash_attn_3\ntilekiln.compat.flash_attn_3.install()\n"
FOUR = "import tilekiln.compat.flash_attn\ntilekiln.compat.flash_attn.install()\n"


def test_install(run):
    assert "torch.Size([1, 4, 2, 16])" in run(INSTALL + INSTALL + USE, ROOT / "python")


def test_the_drop_in_directory_alone(run):
    assert "torch.Size([1, 4, 2, 16])" in run(USE, DROP_IN)
    run("import flash_attn_3, flash_attn\n" + INSTALL + USE, DROP_IN, DROP_IN.parent / "flash_attn")
    code = "import importlib.metadata as m, sys; print(m.version('flash_attn_3')); assert 'torch' not in sys.modules"
    assert run(code, DROP_IN).strip() == "3.0.0"


def test_never_over_an_installed_one(run, tmp_path):
    """Neither name is taken when one of them is somebody else's."""
    (tmp_path / "flash_attn_interface.py").write_text("flash_attn_func = 'theirs'\n")
    alone = f"""
try:
    {INSTALL.splitlines()[0]}
    tilekiln.compat.flash_attn_3.install()
except ImportError as error:
    import sys
    assert str(error).startswith("flash_attn_interface is installed at ")
    assert not [one for one in sys.meta_path if getattr(one, "name", "") == "flash_attn_3"]
    from flash_attn_interface import flash_attn_func
    assert flash_attn_func == "theirs"
    tilekiln.compat.flash_attn_3.install(over_installed=True)
"""
    undo = "\ntilekiln.compat.flash_attn_3.uninstall()\ndel flash_attn_interface\nimport flash_attn_interface\n"
    run(alone + USE + undo + "assert flash_attn_interface.flash_attn_func == 'theirs'", ROOT / "python", tmp_path)


def test_cute(run, tmp_path):
    """FlashAttention 4 comes with flash_attn; where a distribution has it, that one is taken."""
    use = """
import importlib.metadata, flash_attn.cute, flash_attn.cute.interface
assert flash_attn.cute.flash_attn_func is flash_attn.cute.interface.flash_attn_func
assert importlib.metadata.version("flash-attn-4") == flash_attn.cute.__version__ == "4.0.0"
assert {"flash_attn", "flash_attn_4"} <= set(importlib.metadata.packages_distributions()["flash_attn"])
"""
    run(FOUR + use, ROOT / "python")
    run(use, DROP_IN.parent / "flash_attn")
    (tmp_path / "flash_attn/cute").mkdir(parents=True)
    (tmp_path / "flash_attn/cute/__init__.py").write_text("flash_attn_func = 'theirs'\n")
    run(FOUR + "import flash_attn.cute as c\nassert c.flash_attn_func == 'theirs'", ROOT / "python", tmp_path)
