# SPDX-License-Identifier: MIT
"""A second build does nothing, or only what the change asks for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def nothing_done(said):
    return not any(said.actions(verb) for verb in ("compile", "join", "link", "write"))


def test_nothing_changed(built_tree):
    """Nothing is run, and nothing is written but SCons's own database and who builds."""
    before = built_tree.files()
    said = built_tree.built(*built_tree.SMALL)
    assert nothing_done(said)
    assert said.lines[-1] == "scons: `default' is up to date."
    after = built_tree.files()
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    place = f"build/{built_tree.variant}"
    own = {f"{place}/sconsign.dblite", f"{place}/lock"}
    assert {path for path in changed if "/unchanged-" not in path} <= own


@pytest.mark.day
def test_nothing_to_do_is_known_by_contents(built_tree):
    """A stamp answers before SCons looks; a change that no size and no time shows, and a file that is gone, it sees."""
    built_tree.built(*built_tree.SMALL)
    assert built_tree.built(*built_tree.SMALL).lines == ["scons: `default' is up to date."]
    source, text = built_tree.root / "kernels/attention/fmha_fwd_pagedkv/host.cpp", "// Checks of"
    before = source.stat()
    source.write_text(source.read_text().replace(text, text.upper()))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.stat().st_size == before.st_size
    assert "kernels/attention/fmha_fwd_pagedkv/host.cpp" in built_tree.built(*built_tree.SMALL).actions("compile")
    assert built_tree.built(*built_tree.SMALL).lines == ["scons: `default' is up to date."]
    (built_tree.root / f"build/{built_tree.variant}/lib/libtilekiln_fp32_min.so").unlink()
    assert built_tree.built(*built_tree.SMALL).actions("link")
    assert nothing_done(built_tree.built("-n", *built_tree.SMALL))


@pytest.mark.day
def test_touching_without_change(built_tree):
    for folder in ("include", "kernels"):
        for path in (built_tree.root / folder).rglob("*.h"):
            os.utime(path)
    assert nothing_done(built_tree.built(*built_tree.SMALL))


