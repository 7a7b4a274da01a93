# SPDX-License-Identifier: MIT
"""`import flash_attn` after install(), and with the drop-in directory on PYTHONPATH: each in a process of its own."""

from __future__ import annotations

import pathlib

import pytest

pytestmark = pytest.mark.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DROP_IN = ROOT / "python" / "compat" / "flash_attn"
USE = """
import importlib.metadata, importlib.util, torch
from flash_attn import flash_attn_func, __version__
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from flash_attn.ops.triton.rotary import apply_rotary
from flash_attn.flash_attn_interface import _flash_attn_forward, flash_attn_varlen_func
from flash_attn.layers.rotary import apply_rotary_emb
import flash_attn, flash_attn.bert_padding, tilekiln.compat.flash_attn.bert_padding
assert flash_attn is tilekiln.compat.flash_attn
assert flash_attn.bert_padding is tilekiln.compat.flash_attn.bert_padding
assert flash_attn.bert_padding.__spec__.name == "tilekiln.compat.flash_attn.bert_padding"
assert importlib.util.find_spec("flash_attn") is not None
assert importlib.util.find_spec("flash_attn.flash_attn_triton") is None
assert importlib.metadata.version("flash_attn") == importlib.metadata.version("flash-attn") == __version__ == "2.8.4"
assert "flash_attn" in importlib.metadata.packages_distributions()
try:
    import flash_attn.flash_attn_triton
except ModuleNotFoundError as error:
    assert error.name == "flash_attn.flash_attn_triton", error.name
else:
    raise AssertionError
x = torch.randn(1, 4, 2, 16)
print(flash_attn_func(x, x, x, causal=True).shape)
"""


@pytest.fixture
def other(tmp_path):
    """A flash_attn of somebody else."""
    package = tmp_path / "site" / "flash_attn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '2.7'\nflash_attn_func = 'theirs'\n")
    return package.parent


INSTALL = "import tilekiln.compat.flash_attn\ntilekiln.compat.flash_attn.install()\n"


def test_install(run):
    assert "torch.Size([1, 4, 2, 16])" in run(INSTALL + INSTALL + USE, ROOT / "python")


def test_the_drop_in_directory_alone(run):
    """It finds tilekiln beside it in the tree; install() agrees with it, before and after the first import."""
    assert "torch.Size([1, 4, 2, 16])" in run(USE, DROP_IN)
    run(USE + INSTALL, DROP_IN)
    run(INSTALL + USE, DROP_IN, ROOT / "python")
    run(USE, DROP_IN.parent)


def test_the_drop_in_directory_carries_the_version(run):
    code = "import importlib.metadata as m, sys; print(m.version('flash_attn')); assert 'torch' not in sys.modules"
    assert run(code, DROP_IN).strip() == "2.8.4"


def test_never_over_an_installed_one(run, other):
    said = run(INSTALL, ROOT / "python", other, fails="ImportError: flash_attn is installed at ")
    assert str(other / "flash_attn" / "__init__.py") in said
    assert "install(over_installed=True)" in said
    run("import flash_attn\n" + INSTALL, ROOT / "python", other, fails="ImportError: flash_attn is installed at ")


def test_over_an_installed_one_when_told_to(run, other):
    told = "import tilekiln.compat.flash_attn\ntilekiln.compat.flash_attn.install(over_installed=True)\n"
    run(told + USE, ROOT / "python", other)
    run(
        "from flash_attn import flash_attn_func as old\n" + told + USE + "assert old == 'theirs'",
        ROOT / "python",
        other,
    )


def test_uninstall_puts_back_what_was_there(run, other):
    code = (
        "import tilekiln.compat.flash_attn as ours\nours.install(over_installed=True)\nimport flash_attn.bert_padding\n"
    )
    code += "ours.uninstall()\nimport flash_attn, importlib.util\nassert flash_attn.__version__ == '2.7'\n"
    run(code + "assert importlib.util.find_spec('flash_attn.bert_padding') is None", ROOT / "python", other)
    gone = INSTALL + "tilekiln.compat.flash_attn.uninstall()\nimport flash_attn"
    run(gone, ROOT / "python", fails="ModuleNotFoundError: No module named 'flash_attn'")


