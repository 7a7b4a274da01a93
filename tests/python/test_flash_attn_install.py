# SPDX-License-Identifier: MIT
"""`import flash_attn` and `import aiter` after install(), and with their directories on PYTHONPATH: in processes."""

from __future__ import annotations

import pathlib

import pytest

pytestmark = pytest.mark.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DROP_INS = ROOT / "python" / "compat"
DROP_IN = DROP_INS / "flash_attn"
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

AITER = """
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
INSTALL = "import tilekiln.compat.flash_attn\ntilekiln.compat.flash_attn.install()\n"
OVER = INSTALL.replace("()", "(over_installed=True)")
PACKAGES = {"flash_attn": USE, "aiter": AITER}
VERSIONS = {"flash_attn": "2.8.4", "aiter": "0.1.9+tilekiln"}
both = pytest.mark.parametrize("package", PACKAGES)


@pytest.fixture
def other(tmp_path):
    """A flash_attn and an aiter of somebody else."""
    for package in PACKAGES:
        (tmp_path / "site" / package).mkdir(parents=True)
        text = "__version__ = '2.7'\nflash_attn_func = 'theirs'\n"
        (tmp_path / "site" / package / "__init__.py").write_text(text)
    return tmp_path / "site"


@both
@pytest.mark.sampled(1)
def test_install_and_the_drop_in_directory(run, package):
    """The directory finds tilekiln beside it; install() agrees with it, before and after the first import."""
    use, install, place = PACKAGES[package], INSTALL.replace("flash_attn", package), DROP_INS / package
    assert "torch.Size([1, 4, 2, 16])" in run(install + install + use, ROOT / "python")
    assert "torch.Size([1, 4, 2, 16])" in run(use + install, place)
    run(install + use, place, ROOT / "python")
    run(use, DROP_INS)


@both
def test_the_drop_in_directory_carries_the_version(run, package):
    code = f"import importlib.metadata as m, sys; print(m.version('{package}')); assert 'torch' not in sys.modules"
    assert run(code, DROP_INS / package).strip() == VERSIONS[package]


@both
@pytest.mark.sampled(1)
def test_over_an_installed_one_when_told_to(run, other, package):
    install, over = (text.replace("flash_attn", package) for text in (INSTALL, OVER))
    said = run(install, ROOT / "python", other, fails=f"ImportError: {package} is installed at ")
    assert str(other / package / "__init__.py") in said
    assert "install(over_installed=True)" in said
    before = f"from {package} import flash_attn_func as old\n"
    run(before + install, ROOT / "python", other, fails=f"ImportError: {package} is installed at ")
    run(before + over + PACKAGES[package] + "assert old == 'theirs'", ROOT / "python", other)


def test_uninstall_puts_back_what_was_there(run, other):
    code = OVER + "import flash_attn.bert_padding\ntilekiln.compat.flash_attn.uninstall()\n"
    code += "import flash_attn, importlib.util\nassert flash_attn.__version__ == '2.7'\n"
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
    run(OVER + THEIRS, ROOT / "python", other)
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
