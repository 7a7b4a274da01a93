# SPDX-License-Identifier: MIT
"""The folders of the package, and the names by which their modules were imported before."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import pickle
import re
import subprocess
import sys

import pytest
import tilekiln as tk

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/tilekiln"
MOST = 16


def test_few_names_lie_at_the_top() -> None:
    names = sorted(path.name for path in PACKAGE.iterdir() if path.name != "__pycache__")
    assert len(names) <= MOST, names


def test_the_page_names_every_drawer_and_no_other() -> None:
    text = (ROOT / "python/README.md").read_text()
    named = {name for cell in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`([^`]+)`", cell)}
    files = {"__init__.py", "__main__.py", "_binding.pyi", "py.typed"}
    assert named == {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"} - files


def test_old_names_are_the_same_modules(binding) -> None:
    pytest.importorskip("torch")  # of the compatibility modules
    from tilekiln._core.moved import MOVED

    for old, new in MOVED.items():
        module = importlib.import_module(old)
        assert module is importlib.import_module(new) is getattr(tk, old.rpartition(".")[2]) is sys.modules[old]
        assert (module.__name__, getattr(module.__spec__, "name", None)) == (new, new)
    assert importlib.util.find_spec("tilekiln.flash_attn.layers.no_such") is None  # as programs ask what there is
    assert importlib.util.find_spec("tilekiln.flash_attn.layers").submodule_search_locations is not None
    inner = importlib.import_module("tilekiln.flash_attn.layers.rotary")
    assert inner is importlib.import_module("tilekiln.compat.flash_attn.layers.rotary")


def test_old_names_serve_statements_pickles_and_commands(binding) -> None:
    code = (
        "import tilekiln.products, tilekiln.library as here\n"
        "from tilekiln.products import PackedWeight\n"
        "from tilekiln.tune import table\n"
        "import tilekiln.api.library, tilekiln.api.products\n"
        "assert here is tilekiln.api.library and PackedWeight is tilekiln.api.products.PackedWeight\n"
        "try:\n    import tilekiln.no_such\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    assert _run("-c", code).stdout == "No module named 'tilekiln.no_such'\n"
    assert pickle.loads(b"\x80\x04ctilekiln.library\nInstance\n.") is tk.Instance
    said = _run("-m", "tilekiln.demo", "--help")
    assert "usage: python -m tilekiln.cli.demo" in said.stdout, said.stderr
    assert said.returncode == 0


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