THEIRS = """
import sys
import flash_attn.zoo.gpt as gpt, flash_attn.ops.more_dense, tilekiln.compat.flash_attn.modules.mha
assert gpt.MHA is tilekiln.compat.flash_attn.modules.mha.MHA
assert gpt.theirs == "fused" and gpt.__name__ == "flash_attn.zoo.gpt" and "site" in gpt.__file__
assert gpt.flash_attn_func is tilekiln.compat.flash_attn.flash_attn_func
assert "flash_attn.layers.theirs" not in sys.modules and "tilekiln.compat.flash_attn.zoo" not in sys.modules
try:
    import flash_attn.ops.missing
except ModuleNotFoundError as error:
    assert error.name == "flash_attn.ops.missing", error.name
else:
    raise AssertionError
"""


def test_what_an_installed_one_has_beside_is_found(run, other):
    """Its zoo and more_dense, which import from here what is here: of one package both."""
    package = other / "flash_attn"
    for name, text in {
        "zoo/__init__": "",
        "zoo/gpt": "from flash_attn import flash_attn_func\nfrom flash_attn.modules.mha import MHA\n"
        "from ..ops.more_dense import theirs\n",
        "modules/__init__": "",
        "modules/mha": "raise AssertionError\n",
        "ops/__init__": "",
        "ops/more_dense": "theirs = 'fused'\n",
    }.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / f"{name}.py").write_text(text)
    install = "import tilekiln.compat.flash_attn\ntilekiln.compat.flash_attn.install(over_installed=True)\n"
    run(install + THEIRS, ROOT / "python", other)
    run(THEIRS, DROP_IN, other)


@pytest.fixture
def beside(tmp_path):
    """A directory flash_attn without an __init__.py, with a subpackage, as another distribution installs it."""
    cute = tmp_path / "more" / "flash_attn" / "cute"
    cute.mkdir(parents=True)
    (cute / "__init__.py").write_text("from .inner import here\nfrom flash_attn.cute.inner import here as there\n")
    (cute / "inner.py").write_text("here = object()\n")
    return tmp_path / "more"


WITH_CUTE = """
from flash_attn.cute import here, there
import flash_attn.cute.inner
assert here is there
try:
    import flash_attn.cute.missing
except ModuleNotFoundError as error:
    assert error.name == "flash_attn.cute.missing", error.name
else:
    raise AssertionError
"""


def test_a_directory_without_init_is_no_other_package(run, beside):
    """A clone beside the script, or what is to be found inside flash_attn."""
    run(INSTALL + USE + WITH_CUTE, beside, ROOT / "python")
    run("import flash_attn\n" + INSTALL + USE + WITH_CUTE, beside, ROOT / "python")
    run(USE + WITH_CUTE, beside, DROP_IN)
    run("import flash_attn\n" + INSTALL, ROOT / "python", fails="No module named 'flash_attn'")


@pytest.mark.parametrize("convention", [None, "signed"])
def test_the_environment_chooses_s_dmask(run, monkeypatch, convention):
    if convention is not None:
        monkeypatch.setenv("TILEKILN_FLASH_ATTN_S_DMASK", convention)
    said = run("from tilekiln.compat.flash_attn import attn_probs; print(attn_probs.CONVENTION)", ROOT / "python")
    assert said.strip() == (convention or "randval")


def test_importing_tilekiln_imports_neither_torch_nor_the_faces(run):
    run(
        "import sys, tilekiln; assert not {'torch', 'tilekiln.compat'} & {*sys.modules}",
        ROOT / "python",
    )
