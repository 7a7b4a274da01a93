# SPDX-License-Identifier: MIT
"""Parts of builds for macOS that need neither macOS nor zig; tests/kernels/test_zig.py builds whole libraries."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from build_support import mach_o, toolchain
from build_support.platform_tag import platform_tag
from build_support.toolchain import Toolchain, ToolchainError
from tests.conftest import ROOT
from tests.programs import need
from tools import zig_macos

ARM64, RISCV = 0x0100000C, 0x01000018
SYSTEM = "/usr/lib/libSystem.B.dylib"


def image(path: Path, libraries: Iterable[str] = (SYSTEM,), oldest: int = 11 << 16, cpu: int = ARM64) -> str:
    """A file with the load commands of a library, and nothing else."""
    commands = [struct.pack("<6I", mach_o.BUILD_VERSION, 24, mach_o.MACOS, oldest, oldest, 0)] if oldest else []
    for name in libraries:
        text = name.encode() + b"\0" * (8 - len(name) % 8)
        commands.append(struct.pack("<6I", mach_o.LOADS[0], 24 + len(text), 24, 0, 0, 0) + text)
    body = b"".join(commands)
    path.write_bytes(struct.pack("<8I", mach_o.MAGIC, cpu, 0, 6, len(commands), len(body), 0, 0) + body)
    return str(path)


def test_tags_of_wheels(tmp_path: Path) -> None:
    """The newest of what a wheel's binaries need; of years' versions the year alone."""
    files = [image(tmp_path / "a"), image(tmp_path / "b", oldest=13 << 16 | 3 << 8), image(tmp_path / "c")]
    assert platform_tag([files[0], files[2]]) == "macosx_11_0_arm64"
    assert platform_tag(files) == "macosx_13_0_arm64"
    assert platform_tag([image(tmp_path / "d", oldest=10 << 16 | 15 << 8, cpu=0x01000007)]) == "macosx_10_15_x86_64"


def test_binaries_that_no_wheel_may_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs @rpath/libc\+\+\.1\.dylib, which macOS does not bring: link it stat"):
        platform_tag([image(tmp_path / "a", [SYSTEM, "@rpath/libc++.1.dylib"])])
    for strange in ({"cpu": RISCV}, {"oldest": 0}):
        with pytest.raises(ValueError, match="of a system or processor that is not macOS on x86-64 or arm64"):
            platform_tag([image(tmp_path / "b", **strange)])


SOURCE = """
template <class T> __attribute__((noinline, visibility("default"))) T shared(T x) { return x * 3; }
namespace kernels { inline namespace TARGET {
__attribute__((noinline)) int own(int x) { return shared(x) + 1; }
} }
#define NAME(target) tilekiln_##target##_engine
#define ENTRY(target) NAME(target)
extern "C" int ENTRY(TARGET)(int x) { return kernels::own(x); }
"""


@pytest.mark.needs("clang++-22", "llvm-objcopy-22", "llvm-ar-22", "llvm-nm-22")
def test_what_names_no_target_is_its_objects_own(tmp_path: Path) -> None:
    """A template that two targets have both stays two; engines and functions of a target can be called from others."""
    tools = Toolchain("clang++-22", "clang++", "22.1.0", "", "release", machine="aarch64", suffix="-22", system="macos")
    (tmp_path / "engine.cpp").write_text(SOURCE)
    shown = {}
    for word in ("cpu_neon", "cpu_neonbf16"):
        made, joined = tmp_path / f"{word}.o", tmp_path / f"{word}.a"
        compiler = ["clang++-22", "--target=arm64-apple-macos11", "-fvisibility=hidden", f"-DTARGET={word}", "-c"]
        commands = [[*compiler, str(tmp_path / "engine.cpp"), "-o", str(made)], *tools.hide(word, str(made))]
        for command in (*commands, *tools.join(str(made), str(joined), [f"tilekiln_{word}_engine"], "")):
            subprocess.run(command, check=True)
        listed = ["llvm-nm-22", "--defined-only", joined]
        said = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        shown[word] = {line.split()[2]: line.split()[1] for line in said.splitlines() if len(line.split()) == 3}
        assert shown[word]["__Z6sharedIiET_S0_"] == "t"
        assert shown[word][f"_tilekiln_{word}_engine"] == "T"
    visible = [{name for name, kind in of.items() if kind.isupper()} for of in shown.values()]
    assert len(visible[0]) == len(visible[1]) == 2
    assert visible[0].isdisjoint(visible[1])


def test_words_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "inputs").write_text("a.o\nb.o\n")
    words = ["-O2", "-g0", "-x", "c", "a.c", "-shared", "-o", "lib.dylib", f"@{tmp_path}/inputs", "-pthread", "-ldl"]
    linker, compiler, sources = zig_macos.words_of_link([*words, "-Wl,-install_name,@rpath/lib.dylib", "-Iinclude"])
    assert linker == ["-dylib", "-o", "lib.dylib", "a.o", "b.o", "-install_name", "@rpath/lib.dylib"]
    assert compiler == ["-O2", "-g0", "-x", "c", "-pthread", "-ldl", "-Iinclude"]
    assert sources == ["a.c"]


COMPILER = """#!/bin/sh
case $1 in
  --version) echo "clang version 22.1.8" ;;
  -dumpmachine) echo arm64-apple-macos11 ;;
