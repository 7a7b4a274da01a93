# SPDX-License-Identifier: MIT
"""Trust of a build: in contents, never times; in outputs as they were written; in a cache by its digests."""

from __future__ import annotations

import os
import pickle
import shutil

import pytest

from build_support.executors import MOST
from tests.conftest import ROOT

BUILD = ("receipt=fp32_min", "target=cpu-generic", "where=dtype=fp32 hdim_q=128")


@pytest.fixture
def fake(tree, fake_tools, monkeypatch):
    """A fresh tree that is built by fake tools: the same bytes for the same commands and inputs."""
    monkeypatch.setenv("PATH", fake_tools["PATH"])
    return tree


@pytest.fixture
def built(fake):
    fake.built(*BUILD)
    return fake


def place(tree):
    (found,) = (path for path in (tree.root / "build").iterdir() if (path / "gen").is_dir())
    return found


def outputs(tree):
    """Every file that a job made -> its bytes."""
    endings = (".o", ".so", ".json")
    return {
        path: path.read_bytes()
        for path in (tree.root / "build").rglob("*")
        if path.suffix in endings and "/gen/" not in str(path)
    }


def done(said):
    """Actions of a build, as its lines."""
    return [line for line in said.lines if line.startswith(("compile", "join", "link", "write"))]


@pytest.mark.day
def test_an_old_time_hides_no_change(built):
    """As in a tarball or an image layer: a file's time is long ago and stays the same when its content changes."""
    source = built.root / "kernels/attention/fmha_fwd_pagedkv/host.cpp"
    for path in (built.root / "kernels").rglob("*"):
        os.utime(path, (1, 1))
    built.built(*BUILD)
    pristine = outputs(built)
    text = source.read_text()
    source.write_text(text + "// changed\n")
    os.utime(source, (1, 1))
    assert "compile kernels/attention/fmha_fwd_pagedkv/host.cpp" in done(built.built(*BUILD))
    source.write_text(text)
    os.utime(source, (1, 1))
    assert "compile kernels/attention/fmha_fwd_pagedkv/host.cpp" in done(built.built(*BUILD))
    assert outputs(built) == pristine


@pytest.mark.parametrize("tool", ["ld", "objcopy", "as"])
@pytest.mark.day
def test_another_linker_makes_everything_anew(built, script, tool):
    other = script(tool, [f"echo 'GNU {tool} (another) 2.99'"])
    said = built.scons("-n", *BUILD, environment={"PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}"})
    assert said.code == 0
    assert {"compile", "join", "link"} <= {line.split()[0] for line in done(said)}
    assert done(built.built("-n", *BUILD)) == []


@pytest.mark.day
def test_exports_are_part_of_a_library(built):
    built.append("kernels/runtime/exports.map", "# changed\n")
    said = built.built(*BUILD)
    assert said.actions("link") == [f"{place(built).relative_to(built.root)}/lib/libtilekiln_fp32_min.so"]


def damage(path):
    path.write_bytes(path.read_bytes()[:5])


KINDS = (
    "obj/attention/fmha_fwd_pagedkv/host.o",
    "obj/engine/*.o",
    "obj/engine/*/fmha_fwd-*.o",
    "lib/*.so",
    "lib/*.json",
    "_binding*.so",
)


def test_damaged_outputs_are_made_anew(built):
    """Whatever it is, a file that is not as it was written is said, made anew, and the rest stays."""
    pristine = outputs(built)
    for kind in KINDS:
        path, *_ = [path for path in pristine if path.match(kind)]
        shown = path.relative_to(built.root)
        damage(path)
        said = built.built(*BUILD)
        if kind != "_binding*.so":
            assert f"damaged: {shown} is not what the last build wrote; it is made anew" in said.lines
        assert len(done(said)) == 1, said.out
        assert outputs(built) == pristine
    damage(path)
    dry = built.built("-n", *BUILD)
    assert [line.split()[0] for line in done(dry)] == ["compile"]
    assert path.read_bytes() != pristine[path]


def test_a_new_time_is_no_damage(built):
    for path in outputs(built):
        os.utime(path)
    said = built.built(*BUILD)
    assert "damaged" not in said.out
    assert done(said) == []


