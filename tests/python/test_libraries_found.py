# SPDX-License-Identifier: MIT
"""Choice among several library files; a bad one among them breaks only itself."""

from __future__ import annotations

import copy as copying
import json
import os
import pathlib
import pickle
import platform
import re
import shutil
import subprocess
import sys
import warnings

import pytest
import tilekiln as tk
from tilekiln.api import machine
from tilekiln.cli import probes

WHERE = "dtype=fp32 hdim_q=64 mode=batch dropout=no softcap=no"
BAD_JSON = ["{", "[]", "{}", '{"receipt": 3}', '{"receipt": {"number": []}}', "[" * 100_000, "\xff\xfe"]


def copy(library: tk.Library, directory: pathlib.Path, age: int = 0) -> pathlib.Path:
    """A copy of a library and its manifest, `age` seconds old."""
    directory.mkdir(parents=True, exist_ok=True)
    source = pathlib.Path(library.path)
    for path in (source, source.with_suffix(".json")):
        shutil.copy(path, directory)
    copied = directory / source.name
    stamp = copied.stat().st_mtime - age
    os.utime(copied, (stamp, stamp))
    return copied


@pytest.fixture
def tree(monkeypatch, tmp_path):
    """A tree of builds, and nowhere else to look."""
    monkeypatch.setattr("tilekiln.api.library.TREE", tmp_path)
    monkeypatch.setattr("tilekiln.api.library.PLACES", (tk.library._from_tree,))
    return tmp_path / "build"


@pytest.fixture
def place(monkeypatch, tmp_path):
    """A directory of TILEKILN_PATH, and nowhere else to look."""
    monkeypatch.setattr("tilekiln.api.library.PLACES", (tk.library._from_path,))
    monkeypatch.setenv("TILEKILN_PATH", str(tmp_path))
    return tmp_path


@pytest.mark.day
def test_the_best_isa_goes_before_the_newest_build(load, tree):
    native, generic = load("flash", where=WHERE), load("flash", targets="cpu-generic", where=WHERE)
    assert native.isa != generic.isa, "this machine has nothing better than generic: the test proves nothing"
    best = copy(native, tree / "a-release" / "lib", age=1000)
    copy(generic, tree / "b-release" / "lib")
    assert tk.load("flash").path == str(best)
    assert [library.path for library in tk.libraries()] == [str(best)]
    newer = copy(native, tree / "c-release" / "lib", age=500)
    assert tk.load("flash").path == str(newer)
    copy(native, tree / "d-debug" / "lib")
    copy(native, tree / "e-release-0123abcd" / "lib")
    assert tk.load("flash").path == str(newer)  # release before debug, whole before narrowed


@pytest.mark.day
def test_the_best_isa_goes_first_in_one_directory_too(load, place):
    native, generic = load("flash", where=WHERE), load("flash", targets="cpu-generic", where=WHERE)
    best = copy(native, place / "native", age=1000)
    copy(generic, place / "generic")
    found = [
        tk.library.Found("flash", path / best.name, "test", "one") for path in (place / "generic", place / "native")
    ]
    assert tk.library._pick(found).library.path == str(best)


def test_a_file_of_this_directory_is_loaded_by_its_name(load, monkeypatch, tmp_path):
    monkeypatch.chdir(copy(load("flash", where=WHERE), tmp_path).parent)
    assert tk.load("libtilekiln_flash.so").path == tk.load("./libtilekiln_flash.so").path
    assert tk.load("libtilekiln_flash.so").path == str(tmp_path / "libtilekiln_flash.so")


