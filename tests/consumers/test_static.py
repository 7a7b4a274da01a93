# SPDX-License-Identifier: MIT
"""Two receipts in one program by their static libraries: each calls itself, and nothing of one serves the other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Scons, _variant
from tests.consumers.conftest import run
from tests.programs import need

RECEIPTS = ("fp32_min", "norm_default")
WHERE = "family=fmha_fwd,softmax"

ATTENTION = """
#include <tilekiln/static/fp32_min.h>

int attention(float* out, const char** receipt) {
  float x[3][64];
  for (int i = 0; i < 3 * 64; ++i) x[i / 64][i % 64] = 1;
  tilekiln_tensor view = {.data = x, .dtype = TILEKILN_FP32, .ndim = 4, .device_type = TILEKILN_CPU,
                          .shape = {1, 3, 1, 64}, .stride = {192, 64, 64, 1}};
  tilekiln_tensor result = view;
  result.data = out;
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = args.k = args.v = &view, args.out = &result;
  *receipt = tilekiln_receipt();
  return tilekiln_fmha_fwd(&args);
}
"""
MAIN = """
#include <stdio.h>
#include <tilekiln/static/norm_default.h>

int attention(float* out, const char** receipt);

int main(void) {
  float out[3 * 64] = {0}, x[2][64] = {{0}}, sum = 0;
  const char* receipt = "";
  const int attended = attention(out, &receipt);
  for (int i = 0; i < 3 * 64; ++i) sum += out[i];
  printf("%d %s %g\\n", attended, receipt, sum);
  tilekiln_tensor view = {.data = x, .dtype = TILEKILN_FP32, .ndim = 2, .device_type = TILEKILN_CPU,
                          .shape = {2, 64}, .stride = {64, 1}};
  tilekiln_softmax_args args = tilekiln_softmax_defaults();
  args.x = args.y = &view;
  const int status = tilekiln_softmax(&args);
  printf("%d %s %g\\n", status, tilekiln_receipt(), x[0][0] * 64);
  args.x = NULL;
  const int refused = tilekiln_softmax(&args) != 0;
  printf("%d %s\\n", refused, tilekiln_last_error());
  return 0;
}
"""


@pytest.fixture(scope="module")
def prefix(scons: Scons, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("static") / "prefix"
    receipts = f"receipt={','.join(RECEIPTS)}"
    scons(receipts, f"where={WHERE}", "static=yes", "install", f"prefix={place}")
    return place


@pytest.mark.day
def test_two_receipts_in_one_program(prefix: Path, tmp_path: Path) -> None:
    objects = []
    for name, text in {"attention": ATTENTION, "main": MAIN}.items():
        (tmp_path / f"{name}.c").write_text(text)
        words = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include"]
        objects.append(tmp_path / f"{name}.o")
        run("gcc", *words, "-c", tmp_path / f"{name}.c", "-o", objects[-1])
    program = tmp_path / "program"
    libraries = [prefix / f"lib/libtilekiln_{receipt}.a" for receipt in RECEIPTS]
    run("g++", *objects, *libraries, "-pthread", "-ldl", "-o", program)
    lines = run(program).splitlines()
    assert lines[:2] == ["0 fp32_min 192", "0 norm_default 1"]
    assert lines[2].startswith("1 x: ")
    assert "libtilekiln" not in run("readelf", "-dW", program)


HOST = """
cmake_minimum_required(VERSION 3.16)
project(host LANGUAGES C CXX)
find_package(tilekiln REQUIRED COMPONENTS fp32_min norm_default)
add_executable(program main.c attention.c)
target_link_libraries(program PRIVATE tilekiln::fp32_min_static tilekiln::norm_default_static)
"""


@pytest.mark.day
@pytest.mark.parametrize("by", ["pkg-config", "find_package"])
def test_packages_of_a_prefix_with_blanks(prefix: Path, tmp_path: Path, by: str) -> None:
    moved = Path(shutil.copytree(prefix, tmp_path / "moved into blanks", symlinks=True))
    for name, text in {"attention.c": ATTENTION, "main.c": MAIN, "CMakeLists.txt": HOST}.items():
        (tmp_path / name).write_text(text)
    if by == "pkg-config":
        need("pkg-config")
        packages = " ".join(f"tilekiln-{receipt}-static" for receipt in RECEIPTS)
        shell = (
            f'set -e; eval "gcc -c main.c attention.c $(pkg-config --cflags {packages})"; '
            f'eval "g++ main.o attention.o $(pkg-config --libs {packages}) -o program"'
        )
        run("sh", "-c", shell, cwd=tmp_path, PKG_CONFIG_PATH=str(moved / "lib/pkgconfig"))
    else:
        need("cmake", "ninja")
        run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={moved}")
        run("cmake", "--build", tmp_path / "build")
        shutil.copy(tmp_path / "build/program", tmp_path)
    assert run(tmp_path / "program").splitlines()[:2] == ["0 fp32_min 192", "0 norm_default 1"]


@pytest.mark.day
def test_nothing_else_is_visible(prefix: Path) -> None:
    """Functions of the receipt's name alone; the engines of both libraries have the same names inside."""
    for receipt in RECEIPTS:
        archive = prefix / f"lib/libtilekiln_{receipt}.a"
        shown = run("nm", "-g", "--defined-only", archive).split()[1:]
        names = shown[2::3]
        assert len(names) > 20
        assert all(name.startswith(f"tilekiln_{receipt}_") for name in names), names
        assert run("ar", "t", archive) == f"tilekiln_{receipt}.o\n"
        needed = run("nm", "-u", archive).splitlines()
        assert not [line for line in needed if " U tilekiln_" in line]