@pytest.mark.parametrize("suffix", [".cu", ".hip"])
def test_headers_of_a_text_for_gpus_are_followed(suffix: str, tmp_path: Path) -> None:
    """Of either make, whichever the build is for: AMD's objects of NVIDIA's texts were not made anew."""
    (tmp_path / "kernel.h").write_text("// a header\n")
    (tmp_path / f"kernel{suffix}").write_text('#include "kernel.h"\n')
    program = (
        "from SCons.Script import Environment, SourceFileScanner\nimport build_support.graph, sys\n"
        "env = Environment(tools=[])\nnode = env.File(sys.argv[1])\n"
        "print(*SourceFileScanner(node, env, SourceFileScanner.path(env, node.dir)))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / f"kernel{suffix}")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(tmp_path / "kernel.h")]


@pytest.mark.day
@pytest.mark.turns(0)
def test_a_header_of_the_rows(built_tree):
    built_tree.append("kernels/runtime/row.h", "// changed\n")
    compiled = built_tree.built(*built_tree.SMALL).actions("compile")
    assert [label for label in compiled if label.startswith("rows/")]
    assert "kernels/runtime/*.cpp" in compiled
    assert not [label for label in compiled if "for cpu-" in label]  # the engine knows no rows


@pytest.mark.day
def test_a_header_of_the_engine(built_tree):
    built_tree.append("kernels/attention/cpu/tile.h", "// changed\n")
    compiled = built_tree.built(*built_tree.SMALL).actions("compile")
    assert [label for label in compiled if label.startswith("kernels/attention/fmha_fwd/cpu/qlanes.cpp for ")]
    assert not [label for label in compiled if label.startswith(("rows/", "kernels/runtime/"))]


@pytest.mark.day
def test_one_more_value(built_tree):
    """A value more on one axis compiles the units that hold it, and the tables; engines and runtime stay."""
    objects = f"build/{built_tree.variant}/obj"
    built_tree.built("receipt=fp32")
    before = built_tree.files(objects)
    built_tree.edit("kernels/attention/fmha_fwd/family.yaml", "fp32: [32x32, 48x48", "fp32: [32x32, 40x40, 48x48")
    said = built_tree.built("receipt=fp32")
    compiled = said.actions("compile")
    rows = [label for label in compiled if label.startswith("rows/")]
    assert rows
    assert all("d40x40" in label for label in rows)
    after = built_tree.files(objects)
    kept = [path for path in before if "/rows/" in path]
    assert len(kept) >= 10
    assert all(after[path] == before[path] for path in kept)
    assert not [label for label in compiled if "for cpu-" in label]


@pytest.mark.day
def test_launcher_is_run_and_rebuilds_nothing(built_tree, script, tmp_path):
    launcher = script("launcher", [f'echo "$1" >> {tmp_path}/launched', 'exec "$@"'])
    assert nothing_done(built_tree.built(*built_tree.SMALL, f"launcher={launcher}"))
    built_tree.append("kernels/attention/fmha_fwd_pagedkv/host.cpp", "// changed\n")
    said = built_tree.built(*built_tree.SMALL, f"launcher={launcher}")
    # The manifest has the hash of all sources in it. The two compile side by side: either may be said first.
    assert sorted(said.actions("compile")) == ["fp32_min/manifest.cpp", "kernels/attention/fmha_fwd_pagedkv/host.cpp"]
    assert (tmp_path / "launched").read_text() == "g++\ng++\n"
    assert nothing_done(built_tree.built(*built_tree.SMALL))


def test_a_hidden_input_of_the_compiler_rebuilds(built_tree):
    said = built_tree.built("-n", *built_tree.SMALL)
    assert nothing_done(said)
    changed = built_tree.scons("-n", *built_tree.SMALL, environment={"CPATH": "/nowhere"})
    assert len(changed.actions("compile")) > 5


@pytest.mark.day
def test_receipts_share_what_they_have_in_common(built_tree):
    said = built_tree.built("receipt=fp32_min,fp32")
    compiled = said.actions("compile")
    assert not [label for label in compiled if label.startswith(("kernels/", "python/"))]
    assert len([label for label in compiled if label.endswith("table.cpp")]) == 1
    assert len(said.actions("link")) == 1
    for receipt in ("fp32_min", "fp32"):
        library = built_tree.root / f"build/{built_tree.variant}/lib/libtilekiln_{receipt}.so"
        assert library.exists()
        assert json.loads(library.with_suffix(".json").read_text())["receipt"]["name"] == receipt
    assert nothing_done(built_tree.built(*built_tree.SMALL))


@pytest.mark.day
def test_where_is_a_variant_of_its_own(built_tree):
    before = built_tree.files("build")
    said = built_tree.built("-n", *built_tree.SMALL, "where=hdim_q=48")
    assert [label for label in said.actions("link") if f"build/{built_tree.variant}-" in label]
    assert built_tree.files("build") == before


@pytest.mark.day
def test_clean(built_tree):
    (built_tree.root / f"build/{built_tree.variant}/obj/of-an-older-plan.o").touch()
    (built_tree.root / "build/done").touch()
    built_tree.built(*built_tree.SMALL, "compiledb")
    before = built_tree.files()
    said = built_tree.built("-c", "-n", *built_tree.SMALL)
    assert [line.split()[0] for line in said.lines] == ["would"] * 4
    assert built_tree.files() == before
    said = built_tree.built("-c", *built_tree.SMALL)
    assert said.lines == [
        f"removed build/{built_tree.variant}",
        "removed build/python-release",
        "removed build/headers",
        "removed compile_commands.json",
    ]
    assert list(built_tree.files("build")) == ["build/done"]


@pytest.mark.day
def test_compiledb(built_tree):
    said = built_tree.built(*built_tree.SMALL, "compiledb")
    assert said.actions("compile") == []
    entries = json.loads((built_tree.root / "compile_commands.json").read_text())
    assert {"kernels/runtime/dispatch.cpp", "kernels/attention/fmha_fwd/cpu/qlanes.cpp"} <= {
        entry["file"] for entry in entries
    }
    entry = next(entry for entry in entries if entry["file"] == "kernels/attention/fmha_fwd_pagedkv/host.cpp")
    assert os.path.realpath(entry["directory"]) == os.path.realpath(built_tree.root)
    command = [*entry["arguments"], "-fsyntax-only"]
    subprocess.run(command, cwd=entry["directory"], check=True)
    binding = next(entry for entry in entries if entry["file"] == "python/binding/binding.c")
    command = [*binding["arguments"], "-fsyntax-only", "-Werror"]  # its warnings would greet users
    subprocess.run(command, cwd=binding["directory"], check=True)


def test_failed_compile(built_tree):
    """The instances of the unit are named, and the command shown fails in the same way."""
    built_tree.append("kernels/runtime/rows.cpp.jinja", "#error rows are broken\n")
    said = built_tree.scons(*built_tree.SMALL, "-j1")
    assert said.code == 2
    lines = said.lines
    start = next(index for index, line in enumerate(lines) if line.startswith("failed: compile rows/fmha_"))
    assert any("rows are broken" in line for line in lines[:start])
    assert lines[start + 1].startswith("It holds ")
    assert re.match(r"  fmha_\w+_fp32_d", lines[start + 2])
    shown = lines[lines.index("To reproduce:") + 1].strip()
    again = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert "rows are broken" in again.stderr
    assert not list((built_tree.root / "build").rglob("*.new*"))


@pytest.mark.day
def test_warnings_are_shown_when_the_compile_succeeds(built_tree):
    built_tree.append("kernels/attention/fmha_fwd_pagedkv/host.cpp", "#warning look here\n")
    assert "look here" in built_tree.built(*built_tree.SMALL).out


@pytest.mark.day
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted(built_tree, script, how):
    """Objects in the making when a build was stopped are compiled again, to the same library."""
    library = built_tree.root / f"build/{built_tree.variant}/lib/libtilekiln_fp32_min.so"
    expected = library.read_bytes()
    object_ = built_tree.root / f"build/{built_tree.variant}/obj/attention/fmha_fwd_pagedkv/host.o"
    object_.unlink()
    library.unlink()
    # Half an object, then a compiler that hangs.
    launcher = script(
        "hangs", ['while [ "$1" != -o ]; do shift; done', 'echo half > "$2"', 'touch "$0.started"', "exec sleep 60"]
    )
    command = [sys.executable, "-m", "SCons", "-Q", *built_tree.SMALL, f"launcher={launcher}"]
    with (built_tree.root / "said").open("w") as said:
        build = subprocess.Popen(command, cwd=built_tree.root, stdout=said, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (launcher.parent / "hangs.started").exists():
        assert time.monotonic() < deadline
        assert build.poll() is None
        time.sleep(0.02)
    os.killpg(build.pid, how)
    assert build.wait(30) != 0
    if how == signal.SIGINT:
        # Nobody's fault, so neither instances nor a command to reproduce it.
        assert (
            "interrupted: compile kernels/attention/fmha_fwd_pagedkv/host.cpp"
            in (built_tree.root / "said").read_text().splitlines()
        )
        assert "failed" not in (built_tree.root / "said").read_text()
    assert not object_.exists() or object_.read_bytes() != b"half\n"
    assert built_tree.built(*built_tree.SMALL).actions("compile") == ["kernels/attention/fmha_fwd_pagedkv/host.cpp"]
    assert library.read_bytes() == expected
