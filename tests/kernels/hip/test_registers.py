# SPDX-License-Identifier: MIT
"""Registers, memory and main loops of HIP's kernels, but the forward's, against kernels/backends/hip/ceilings.yaml.

Products, caches and the backward have bounds of their main loop, too.
`python -m tests.kernels.hip.test_registers KERNEL...` prints what is measured of a kernel, for each architecture and
dtype, and writes its ceilings; without a name of all.
Emulated (functional), never run on AMD silicon.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_support import bounds
from build_support.toolchains import hip
from codegen.emit import kernels
from codegen.schema.tree import tree
from tests.kernels.hip import loops
from tests.kernels.hip.forward import ROOT
from tools.executor.amdgcn import gate
from tools.executor.amdgcn.code_object import ARCHITECTURES, CodeObject, llvm_tool, wave_size

RECORD = ROOT / "kernels" / "backends" / "hip" / "ceilings.yaml"
HEAD = """\
# Ceilings of the kernels of HIP targets but the forward's (kernels/attention/fmha_fwd/hip/gate.yaml): by architecture,
# over all dtypes, [VGPRs, bytes of LDS] at most and, of those with a main loop, the shares of the matrix peak
# [serial, overlapped] at least (tools/executor/amdgcn/gate.py): for 32 along k of a product, a tile of keys in one page
# of a cache, 32 queries of the backward, where parts of the columns count their scores again. No kernel spills.
# Emulated (functional), never run on AMD silicon. `exceptions`: reason -> what may miss 75 % overlapped at head dim 128
# and above. Measured, printed and written by python -m tests.kernels.hip.test_registers.
"""
MOST, LEAST = ("vgprs", "lds_bytes"), ("serial", "overlapped")


def listed() -> dict[str, tuple[str, kernels.Kernel]]:
    """Architecture and kernel, by name."""
    return {
        kernel.name: (architecture, kernel)
        for architecture in ARCHITECTURES
        for kernel in kernels.of_target(tree(), f"hip-{architecture}")
        if kernel.file.family != "fmha_fwd"
    }


LISTED = listed()


def compiled(architecture: str, kernel: kernels.Kernel, place: Path, tree: Path | None = None) -> Path:
    """The code object. tree: a folder with changed copies of the tree's files, which may leave things unused."""
    made = place / f"{kernel.name}{'-changed' if tree else ''}.hsaco"
    source = tree and tree / kernel.file.source
    launcher = os.environ.get("TILEKILN_TEST_LAUNCHER", "").split()
    words = hip.flags(
        str(source if source and source.exists() else kernel.file.source),
        [f"--offload-arch={architecture}"],
        kernel.dtype,
        kernel.file.define,
        [*([str(tree)] if tree else []), str(ROOT)],
    )
    if tree:
        words.remove("-Werror")
    subprocess.run([*launcher, hip.find_clang(), *words, "-o", str(made)], cwd=ROOT, check=True)
    return made


def notes(path: Path) -> dict[str, int]:
    """As gate.notes, the most of an object's kernels."""
    text = subprocess.run(
        [llvm_tool("llvm-readelf"), "--notes", str(path)], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, int] = {}
    for name, value in re.findall(r"\.(\w+):\s+(\d+)$", text, re.M):
        found[name] = max(found.get(name, 0), int(value))
    return found


LOOPS = {"gemm_": loops.product, "fmha_bwd_": loops.backward, "fmha_cache_": loops.cache}
"""Bounds of a main loop, by the beginning of the kernel's name. The limit of others is memory."""


def hdim_of(kernel: kernels.Kernel) -> int:
    define = kernel.file.define
    return define.get("HDIM", define.get("HDIM_Q", 128))  # a product's bound counts as that of 128


def measured(name: str, place: Path) -> dict[str, Any]:
    architecture, kernel = LISTED[name]
    path = compiled(architecture, kernel, place)
    said = notes(path)
    waves = said["max_flat_workgroup_size"] // wave_size(architecture)
    lds = said["group_segment_fixed_size"]
    loop = next((loop for begin, loop in LOOPS.items() if name.startswith(begin)), None)
    if loop is not None:
        waves = kernel.file.define.get("WAVES", waves)  # an object's other kernels may have more
        mix = loop(CodeObject(path, architecture), kernel.file.define, waves)
        return gate.figures(architecture, mix, said, waves).rounded() | {"spills": said["private_segment_fixed_size"]}
    return {
        "vgprs": said["vgpr_count"],
        "spills": said["private_segment_fixed_size"],  # bytes of memory; AGPRs hold what else is counted as spilled
        "lds_bytes": lds,
        "waves_per_simd": gate.waves_per_simd(architecture, said["vgpr_count"], lds, waves),
    }


def key(name: str) -> tuple[str, str]:
    """Kernel and architecture of "fmha_bwd_gfx942_d64-bf16": ("fmha_bwd_d64", "gfx942")."""
    architecture = LISTED[name][0]
    return name.rpartition("-")[0].replace(f"_{architecture}", "", 1), architecture