@pytest.mark.day
@pytest.mark.needs("clang++-22", "libc++")
@pytest.mark.turns(0)
def test_by_clang_and_its_own_library(scons: Scons, tmp_path: Path) -> None:
    """Nothing of GCC's C++ library is in the shared or the static library, and the program has clang's alone."""
    compiler, standard = "clang++-22", "-stdlib=libc++"
    words = ["target=cpu-generic", "where=family=fmha_fwd", "variant=libcxx", "static=yes"]
    flags = [f"cxx={compiler}", f"cxxflags={standard}", f"ldflags={standard}"]
    scons("receipt=fp32_min", *words, *flags, "install", f"prefix={tmp_path}")
    program = (
        "#include <stdio.h>\nint attention(float*, const char**);\nint main(void) {\n"
        "  float out[192] = {0}, sum = 0;\n  const char* receipt;\n  const int status = attention(out, &receipt);\n"
        '  for (int i = 0; i < 192; ++i) sum += out[i];\n  printf("%d %s %g", status, receipt, sum);\n}\n'
    )
    for name, text in {"attention": ATTENTION, "main": program}.items():
        (tmp_path / f"{name}.c").write_text(text)
        run("gcc", f"-I{tmp_path}/include", "-c", tmp_path / f"{name}.c", "-o", tmp_path / f"{name}.o")
    objects = [tmp_path / f"{name}.o" for name in ("main", "attention")]
    run(compiler, standard, *objects, tmp_path / "lib/libtilekiln_fp32_min.a", "-pthread", "-o", tmp_path / "program")
    assert run(tmp_path / "program") == "0 fp32_min 192"
    for binary in ("program", "lib/libtilekiln_fp32_min.so"):
        needed = run("readelf", "-dW", tmp_path / binary)
        assert ("libc++.so.1" in needed, "libstdc++" in needed) == (True, False)


@pytest.mark.day
def test_a_second_receipt_in_a_source_file_is_an_error(prefix: Path, tmp_path: Path) -> None:
    text = "".join(f"#include <tilekiln/static/{receipt}.h>\n" for receipt in RECEIPTS)
    (tmp_path / "c.c").write_text(text)
    command = ["gcc", "-std=c99", f"-I{prefix}/include", "-fsyntax-only", tmp_path / "c.c"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (
        "static/norm_default.h must come before other headers of Tilekiln: a source file calls one receipt"
        in done.stderr
    )


@pytest.mark.day
def test_same_bytes(prefix: Path) -> None:
    """Of the archive that is built, made anew."""
    built = ROOT / _variant("native", "release", WHERE).library("fp32_min")
    archive = built.with_suffix(".a")
    before = archive.read_bytes()
    archive.unlink()
    command = [sys.executable, "-m", "SCons", "-Q", "receipt=fp32_min", f"where={WHERE}", "static=yes"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert archive.read_bytes() == before


def test_gpus_are_refused() -> None:
    command = [sys.executable, "-m", "SCons", "-Q", "receipt=fp32_min", "target=cuda-sm90a", "static=yes"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "static=yes with target=cuda-sm90a: static libraries hold kernels of CPUs alone. Name targets" in said.stderr
