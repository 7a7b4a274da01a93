# SPDX-License-Identifier: MIT
"""Libraries of another version, and files that are none: one clear sentence, and never in the way of the right ones."""

import ctypes
import importlib
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tilekiln
import tilekiln as tk

ROOT = pathlib.Path(__file__).resolve().parents[2]
ABI = int(re.search(r"TILEKILN_ABI_VERSION (\d+)", (ROOT / "include/tilekiln/base.h").read_text())[1])
SAME = "install both in one version, or build both from one tree"


@pytest.fixture(autouse=True)
def modules(binding):
    """tilekiln.api.library and tilekiln.api.operators: importing them needs the binding, which is built by now."""
    for name in ("library", "operators"):
        importlib.import_module(f"tilekiln.{name}")


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """pretend(receipt, **functions) -> a library of that name whose tilekiln_* functions return these values.

    It lies in a directory of TILEKILN_PATH, and nothing else is searched.
    """
    monkeypatch.setattr("tilekiln.api.library.PLACES", (tk.library._from_path,))
    monkeypatch.setenv("TILEKILN_PATH", str(tmp_path / "libraries"))
    (tmp_path / "libraries").mkdir()

    def make(receipt, **functions):
        path = tmp_path / f"libraries/libtilekiln_{receipt}.so"
        lines = [
            f"int tilekiln_{name}(void) {{ return {value}; }}"
            if isinstance(value, int)
            else f'const char* tilekiln_{name}(void) {{ return "{value}"; }}'
            for name, value in functions.items()
        ]
        (tmp_path / "pretended.c").write_text("\n".join(lines))
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-o", str(path), str(tmp_path / "pretended.c")]
        subprocess.run(command, check=True)
        return path

    return make


def sentence(path, rest):
    return f"^{re.escape(f'{path} {rest}')}$"


def test_the_sentences(pretend):
    version = tk.__version__
    assert version == (ROOT / "VERSION").read_text().strip()
    older = pretend("older", abi_version=1, version="0.0.9")
    expected = sentence(older, f"is of Tilekiln 0.0.9 and this is Tilekiln {version}: {SAME}")
    with pytest.raises(ImportError, match=expected):
        tk.load("older")
    with pytest.raises(ImportError, match=expected):
        tk.load(older)
    other = pretend("other", abi_version=77, version=version)
    with pytest.raises(
        ImportError, match=sentence(other, f"speaks version 77 of the Tilekiln ABI and this is version {ABI}: {SAME}")
    ):
        tk.load("other")
    pretend("lacking", abi_version=ABI, version=version, isa="")
    with pytest.raises(ImportError, match=f"has no tilekiln_\\w+, which Tilekiln {version} needs: {SAME}"):
        tk.load("lacking")
    nothing = pretend("nothing", unrelated=1)
    with pytest.raises(ImportError, match=sentence(nothing, "is no Tilekiln library: it has no tilekiln_abi_version")):
        tk.load("nothing")


def test_tables_of_another_layout_are_not_read(flash, tmp_path):
    """As of a library of this version that an older tree has built: its sizes of structs differ."""
    library = ctypes.CDLL(flash.path)
    library.tilekiln_operators.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64))
    layout = library.tilekiln_operators(ctypes.byref(ctypes.c_int32()))[0][0]
    other = tmp_path / "libtilekiln_flash.so"
    data = pathlib.Path(flash.path).read_bytes()
    assert data.count(layout.to_bytes(8, "little")) >= 6
    other.write_bytes(data.replace(layout.to_bytes(8, "little"), (layout + 8).to_bytes(8, "little")))
    with pytest.raises(
        ImportError, match="its tables of operators are laid out in another way than this binding reads"
    ):
        tk.load(other)