@pytest.mark.day
def test_nothing_is_trusted_by_its_time_after_a_start_of_the_machine(built):
    """A power cut can leave a file of the right size and time whose data never reached the disk."""
    pristine = outputs(built)
    library = place(built) / "lib/libtilekiln_fp32_min.so"

    def lose():
        times = library.stat()
        library.write_bytes(b"\0" * times.st_size)
        os.utime(library, ns=(times.st_atime_ns, times.st_mtime_ns))

    lose()
    boot = place(built) / "boot"
    boot.write_text("another start of the machine\n")
    said = built.built(*BUILD)
    assert [line.split()[0] for line in done(said)] == ["link"]
    assert outputs(built) == pristine
    assert done(built.built(*BUILD)) == []
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert boot.read_text() == file.read()


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, "half", pickle.dumps([1])], ids=["empty", "zeros", "half", "list"])
@pytest.mark.day
def test_a_damaged_database(built, data):
    """Everything is made anew, to the same bytes, and no traceback is shown."""
    pristine = outputs(built)
    database = place(built) / "sconsign.dblite"
    whole = database.read_bytes()
    database.write_bytes(whole[: len(whole) // 2] if data == "half" else data)
    said = built.built(*BUILD)
    assert "Traceback" not in said.out + said.error
    assert said.error == ""
    shown = f"damaged: {database.relative_to(built.root)} cannot be read; everything is made anew"
    assert (shown in said.lines) == (data != b"")
    assert len(done(said)) > 15
    assert outputs(built) == pristine
    assert done(built.built(*BUILD)) == []


@pytest.mark.parametrize("how", ["flipped", "cut", "emptied"])
@pytest.mark.day
def test_a_damaged_cache(fake, copy_sources, tmp_path, how):
    """An entry that is not what was put there is a miss, and is there again afterwards."""
    cache = tmp_path / "cache"
    fake.built(*BUILD, f"cache={cache}")
    pristine = {path.relative_to(fake.root): data for path, data in outputs(fake).items()}
    entries = sorted(path for path in cache.glob("??/*") if path.is_file())
    assert len(entries) >= len(pristine)
    for path in entries:
        data = path.read_bytes()
        path.write_bytes({"flipped": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-7], "emptied": b""}[how])
    other = copy_sources(tmp_path / "other")
    said = other.built(*BUILD, f"cache={cache}")
    assert len([line for line in said.lines if line.startswith("damaged: ")]) == len(entries)
    assert {path.relative_to(other.root): data for path, data in outputs(other).items()} == pristine
    third = copy_sources(tmp_path / "third")
    said = third.built(*BUILD, f"cache={cache}")
    assert done(said) == []
    assert {path.relative_to(third.root): data for path, data in outputs(third).items()} == pristine
    assert done(third.built(*BUILD, f"cache={cache}")) == []


@pytest.mark.day
def test_variants_share_a_cache(fake, tmp_path):
    """Engines and host code, which do not name their folder, are there for a variant that nobody has built."""
    cache = f"cache={tmp_path / 'cache'}"
    assert [line for line in done(fake.built(*BUILD, cache)) if line.startswith("compile kernels/")]
    said = fake.built(*BUILD[:2], "where=dtype=fp32 hdim_q=48", cache)
    assert "from cache" in said.out
    assert {label.partition("/")[0] for label in said.actions("compile")} == {"rows", "fp32_min"}


@pytest.mark.day
def test_the_extension_is_made_once_for_all_variants(built):
    """And a second variant that goes leaves it to the first."""
    extension = built.root / "build/python-release"
    said = built.built("receipt=fp32_min", "target=cpu-generic", "where=hdim_q=64")
    assert not any("python/binding" in line for line in done(said))
    assert len([line for line in done(said) if line.startswith("link")]) == 1
    before = outputs(built)
    said = built.built("-c", "receipt=fp32_min", "target=cpu-generic", "where=hdim_q=64")
    assert [line.split()[0] for line in said.lines] == ["removed"]
    assert outputs(built).items() <= before.items()
    assert list(extension.glob("_binding*.so"))
    assert done(built.built(*BUILD)) == []
    built.append("python/binding/arrays.h", "// changed\n")
    assert [line for line in done(built.built(*BUILD)) if "python/binding" in line]
    said = built.built("-c", *BUILD)
    assert said.lines[1] == "removed build/python-release"
    assert not (built.root / "build").exists()


@pytest.mark.day
def test_clean_everything(built):
    built.built("receipt=fp32_min", "target=cpu-avx2", "compiledb")
    built.built("receipt=fp32_min", "target=cpu-generic", "where=hdim_q=64", "mode=debug", "default")
    before = built.files()
    said = built.built("-n", "-c", "build")
    assert len(said.lines) == 7
    assert all(line.startswith("would remove ") for line in said.lines)
    assert built.files() == before
    assert len(built.built("-c", "build").lines) == 7
    assert not (built.root / "build").exists()
    assert not (built.root / "compile_commands.json").exists()


def test_a_plan_that_cannot_be_writes_nothing(fake):
    before = fake.files()
    for where in ("hdim_q=63", "dtype=bf17"):
        said = fake.scons("receipt=fp32_min", f"where={where}")
        assert (said.code, said.out) == (2, "")
    assert fake.files() == before
    assert not (fake.root / "build").exists()


@pytest.mark.day
def test_the_executor_is_made_once_for_all_variants(fake):
    """As the extension is: by a stamp beside it, and it goes with the last variant of its mode."""
    folders = [f"tools/executor/{name}" for name in ("common", "amdgcn")]
    for folder in folders:
        shutil.copytree(ROOT / folder, fake.root / folder)
    library = fake.root / "build/executor-release/libamdgcn.so"
    here, there = ["receipt=fp32_min", "target=cpu-avx2"], ["receipt=fp32_min", "target=cpu-generic"]

    def made(*arguments):
        return [line for line in done(fake.built(*arguments, "executor")) if "executor" in line]

    units = sum(-(-len(list((fake.root / folder).glob("*.cpp"))) // MOST) for folder in folders)
    assert len(made(*here)) == 1 + 2 * units  # each written and compiled, and a link
    assert made(*here) == []
    assert made(*there) == []
    fake.append("tools/executor/amdgcn/memory.h", "// changed\n")
    assert made(*there)[-1] == "link    build/executor-release/libamdgcn.so"
    assert made(*here) == []  # although its own objects are old
    first = library.read_bytes()
    library.write_bytes(b"damaged")
    assert made(*here)[-1] == "link    build/executor-release/libamdgcn.so"
    assert library.read_bytes() == first
    fake.built("-c", *here)
    assert library.exists()
    fake.built("-c", *there)
    assert not (fake.root / "build").exists()


def test_a_build_looks_for_no_tools_but_its_own(fake):
    """SCons would ask compilers, linkers and TeX for their versions with every start, which nothing needs: 50 ms."""
    said = fake.scons("-n", *BUILD, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "SCons.Environment" in said.error
    assert "SCons.Tool.cc" not in said.error