def test_a_link_that_leads_nowhere_breaks_only_itself(flash, place):
    good = copy(flash, place)
    (place / "libtilekiln_x.so").symlink_to(place / "nowhere.so")
    (place / "libtilekiln_y.so").symlink_to(place / "libtilekiln_y.so")
    assert tk.load("flash").path == str(good)
    with pytest.raises(FileNotFoundError, match="libtilekiln_x"):
        tk.load("x")
    with pytest.raises(OSError, match="libtilekiln_y"):
        tk.load("y")
    with pytest.raises(tk.NoKernelError, match="the library of receipt 'fp32' is not built"):
        tk.load("fp32")
    with pytest.warns(RuntimeWarning, match="left out: .*libtilekiln_[xy]") as told:
        assert [library.path for library in tk.libraries()] == [str(good)]
    assert len(told) == 2
    left_out = tk.info()["left_out"]
    assert sorted(sentence.rpartition("libtilekiln_")[2] for sentence in left_out) == ["x.so'", "y.so'"]
    assert [line for line in machine.text().splitlines() if line.startswith("  - [Errno")] == [
        f"  - {sentence}" for sentence in left_out
    ]


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_a_malformed_manifest_beside_a_library_breaks_only_itself(flash, place, text):
    copy(flash, place)
    shutil.copy(place / "libtilekiln_flash.so", place / "libtilekiln_mine.so")
    (place / "libtilekiln_mine.json").write_bytes(text.encode("latin-1"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert tk.load(2).receipt == "flash"
    [warning] = [str(one.message) for one in told]
    assert warning.startswith(f"left out: {place / 'libtilekiln_mine.json'}: is no manifest")
    [sentence] = tk.info()["left_out"]
    assert sentence.startswith(f"{place / 'libtilekiln_mine.json'}: is no manifest (")


def test_a_manifest_without_a_number_is_none_the_worse(flash, place):
    copy(flash, place)
    shutil.copy(place / "libtilekiln_flash.so", place / "libtilekiln_mine.so")
    (place / "libtilekiln_mine.json").write_text(json.dumps({"receipt": {"name": "mine", "number": None}}))
    assert tk.load(2).receipt == "flash"
    assert tk.info()["left_out"] == []


def test_a_library_for_another_kind_of_machine_says_so(flash, place):
    """As a cross build leaves it in the tree; the loader says "No such file or directory" of it."""
    good = copy(flash, place)
    foreign = bytearray(good.read_bytes())
    x86, aarch64 = (62, "x86-64"), (183, "AArch64")
    here, other = (x86, aarch64) if foreign[18] == x86[0] else (aarch64, x86)
    foreign[18] = other[0]
    bad = place / "libtilekiln_bad.so"
    bad.write_bytes(foreign)
    said = f"{bad}: the file is for machines of {other[1]}, and this process is of {here[1]}; build it for this one"
    with pytest.raises(ImportError, match=re.escape(said)):
        tk.Library(bad)
    with pytest.warns(RuntimeWarning, match=f"left out: .*{re.escape(said)}"):
        assert [library.path for library in tk.libraries()] == [str(good)]


def test_a_truncated_library_is_refused_before_the_loader_ends_the_process(flash, place):
    good = copy(flash, place)
    whole = good.read_bytes()
    code = "import sys, tilekiln as tk\ntry: tk.Library(sys.argv[1])\nexcept ImportError as error: print(error)"
    bad = place / "libtilekiln_bad.so"
    for length in (0, 3, 20, 64, 100, 1000, 5000, len(whole) // 2, len(whole) - 1):
        bad.write_bytes(whole[:length])
        done = subprocess.run([sys.executable, "-c", code, bad], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (length, done.returncode)
        assert "libtilekiln_bad.so" in done.stdout, length
        if length >= 64:
            assert f"the file is damaged: it has {length} bytes, must have {len(whole)}; build or" in done.stdout
    with pytest.warns(RuntimeWarning, match="left out: .*libtilekiln_bad.so: the file is damaged"):
        assert [library.path for library in tk.libraries()] == [str(good)]
    assert "libtilekiln_bad.so: the file is damaged" in tk.info()["left_out"][0]


SAY = """
import tilekiln as tk
from tilekiln.api import machine
import numpy as np
q = np.ones((1, 2, 1, 32), np.float32)
for ask in (lambda: tk.load("flash"), tk.libraries, lambda: tk.attention(q, q, q)):
    try: print(ask())
    except Exception as error: print(type(error).__name__, error)
print(tk.info()["left_out"], tk.info()["environment"]["TILEKILN_ISA"])
"""


def test_an_isa_that_leaves_nothing_gives_the_sentence_of_the_library(load, tmp_path):
    library = load("flash", where=WHERE)
    copied = copy(library, tmp_path)
    look = "tk.library.PLACES = (tk.library._from_path,)"
    held = ["avx512bf16", "amx"] if library.isa == "amx" else [library.isa]
    for isa in ("AVX512", "avx1024", "neon", "generic"):
        done = subprocess.run(
            [sys.executable, "-c", SAY.replace("tilekiln as tk", f"tilekiln as tk, tilekiln.api.library; {look}")],
            env={**os.environ, "TILEKILN_ISA": isa, "TILEKILN_PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        sentence = (
            f'TILEKILN_ISA: was "{isa}", must be one that library flash holds and this machine has '
            f"({', '.join(held)}) or unset"
        )
        assert done.stdout.splitlines() == [
            *[f"ArgumentError {sentence}"] * 3,
            f"{[f'{copied}: {sentence}']} {isa}",
        ]


def test_a_misspelt_variable_is_told_once(flash: tk.Library) -> None:
    """With the first library of a process; variables of other tools, and those that are spelt well, are nobody's."""
    code = "import sys, tilekiln as tk\nfor _ in range(2): tk.load(sys.argv[1])"
    variables = {"TILEKILN_NUM_THREAD": "3", "TILEKILN_NUM_THREADS_": "3", "TILEKILN_MINE": "1", "TILEKILN_ISA": "avx2"}
    said = {}
    for name, value in variables.items():
        environment = {**os.environ, name: value}
        command = [sys.executable, "-c", code, flash.path]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said[name] = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line and name in line]
    for name in ("TILEKILN_NUM_THREAD", "TILEKILN_NUM_THREADS_"):
        assert len(said[name]) == 1
        assert said[name][0].endswith(f"the variable {name} is read by nothing; did you mean TILEKILN_NUM_THREADS?")
    assert said["TILEKILN_MINE"] == said["TILEKILN_ISA"] == []


def test_copies_and_pickles_of_a_library(load, place):
    """A copy is the library itself; a pickle names its file, and its receipt for where that file is not."""
    path = copy(load("flash", where=WHERE), place / "first")
    library = tk.load(path)
    assert copying.copy(library) is copying.deepcopy({"its": library})["its"] is library
    pickled = pickle.dumps(library)
    assert pickle.loads(pickled) is library
    path.unlink()
    with pytest.raises(tk.NoKernelError, match="'flash' is not built"):
        pickle.loads(pickled)
    other = copy(load("flash", where=WHERE), place)
    assert pickle.loads(pickled).path == str(other)


def test_builds_for_other_systems_are_not_looked_at(tmp_path, monkeypatch):
    """Opening one would fail, though a build for this machine lies beside it."""
    here = platform.machine()
    other = {"x86_64": "aarch64"}.get(here, "x86_64")
    elsewhere = (f"all-{other}-release", f"all-{here}-musl-release", f"all-{here}-macos-release")
    for name in ("all-release", *elsewhere, f"generic-{here}-debug"):
        (tmp_path / "build" / name / "lib").mkdir(parents=True)
        (tmp_path / "build" / name / "lib" / "libtilekiln_flash.so").touch()
    monkeypatch.setattr("tilekiln.api.library.TREE", tmp_path)
    found = [one.path.parts[-3] for one in tk.library._from_tree()]
    assert found == ["all-release", f"generic-{here}-debug"]


def test_processors_of_macos_have_linux_words():
    said = "".join(
        f"hw.optional.{one}\n" for one in ("arm.FEAT_BF16: 1", "arm.FEAT_I8MM: 0", "arm.FEAT_FP16: 1", "neon: 1")
    )
    assert probes.of_sysctl(said) == {"bf16", "asimdhp"}
    assert probes.of_sysctl("") == frozenset()
