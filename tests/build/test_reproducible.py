# SPDX-License-Identifier: MIT
"""The same sources give the same bytes, wherever they lie, whoever builds them and when; verify tells others apart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from build_support import wheels
from build_support.artifacts import extension_suffix


def wheels_of(tree, manifest: Path, library: Path, place: Path) -> list[bytes]:
    """Bytes of the wheels of a tree's package and of one library."""
    extension = f"build/python-release/_binding{extension_suffix()}"
    tree.built("receipt=fp32_min", "target=cpu-generic", extension)
    root = str(tree.root)
    made = [
        wheels.facade(root, "0.9.0", str(tree.root / extension), {}),
        wheels.kernels(root, "0.9.0", "fp32_min", str(library), str(manifest)),
    ]
    return [Path(wheels.write(one, str(place))[0]).read_bytes() for one in made]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("mode", "where"), [("release", ""), ("debug", "family=fmha_fwd")])
@pytest.mark.day
@pytest.mark.turns(1)
def test_other_directory_user_and_day(tmp_path, copy_sources, mode, where):
    trees = [copy_sources(tmp_path / "a"), copy_sources(tmp_path / "a-much-longer-name" / "b")]
    home = tmp_path / "home"
    home.mkdir()
    here = {"PYTHONHASHSEED": "1", "CCACHE_DISABLE": "1"}
    elsewhere = {
        "CCACHE_DISABLE": "1",
        "HOME": str(home),
        "USER": "somebody",
        "LOGNAME": "somebody",
        "TMPDIR": str(home),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
        "SOURCE_DATE_EPOCH": "86400",
        "PYTHONHASHSEED": "7",
    }
    for path in trees[1].root.rglob("*"):
        os.utime(path, (1e9, 1e9))  # checked out in 2001
    found = []
    for tree, environment in zip(trees, (here, elsewhere), strict=True):
        before = os.umask(0o077 if environment is elsewhere else 0o022)
        try:
            options = [f"mode={mode}", "target=cpu-generic", *([f"where={where}"] if where else [])]
            said = tree.scons("receipt=fp32_min", *options, environment=environment)
        finally:
            os.umask(before)
        assert said.code == 0, said.out + said.error
        (place,) = (tree.root / "build").glob(f"generic-{mode}*")
        libraries = sorted(path for path in (place / "lib").iterdir() if not path.is_symlink())
        assert [path.name for path in libraries] == ["libtilekiln_fp32_min.json", "libtilekiln_fp32_min.so"]
        found.append([path.read_bytes() for path in libraries])
        if mode == "release":
            found[-1] += wheels_of(tree, *libraries, tmp_path / str(len(found)))
        for path in (place / "gen").rglob("*"):
            assert not path.is_file() or str(tree.root).encode() not in path.read_bytes()
        assert all(str(tree.root).encode() not in data for data in found[-1])
    assert found[0] == found[1]


def test_no_source_asks_for_the_time(built_tree):
    """No source has a macro of the clock, so the day of the build cannot matter."""
    for folder in ("include", "kernels", "build"):
        for path in (built_tree.root / folder).rglob("*"):
            if path.suffix in (".h", ".c", ".cpp", ".jinja"):
                assert not re.search(r"__(DATE|TIME|TIMESTAMP)__", path.read_text()), path


def verify(tree, library):
    command = [sys.executable, "-m", "codegen", "verify", str(library)]
    done = subprocess.run(command, cwd=tree.root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.day
def test_verify(built_tree, tmp_path):
    library = built_tree.root / f"build/{built_tree.variant}/lib/libtilekiln_fp32_min.so"
    code, out, _ = verify(built_tree, library)
    assert (code, out.splitlines()[-1]) == (0, "is what it claims")
    assert re.search(r"10 instances, release by g\+\+ [\d.]+ -O3", out)

    # The library alone is enough.
    alone = tmp_path / "alone.so"
    alone.write_bytes(library.read_bytes())
    assert verify(built_tree, alone)[0] == 0

    # A digit of the hash in its table, of the names of its rows.
    data = library.read_bytes()
    plan_hash = re.search("^plan (\\w+)$", out, re.MULTILINE)[1].encode()
    at = data.index(plan_hash + b"\0")
    alone.write_bytes(data[:at] + b"x" + data[at + 1 :])
    code, out, _ = verify(built_tree, alone)
    assert code == 1
    assert "  library: its table does not list the instances of its manifest" in out.splitlines()

    beside = library.with_suffix(".json")
    beside.write_text(beside.read_text().replace('"mode":"release"', '"mode":"debug"'))
    code, out, _ = verify(built_tree, library)
    assert (code, out.splitlines()[-1]) == (
        1,
        "  libtilekiln_fp32_min.json: differs from the manifest inside the library",
    )
    beside.unlink()

    built_tree.append("kernels/runtime/status.cpp", "// changed\n")
    code, out, _ = verify(built_tree, library)
    assert (code, out.splitlines()[-2:]) == (
        1,
        ["is not what this tree makes of its manifest:", "  sources: kernels/runtime differs"],
    )

    receipt = built_tree.root / "receipts/fp32_min.yaml"
    keeps = receipt.read_text()
    receipt.write_text(keeps.replace("hdim_q=48,128", "hdim_q=128"))
    code, out, _ = verify(built_tree, library)
    assert code == 1
    assert "  instances: only the library has fmha_" in out
    assert "_fp32_d48x48_" in out
    receipt.unlink()
    code, out, _ = verify(built_tree, library)
    assert (code, out.splitlines()[-1]) == (1, "  plan: this tree cannot make it: no receipt 'fp32_min'; nearest: fp32")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x7fELF nothing else", "is no library of Tilekiln: it has no manifest inside"),
        (b"tilekiln manifest, zlib\n", "is no library of Tilekiln: it has no manifest inside"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_library(built_tree, tmp_path, data, says):
    path = tmp_path / "x.so"
    if data is not None:
        path.write_bytes(data)
    code, out, error = verify(built_tree, path)
    assert (code, out) == (2, "")
    assert error.startswith(f"codegen: {path}: {says}")


@pytest.mark.day
def test_a_damaged_manifest(built_tree, tmp_path):
    library = built_tree.root / f"build/{built_tree.variant}/lib/libtilekiln_fp32_min.so"
    path = tmp_path / "x.so"
    data = library.read_bytes()
    at = data.index(b"tilekiln manifest, zlib\n") + 100
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    code, _, error = verify(built_tree, path)
    assert code == 2
    assert error.startswith(f"codegen: {path}: its manifest is of another version or damaged: ")
