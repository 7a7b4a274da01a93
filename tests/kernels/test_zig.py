# SPDX-License-Identifier: MIT
"""Libraries for other systems by zig: musl on both machines, an old glibc, and macOS, which nothing here can run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from build_support import mach_o, platform_tag
from codegen.schema import cpu
from codegen.schema.tree import tree
from tests.conftest import ROOT, Scons
from tests.kernels.test_aarch64_families import CXX, emulated
from tests.programs import need
from tools import zig_cxx
from tools.aarch64_python import EMULATOR, PLACE

TARGETS = {"x86_64": ("cpu-avx2", "cpu-generic"), "aarch64": ("cpu-neon", "cpu-generic")}
SYSTEMS = ("x86_64-linux-musl", "aarch64-linux-musl", "aarch64-linux-gnu.2.28", "aarch64-macos")
NM, OBJDUMP = "llvm-nm-22", "llvm-objdump-22"


def loader(machine: str) -> list[str]:
    """The command before a program of musl: Debian's, installed, or unpacked for the other machine."""
    name = f"lib/ld-musl-{machine}.so.1"
    return [f"/{name}"] if machine == "x86_64" else [EMULATOR, str(PLACE / "root" / name)]


def isas(machine: str) -> list[str]:
    """Those of TARGETS that the emulator's processor has, or this machine's."""
    targets = [tree().target(name) for name in TARGETS[machine]]
    return [one.isa for one in targets if machine == "aarch64" or cpu.has(one.arch, one.cpuid)]


