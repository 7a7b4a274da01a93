# SPDX-License-Identifier: MIT
"""Vendored trees built by make, and by CMake inside another project: the same instances, the same isolation."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from build_support.programs import read_programs
from codegen.emit.soname import abi_version
from codegen.out import sbom
from tests.consumers.conftest import ROOT, Vendored, run, shown
from tests.declared import functions
from tests.elf import left_to_the_loader

pytestmark = pytest.mark.day
# Through the C ABI alone, on a library with fp32 of every family.
PROGRAMS = ("attention_c", "attention_cpp", "bad_input", "threads", "fork", "kv_bad_input")


# Days of a build, not of a test, as its tests share it: that of make takes a minute and a half.
MAKE, LLVM = pytest.mark.turns(3, 4), pytest.mark.turns(1, 4)
CMAKE = [pytest.mark.needs("cmake", "ninja"), MAKE]


@pytest.fixture(
    params=[pytest.param("make", marks=MAKE), pytest.param("llvm", marks=LLVM), pytest.param("cmake", marks=CMAKE)]
)
def vendored(request: pytest.FixtureRequest) -> Vendored:
    return request.getfixturevalue(f"made_by_{request.param}")


def test_the_instances_are_those_of_the_listing(vendored: Vendored) -> None:
    library = ctypes.CDLL(str(vendored.library))
    library.tilekiln_instance_name.restype = ctypes.c_char_p
    library.tilekiln_instance_name.argtypes = [ctypes.c_int64]
    library.tilekiln_instance_count.restype = ctypes.c_int64
    names = [library.tilekiln_instance_name(at).decode() for at in range(library.tilekiln_instance_count())]
    assert names == vendored.listed()
    manifest = json.loads(vendored.library.with_suffix(".json").read_bytes())
    assert [row[0] for row in manifest["instances"]["rows"]] == names


def test_it_is_what_its_manifest_claims(vendored: Vendored) -> None:
    run(sys.executable, "-m", "codegen", "verify", vendored.library, cwd=ROOT)


def test_instruction_sets_are_apart(vendored: Vendored) -> None:
    """Design decision 5: engine objects show their engines and hold no group that a link could merge."""
    assert [engine.stem for engine in vendored.engines] == ["engine_cpu_avx2", "engine_cpu_generic"]
    seen: set[str] = set()
    for engine in vendored.engines:
        symbols = set(shown(engine, "--defined-only"))
        assert symbols
        assert all(re.fullmatch(f"tilekiln_{engine.stem.removeprefix('engine_')}_fmha_\\w+", name) for name in symbols)
        assert not symbols & seen
        seen |= symbols
        assert "COMDAT" not in run("readelf", "-gW", engine)


def test_only_the_c_abi_is_exported(vendored: Vendored) -> None:
    receipt, where = (vendored.options[i].partition("=")[2] for i in (0, 2))
    assert set(shown(vendored.library, "-D", "--defined-only")) == functions(vendored.tree, receipt, where)
    assert not left_to_the_loader(vendored.library)
    dynamic = run("readelf", "-dW", vendored.library)
    soname = f"{vendored.library.name}.{abi_version(str(ROOT))}"
    assert f"soname: [{soname}]" in dynamic
    assert vendored.library.with_name(soname).samefile(vendored.library)
    assert "NODELETE" in dynamic
    assert "RUNPATH" not in dynamic
    # Symbols are stripped for a host that is built for debugging, too.
    assert ".debug_info" not in run("readelf", "-SW", vendored.library)


@MAKE
def test_nothing_is_built_twice(made_by_make: Vendored) -> None:
    assert "Nothing to be done" in run("make", cwd=made_by_make.tree)


@pytest.mark.needs("cmake", "ninja")
@MAKE
def test_nothing_is_built_twice_by_cmake(made_by_cmake: Vendored) -> None:
    assert "no work to do" in run("cmake", "--build", made_by_cmake.library.parents[1])


@pytest.mark.needs("cmake", "ninja")
@MAKE
def test_a_cpp_program_by_add_subdirectory(made_by_cmake: Vendored) -> None:
    assert run(made_by_cmake.library.parents[1] / "attention").splitlines() == made_by_cmake.listed()


@pytest.mark.needs("cmake", "ninja")
def test_two_trees_in_one_project(tmp_path: Path) -> None:
    """Configured only: no target, function or cache entry of one is that of the other."""
    for receipt in ("fp8", "fp32_min"):
        options = (f"receipt={receipt}", "target=cpu-avx2", f"vendor={tmp_path / receipt}")
        run(sys.executable, "-m", "SCons", "-Q", *options, cwd=ROOT)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(two LANGUAGES CXX)\n"
        "add_subdirectory(fp8)\nadd_subdirectory(fp32_min)\n"
        "foreach(receipt fp8 fp32_min)\n"
        "  add_library(uses_${receipt} MODULE use.cpp)\n"
        "  target_link_libraries(uses_${receipt} PRIVATE tilekiln::${receipt})\n"
        "endforeach()\n"
    )
    (tmp_path / "use.cpp").write_text("#include <tilekiln/tilekiln.h>\n")
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build")
    built = run("ninja", "-C", tmp_path / "build", "-t", "targets", "all")
    for receipt in ("fp8", "fp32_min"):
        assert f"{receipt}/libtilekiln_{receipt}.so: " in built


@pytest.mark.parametrize("name", PROGRAMS)
@MAKE
def test_the_tests_of_the_abi(made_by_make: Vendored, tmp_path: Path, name: str) -> None:
    program = next(p for p in read_programs(str(ROOT / "tests/programs.yaml")) if p.name == name)
    assert program.links == "library"
    (source,) = program.sources
    language = ["-x", "c", "-std=c11"] if source.endswith(".c") else ["-std=c++20"]
    includes = [f"-I{made_by_make.tree / 'include'}", f"-I{ROOT / 'tests'}"]
    libraries = [f"-L{made_by_make.library.parent}", "-ltilekiln_flash", f"-Wl,-rpath,{made_by_make.library.parent}"]
    flags = ["-O1", *program.flags, *(f"-D{define}" for define in program.defines)]
    compiler = os.environ.get("CXX", "g++")
    run(
        compiler,
        *language,
        *flags,
        *includes,
        ROOT / source,
        "-x",
        "none",
        *libraries,
        "-lm",
        "-pthread",
        "-o",
        tmp_path / name,
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TILEKILN_", "OMP_"))}
    done = subprocess.run([tmp_path / name], capture_output=True, text=True, check=False, env=clean, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " checks, 0 failed" in done.stderr


def installed_files(prefix: Path) -> set[str]:
    """But for ledgers and bills of materials, which builds of vendored sources do not write."""
    listed = (str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
    return {path for path in listed if "tilekiln/installed" not in path and not path.endswith(sbom.NAME)}


CLUSTERS = {f"share/modulefiles/tilekiln/{(ROOT / 'VERSION').read_text().strip()}"}
"""Of an installation alone: a vendored tree is a part of another package."""


@MAKE
def test_make_installs_what_scons_installs(made_by_make: Vendored, installed: Path, tmp_path: Path) -> None:
    run("make", "install", f"DESTDIR={tmp_path}", "PREFIX=/opt/tk", cwd=made_by_make.tree)
    here = installed_files(tmp_path / "opt/tk")
    assert here == {path for path in installed_files(installed) if "fp32_min" not in path} - CLUSTERS
    for path in here - {"lib/libtilekiln_flash.so", "lib/libtilekiln_flash.so.2", "lib/libtilekiln_flash.json"}:
        assert (tmp_path / "opt/tk" / path).read_bytes() == (installed / path).read_bytes()
    run("make", "uninstall", f"DESTDIR={tmp_path}", "PREFIX=/opt/tk", cwd=made_by_make.tree)
    assert not [path for path in installed_files(tmp_path / "opt/tk") if "flash" in path]


@pytest.mark.needs("cmake", "ninja")
@MAKE
def test_cmake_installs_what_scons_installs(made_by_cmake: Vendored, installed: Path, tmp_path: Path) -> None:
    run("cmake", "--install", made_by_cmake.library.parents[1], "--prefix", tmp_path / "prefix")
    here = installed_files(tmp_path / "prefix")
    assert here == {path for path in installed_files(installed) if "flash" not in path} - CLUSTERS


@MAKE
def test_the_facade_calls_it(made_by_make: Vendored, binding: Path) -> None:
    """The demo ends with 1 when a result is above its bound."""
    said = run(
        sys.executable, "-m", "tilekiln.cli.demo", made_by_make.library, cwd=ROOT, PYTHONPATH=str(ROOT / "python")
    )
    assert "fp32, causal" in said


@pytest.mark.torch
@pytest.mark.needs("cmake", "ninja")
@MAKE
def test_a_pytorch_extension(made_by_make: Vendored, tmp_path: Path) -> None:
    use = Path(__file__).parent / "torch_extension/use.py"
    said = run(sys.executable, use, made_by_make.tree, made_by_make.library.parent, tmp_path, cwd=tmp_path)
    assert said.splitlines()[-1].startswith("k: ")


SUBNORMALS = """
import ctypes, sys
import numpy as np
ctypes.CDLL(sys.argv[1])
print(float(np.full(4, 1e-40, np.float32)[0] * np.float32(1)))
"""


def test_what_loads_it_keeps_its_subnormals(vendored: Vendored) -> None:
    """Whatever fast mathematics the host had, at the link too: start code would set the processor's flags."""
    assert float(run(sys.executable, "-c", SUBNORMALS, vendored.library)) > 0