def test_the_right_ones_are_found_all_the_same(pretend, flash, monkeypatch):
    """A stale flash lies before the right one, and an older library beside it."""
    stale = pretend("flash", abi_version=ABI, version=tk.__version__)
    pretend("older", abi_version=1, version="0.0.9")
    monkeypatch.setenv("TILEKILN_PATH", f"{stale.parent}:{flash.path}")
    with pytest.warns(RuntimeWarning) as said:
        assert [library.path for library in tk.libraries()] == [flash.path]
    assert sorted(re.sub(r"/\S+/|_(?!version)\w+(?=,)", "", str(warning.message)) for warning in said) == [
        f"left out: libtilekiln_flash.so has no tilekiln, which Tilekiln {tk.__version__} needs: {SAME}",
        f"left out: libtilekiln_older.so is of Tilekiln 0.0.9 and this is Tilekiln {tk.__version__}: {SAME}",
    ]
    with pytest.warns(RuntimeWarning, match=r"^left out: .* has no tilekiln_"):
        assert tk.load("flash").path == flash.path
    information = tk.info()
    assert [library["path"] for library in information["libraries"]] == [flash.path]
    assert len(information["left_out"]) == 2
    with pytest.raises(tk.NoKernelError, match=r"found: flash, older\n"):
        tk.load("fp8")


def test_a_broken_package_is_left_out(tmp_path, monkeypatch, flash):
    information = tmp_path / "broken-2.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 2.0\n")
    (information / "entry_points.txt").write_text(
        f"[tilekiln.libraries]\nmine = no_such_module_of_broken:where\ngone = {pathlib.Path(__file__).stem}_gone:PATH\n"
    )
    (tmp_path / f"{pathlib.Path(__file__).stem}_gone.py").write_text("PATH = '/nowhere/libtilekiln_gone.so'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tilekiln.api.library.PLACES", (tk.library._from_packages, lambda: [_found(flash)]))
    with pytest.warns(RuntimeWarning) as said:
        assert [library.path for library in tk.libraries()] == [flash.path]
    assert [str(warning.message) for warning in said] == [
        "left out: no_such_module_of_broken:where of broken 2.0: "
        """ModuleNotFoundError("No module named 'no_such_module_of_broken'")""",
        "left out: [Errno 2] No such file or directory: '/nowhere/libtilekiln_gone.so'",
    ]
    assert "no_such_module_of_broken" not in sys.modules


def _found(library):
    return tk.library.Found(library.receipt, pathlib.Path(library.path), "test")


def test_add_library(pretend, flash, tmp_path):
    """Found from then on, the last added first; nothing is added that cannot be loaded."""
    with pytest.raises(tk.NoKernelError):
        tk.load("flash")
    copied = tmp_path / "libtilekiln_flash.so"
    shutil.copy(flash.path, copied)
    try:
        added = tk.add_library(flash.path)
        assert added.path == flash.path
        tilekiln.api.library.PLACES += (tilekiln.api.library._from_program,)
        assert tk.load("flash") is added
        assert tk.add_library(copied).path == str(copied)
        assert tk.load("flash").path == str(copied)
        assert [library.path for library in tk.libraries()] == [str(copied)]
        tk.add_library(flash.path)
        assert tk.load("flash") is added
        assert len(tilekiln.api.library._added) == 2
        with pytest.raises(ImportError, match=r"is of Tilekiln 0\.0\.9"):
            tk.add_library(pretend("older", abi_version=1, version="0.0.9"))
        with pytest.raises(FileNotFoundError):
            tk.add_library("/nowhere/libtilekiln_flash.so")
        assert len(tilekiln.api.library._added) == 2
    finally:
        tilekiln.api.library._added.clear()
        tilekiln.api.registry.invalidate()


def test_the_demo_without_rich(monkeypatch, capsys):
    import importlib.util

    from tilekiln.cli import demo

    monkeypatch.setattr(sys, "argv", ["demo", "flash"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        demo.main()
    assert "is not installed: pip install rich" in capsys.readouterr().err