esac
"""


def test_what_cannot_be_built_for_macos_is_refused(tmp_path: Path) -> None:
    need("llvm-objcopy-22")
    compiler = tmp_path / "clang++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "SCons", "-Q", "-n", "receipt=fp32_min", f"cxx={compiler}", "variant=nowhere"]
    said = subprocess.run([*command, "target=cuda-sm80"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert f"target=cuda-sm80 is of cuda devices, and {compiler} compiles for macOS, which has none." in said.stderr
    said = subprocess.run([*command, "target=all", "hf-kernels"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert f"and {compiler} compiles for aarch64-macos. Build it on such a machine, or use the target wh" in said.stderr
    said = subprocess.run([*command, "target=all"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "build/nowhere-aarch64-macos-release/lib/libtilekiln_fp32_min.dylib" in said.stdout


def test_tools_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"(?s)llvm-objcopy and llvm-ar are not on PATH.*apt install llvm-22"):
        toolchain.llvm_suffix()


SYSCTL = """
#include <cstddef>
#include <string.h>
inline int sysctlbyname(const char* name, void* to, size_t*, void*, size_t) {
  const char* const known[] = {%s};
  for (const char* one : known)
    if (strcmp(name, one) == 0) return *static_cast<int*>(to) = 1, 0;
  return -1;
}
"""
ASKED = """
#include <stdio.h>
#include "kernels/backends/cpu/aarch64.h"
using namespace tilekiln::aarch64;
int main() { printf("%d %d %d %d", has_asimdhp(), has_asimddp(), has_i8mm(), has_bf16()); }
"""


@pytest.mark.parametrize(
    ("known", "features"),
    [
        ((), "0 0 0 0"),
        (("hw.optional.neon_fp16",), "1 1 0 0"),  # an M1 under macOS 11
        (("hw.optional.arm.FEAT_FP16", "hw.optional.arm.FEAT_DotProd"), "1 1 0 0"),  # and under newer ones
        (tuple(f"hw.optional.arm.FEAT_{one}" for one in ("FP16", "DotProd", "I8MM", "BF16")), "1 1 1 1"),  # an M2
    ],
)
def test_features_that_macos_tells(tmp_path: Path, known: tuple[str, ...], features: str) -> None:
    """The header as for macOS, over a system call that answers as macOS would."""
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/sysctl.h").write_text(SYSCTL % ", ".join(f'"{name}"' for name in ("", *known)))
    (tmp_path / "asked.cpp").write_text(ASKED)
    command = ["g++", "-std=c++20", "-U__linux__", "-D__APPLE__", f"-I{tmp_path}", f"-I{ROOT}"]
    subprocess.run([*command, tmp_path / "asked.cpp", "-o", tmp_path / "asked"], check=True)
    assert subprocess.run([tmp_path / "asked"], capture_output=True, text=True, check=True).stdout == features
