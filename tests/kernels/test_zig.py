"""Libraries for other systems by zig: for musl, on both machines, and for an old glibc."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from build_support import platform_tag
from codegen.schema import cpu
from codegen.schema.tree import tree
from tests.conftest import ROOT, Scons
from tests.kernels.test_aarch64_families import emulated
from tests.programs import need
from tools import zig_cxx
from tools.aarch64_python import EMULATOR, PLACE

TARGETS = {"x86_64": ("cpu-avx2", "cpu-generic"), "aarch64": ("cpu-neon", "cpu-generic")}
NM = "llvm-nm-22"


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


def musl(scons: Scons, machine: str) -> None:
    """Calls from several threads, in musl's own loader; nothing but tilekiln_ is exported."""
    need("zig", NM, *(["ld-musl-config"] if machine == "x86_64" else [EMULATOR, "python of aarch64"]))
    compiler = zig_cxx.write(f"{machine}-linux-musl").relative_to(ROOT)
    place = f"build/zig-{machine}-musl-release"
    program = f"{place}/bin/fp32_min/threads"
    scons("receipt=fp32_min", f"target={','.join(TARGETS[machine])}", f"cxx={compiler}", "variant=zig", program)
    for isa in isas(machine):  # one that the library thinks is missing fails every call
        inherited = {**os.environ, "TILEKILN_ISA": isa}
        command = [*loader(machine), program]
        done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^\d+ checks, 0 failed$", done.stderr + done.stdout, re.MULTILINE)
    library = ROOT / place / "lib/libtilekiln_fp32_min.so"
    assert {name for name in exports(library) if not name.startswith("tilekiln_")} == set()
    assert platform_tag.platform_tag([str(library)]) == f"musllinux_1_2_{machine}"


TOLD = """
import json, sys, numpy as np, tilekiln as tk
x = np.ones((1, 3, 1, 64), np.float32)
library = tk.Library(sys.argv[1])
print(json.dumps([library.isa, float(library.fmha_fwd(x, x, x).sum())]))
"""


def old_glibc(scons: Scons) -> None:
    """Of glibc 2.28 or older by their names, which their symbols decide; the kernels run in the Python for AArch64."""
    need("zig", "python of aarch64")
    compiler = zig_cxx.write("aarch64-linux-gnu.2.28").relative_to(ROOT)
    folder = ROOT / "build/zig-aarch64-release"
    scons("receipt=fp32_min", "target=cpu-neon", f"cxx={compiler}", "variant=zig", "wheel")
    named = [re.search(r"manylinux_2_(\d+)_aarch64\.whl$", path.name) for path in (folder / "wheel").iterdir()]
    assert len(found := [int(one[1]) for one in named if one]) == 2
    assert max(found) <= 28
    said = emulated("neoverse-n1", "-c", TOLD, str(folder / "lib/libtilekiln_fp32_min.so"))
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == ["neon", 192.0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("system", ["x86_64-linux-musl", "aarch64-linux-musl", "aarch64-linux-gnu.2.28"])
def test_builds(scons: Scons, system: str) -> None:
    musl(scons, system.partition("-")[0]) if system.endswith("musl") else old_glibc(scons)


@pytest.mark.parametrize("target", ["riscv64-linux-musl", "aarch64-macos", "x86_64-linux-gnu.3"])
def test_a_target_that_is_none(target: str) -> None:
    said = subprocess.run(
        [sys.executable, "tools/zig_cxx.py", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert said.stderr.startswith(f"{target}: must be MACHINE-linux-musl, MACHINE-linux-gnu or MACHINE-linux-gnu.2.N")