def exports(library: Path) -> set[str]:
    said = subprocess.run([NM, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in said.splitlines()}


def musl(scons: Scons, machine: str, receipt: str) -> None:
    """Calls from several threads, in musl's own loader; nothing but tilekiln_ is exported."""
    need("zig", NM, *(["ld-musl-config"] if machine == "x86_64" else [EMULATOR, "python of aarch64"]))
    compiler = zig_cxx.write(f"{machine}-linux-musl").relative_to(ROOT)
    place = f"build/zig-{machine}-musl-release"
    program = f"{place}/bin/{receipt}/threads"
    scons(f"receipt={receipt}", f"target={','.join(TARGETS[machine])}", f"cxx={compiler}", "variant=zig", program)
    for isa in isas(machine):  # one that the library thinks is missing fails every call
        inherited = {**os.environ, "TILEKILN_ISA": isa}
        command = [*loader(machine), program]
        done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^\d+ checks, 0 failed$", done.stderr + done.stdout, re.MULTILINE)
    library = ROOT / place / f"lib/libtilekiln_{receipt}.so"
    assert {name for name in exports(library) if not name.startswith("tilekiln_")} == set()
    assert platform_tag.platform_tag([str(library)]) == f"musllinux_1_2_{machine}"


TOLD = """
import json, sys, numpy as np, tilekiln as tk
x = np.ones((1, 3, 1, 64), np.float32)
library = tk.Library(sys.argv[1])
print(json.dumps([library.isa, float(library.fmha_fwd(x, x, x).sum()), tk.__file__]))
"""


def old_glibc(scons: Scons, place: Path) -> None:
    """Wheels of glibc 2.28 or older, as their symbols say; imported by the Python for AArch64."""
    need("zig", "python of aarch64")
    compiler = zig_cxx.write("aarch64-linux-gnu.2.28").relative_to(ROOT)
    folder = ROOT / "build/zig-aarch64-release"
    scons("receipt=fp32_min", "target=cpu-neon", f"cxx={compiler}", "variant=zig", "wheel")
    named = [re.search(r"manylinux_2_(\d+)_aarch64\.whl$", path.name) for path in (folder / "wheel").iterdir()]
    assert len(found := [int(one[1]) for one in named if one]) == 2
    assert max(found) <= 28
    for wheel in (folder / "wheel").glob("*_aarch64.whl"):
        zipfile.ZipFile(wheel).extractall(place)
        audited(wheel)
    library = place / "tilekiln_fp32_min/libtilekiln_fp32_min.so"
    said = emulated("neoverse-n1", "-c", TOLD, str(library), PYTHONPATH=str(place))
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == ["neon", 192.0, str(place / "tilekiln/__init__.py")]


def audited(wheel: Path) -> None:
    """auditwheel finds manylinux_2_28_aarch64 met: by the wheel's own tag or the next version that it knows."""
    need("auditwheel")
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    said = " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    found = re.search(r'is consistent with the following platform tag: "manylinux_2_(\d+)_aarch64"', said)
    assert found, said
    own = re.search(r"-manylinux_2_(\d+)_aarch64\.whl$", wheel.name)
    assert own
    assert int(own[1]) <= int(found[1]) <= 28


def macos(scons: Scons) -> None:
    """For Macs of Apple's processors: what can be known of a library without running it, and its wheels."""
    need("zig", NM, OBJDUMP, "ld64.lld-22", "llvm-objcopy-22", "llvm-ar-22")
    compiler = zig_cxx.write("aarch64-macos").relative_to(ROOT)
    folder = ROOT / "build/zig-aarch64-macos-release"
    targets = ("cpu-neonbf16", "cpu-neon")  # generic code is compiled by zig for musl
    scons("receipt=fp32_min", f"target={','.join(targets)}", f"cxx={compiler}", "variant=zig", "wheel")
    library, extension = "libtilekiln_fp32_min.dylib", "_binding.abi3.so"
    held = {}
    for wheel in (folder / "wheel").glob("*-macosx_11_0_arm64.whl"):
        archive = zipfile.ZipFile(wheel)
        described = next(name for name in archive.namelist() if name.endswith("/WHEEL"))
        assert f"Tag: {wheel.stem.split('-', 2)[2]}\n" in archive.read(described).decode()
        held |= {Path(name).name: archive.read(name) for name in archive.namelist()}
    assert held[library] == (folder / "lib" / library).read_bytes()
    assert "libtilekiln_fp32_min.json" in held
    system = ("/usr/lib/libSystem.B.dylib",)
    for file in (folder / "lib" / library, ROOT / "build/python-aarch64-macos-release" / extension):
        assert held[file.name] == file.read_bytes()
        assert mach_o.read(str(file)) == mach_o.Image("arm64", (11, 0), system)
        assert "LC_CODE_SIGNATURE" in told(OBJDUMP, "--macho", "--private-headers", file)  # else no Mac loads it
    assert told(OBJDUMP, "--macho", "--dylib-id", folder / "lib" / library).split()[-1] == f"@rpath/{library}"
    shown = told(NM, "-g", "--defined-only", folder / "lib" / library).split()[2::3]
    assert {name for name in shown if not name.startswith("_tilekiln_")} == set()
    assert "_tilekiln_fmha_fwd" in shown
    made = ROOT / "build/python-aarch64-macos-release" / extension
    assert told(NM, "-g", "--defined-only", made).split()[2::3] == ["_PyInit__binding"]
    for target in targets:
        word = target.replace("-", "_")
        for object_ in (folder / "obj/engine" / target).glob("*.o"):
            shown = told(NM, "-g", "--defined-only", object_).split()[2::3]
            assert all(word in name for name in shown), (object_, shown)


def told(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "system", [pytest.param(one, marks=pytest.mark.turns(2 * at + 1, 8)) for at, one in enumerate(SYSTEMS)]
)
def test_builds(scons: Scons, request: pytest.FixtureRequest, tmp_path: Path, system: str) -> None:
    """Of the smallest receipt; with --full those of musl of `flash` and all targets of the machine too."""
    if system == "aarch64-macos":
        macos(scons)
    elif system.endswith("musl"):
        musl(scons, system.partition("-")[0], "flash" if request.config.option.full else "fp32_min")
    else:
        old_glibc(scons, tmp_path)


@pytest.mark.day
@pytest.mark.parametrize("page", ["aarch64", "zig"])
def test_builds_of_the_pages_are_planned(page: str) -> None:
    """Every line that builds, up to its first command, of the smallest receipt."""
    need("zig", CXX)
    text = (ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8")
    lines = re.findall(
        r"^    tools/dev (?:--with zig )?scons receipt=flash (.*cxx=(?:build/zig/)?(\S+).*)$", text, re.M
    )
    assert len(lines) == text.count(" scons receipt=flash ") >= 3
    for words, compiler in lines:
        if compiler != CXX and "macos" not in compiler:
            zig_cxx.write(compiler)
        if "vendor=" not in words and "macos" not in compiler:  # other tests run these whole
            alone = [*words.split(), "variant=planned"]  # what another test has built is no plan any more
            command = [sys.executable, "-m", "SCons", "-Q", "receipt=fp32_min", *alone, "-n"]
            said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert said.returncode == 0, said.stdout + said.stderr
            assert "link    build/" in said.stdout


@pytest.mark.parametrize("target", ["riscv64-linux-musl", "aarch64-macos.12", "x86_64-linux-gnu.3"])
def test_a_target_that_is_none(target: str) -> None:
    said = subprocess.run(
        [sys.executable, "tools/zig_cxx.py", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    listed = "MACHINE-linux-musl, MACHINE-linux-gnu, MACHINE-linux-gnu.2.N or MACHINE-macos"
    assert said.stderr.startswith(f"{target}: must be {listed}")