def faults(now: dict[str, Any], ceiling: list[float]) -> list[str]:
    """Reasons why a kernel may not pass."""
    found = [f"spills: was {now['spills']}, must be 0"] if now["spills"] else []
    for name, bound in zip((*MOST, *LEAST), ceiling, strict=False):
        value, least = now[name], name in LEAST
        worse = value < bound * (1 - gate.WORSE) if least else value > bound * (1 + gate.WORSE)
        if worse:
            said = f"must be {'at least' if least else 'at most'} {bound} within 2 %"
            found.append(f"{name}: was {value}, {said}")
    return found


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(RECORD.read_text())
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", LISTED)
def test_registers(name, tmp_path):
    kernel, architecture = key(name)
    found = faults(measured(name, tmp_path), recorded()["kernels"][kernel][architecture])
    assert not found, "\n".join(found)


def test_every_kernel_has_ceilings():
    record = recorded()
    has = {(kernel, architecture) for kernel, of in record["kernels"].items() for architecture in of}
    assert has == {key(name) for name in LISTED}
    loops_of = {key(name) for name in LISTED if name.startswith(tuple(LOOPS))}
    assert {one for one in has if len(record["kernels"][one[0]][one[1]]) == 4} == loops_of
    excepted = {tuple(one.split()) for names in record["exceptions"].values() for one in names}
    wide = {key(name) for name in LISTED if hdim_of(LISTED[name][1]) >= 128}
    short = {one for one in loops_of if record["kernels"][one[0]][one[1]][3] < gate.LEAST_OVERLAPPED}
    assert short & wide == excepted
    assert all(len(reason) > 20 for reason in record["exceptions"])


def test_the_report_of_a_build_finds_them():
    """Every kernel with a main loop is drawn, by the name of its object."""
    looped = [name for name in LISTED if name.startswith(tuple(LOOPS))]
    objects = [
        {"path": f"build/obj/engine/hip-{LISTED[name][0]}/{name}.o", "kind": "engine"}
        for name in [*looped, "softmax_gfx942-bf16"]
    ]
    drawn = {one["kernel"]: one for of in bounds.of_objects(str(ROOT), objects) for one in of["kernels"]}
    assert list(drawn) == looped
    assert drawn["fmha_bwd_gfx942_d64-bf16"]["vgprs"] == recorded()["kernels"]["fmha_bwd_d64"]["gfx942"][0]
    assert all(bounds.plot(of)["lines"] for of in bounds.of_objects(str(ROOT), objects))


def test_what_is_refused():
    good = {"vgprs": 100, "spills": 0, "lds_bytes": 20480, "serial": 0.5, "overlapped": 1.0}
    ceiling = [100, 20480, 0.5, 1.0]
    assert faults({**good, "vgprs": 102}, ceiling) == []
    assert faults({**good, "vgprs": 50, "serial": 0.9}, ceiling[:2]) == []
    for worse in ({"vgprs": 103}, {"spills": 1}, {"lds_bytes": 21000}, {"serial": 0.48}, {"overlapped": 0.97}):
        assert len(faults({**good, **worse}, ceiling)) == 1, worse


def text(kernels: dict[str, dict[str, list[float]]], exceptions: dict[str, list[str]]) -> str:
    """The file: a line a kernel."""
    lines = [HEAD, "exceptions:\n"]
    for reason, names in exceptions.items():
        lines += [f"  {reason}:\n", f"    [{', '.join(names)}]\n"]
    lines.append("kernels:\n")
    for kernel, of in kernels.items():
        said = ", ".join(f"{architecture}: {ceiling}" for architecture, ceiling in of.items())
        lines.append(f"  {kernel}: {{{said}}}\n")
    return "".join(lines)


def write(kernels: list[str]) -> None:
    """Measures those anew, or all; what a kernel's dtypes have between them are its ceilings."""
    record = recorded()
    unknown = sorted(set(kernels) - {key(name)[0] for name in LISTED})
    if unknown:
        raise SystemExit(f"KERNEL: was {', '.join(unknown)}, must be of {', '.join(record['kernels'])}")
    made: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for name in LISTED:
            kernel, architecture = key(name)
            own = made.setdefault(kernel, {})
            if kernels and kernel not in kernels:
                own[architecture] = record["kernels"][kernel][architecture]
                continue
            figures = measured(name, Path(place))
            sys.stdout.write(f"{name}: {figures}\n")
            now = [figures[one] for one in (*MOST, *LEAST) if one in figures]
            before = own.get(architecture, now)
            own[architecture] = [*map(max, now[:2], before[:2]), *map(min, now[2:], before[2:])]
    RECORD.write_text(text(made, record["exceptions"]))


if __name__ == "__main__":
    write(sys.argv[1:])
