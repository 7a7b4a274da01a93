"""Registers and memory of HIP's kernels, but the forward's, against kernels/backends/hip/registers.yaml.

Products, caches and the backward have bounds of their main loop, too.
`python -m tests.kernels.hip.test_registers [NAME...]` writes the record.
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

from build_support.toolchains import hip
from codegen.emit import kernels
from codegen.schema.tree import tree
from tests.kernels.hip import loops
from tests.kernels.hip.forward import ROOT
from tools.executor.amdgcn import gate
from tools.executor.amdgcn.code_object import ARCHITECTURES, CodeObject, llvm_tool, wave_size

RECORD = ROOT / "kernels" / "backends" / "hip" / "registers.yaml"
HEAD = """\
# Resources of the kernels of HIP targets but the forward's (kernels/attention/fmha_fwd/hip/gate.yaml), the
# most of an object's kernels; of main loops cycles of one wave and bounds on the share of the matrix peak
# (tools/executor/amdgcn/gate.py), too: for 32 along k of a product, a tile of keys in one page of a cache, 32 queries
# of the backward, where parts of the columns count their scores again. Emulated (functional), never run on AMD silicon.
# An exception names what may miss 75 % at head dim 128 and above, with the reason. Written by
# python -m tests.kernels.hip.test_registers.
"""


def listed() -> dict[str, tuple[str, kernels.Kernel]]:
    """Architecture and kernel, by name."""
    return {
        kernel.name: (architecture, kernel)
        for architecture in ARCHITECTURES
        for kernel in kernels.of_target(tree(), f"hip-{architecture}")
        if kernel.file.family != "fmha_fwd"
    }


LISTED = listed()


def compiled(architecture: str, kernel: kernels.Kernel, place: Path, source: Path | None = None) -> Path:
    """The code object. source: a changed copy of the kernel's, which may leave things unused."""
    made = place / f"{kernel.name}{'-changed' if source else ''}.hsaco"
    launcher = os.environ.get("TILEKILN_TEST_LAUNCHER", "").split()
    words = hip.flags(
        str(source or kernel.file.source),
        [f"--offload-arch={architecture}"],
        kernel.dtype,
        kernel.file.define,
        [str(ROOT)],
    )
    if source:
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
    return define.get("TK_HDIM", define.get("TK_HDIM_Q", 128))  # a product's bound counts as that of 128


def measured(name: str, place: Path) -> dict[str, Any]:
    architecture, kernel = LISTED[name]
    path = compiled(architecture, kernel, place)
    said = notes(path)
    waves = said["max_flat_workgroup_size"] // wave_size(architecture)
    lds = said["group_segment_fixed_size"]
    loop = next((loop for begin, loop in LOOPS.items() if name.startswith(begin)), None)
    if loop is not None:
        waves = kernel.file.define.get("TK_WAVES", waves)  # an object's other kernels may have more
        mix = loop(CodeObject(path, architecture), kernel.file.define, waves)
        return gate.figures(architecture, mix, said, waves).rounded() | {"spills": said["private_segment_fixed_size"]}
    return {
        "vgprs": said["vgpr_count"],
        "spills": said["private_segment_fixed_size"],  # bytes of memory; AGPRs hold what else is counted as spilled
        "lds_bytes": lds,
        "waves_per_simd": gate.waves_per_simd(architecture, said["vgpr_count"], lds, waves),
    }


def faults(now: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Reasons why a kernel may not pass."""
    found = [f"spills: was {now['spills']}, must be 0"] if now["spills"] else []
    for name, value in now.items():
        was, better_if_more = recorded[name], name in ("serial", "overlapped", "waves_per_simd")
        worse = value < was * (1 - gate.WORSE) if better_if_more else value > was * (1 + gate.WORSE)
        if worse:
            found.append(f"{name}: was {value}, must be {'at least' if better_if_more else 'at most'} {was} within 2 %")
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", LISTED)
def test_registers(name, tmp_path):
    found = faults(measured(name, tmp_path), yaml.safe_load(RECORD.read_text())[name])
    assert not found, "\n".join(found)


def test_every_code_object_has_figures_and_none_spills():
    recorded = yaml.safe_load(RECORD.read_text())
    assert list(recorded) == list(LISTED)
    assert not [name for name, entry in recorded.items() if entry["spills"]]
    for name, entry in recorded.items():
        wide = hdim_of(LISTED[name][1]) >= 128
        enough = entry.get("overlapped", 1) >= gate.LEAST_OVERLAPPED
        assert enough or not wide or entry["exception"]["overlapped"], name
        assert not (enough and "exception" in entry), f"{name} needs no exception"


def test_what_is_refused():
    good = {"vgprs": 100, "spills": 0, "lds_bytes": 20480, "waves_per_simd": 4}
    assert faults({**good, "vgprs": 102}, good) == []
    for worse in ({"vgprs": 103}, {"spills": 1}, {"lds_bytes": 21000}, {"waves_per_simd": 3}):
        assert faults({**good, **worse}, good), worse


def write(names: list[str]) -> None:
    """Measures those anew, or all; and what has no figures yet."""
    old = yaml.safe_load(RECORD.read_text()) if RECORD.exists() else {}
    table = {}
    with tempfile.TemporaryDirectory() as place:
        for name in LISTED:
            known = name in old and name not in (names or LISTED)
            table[name] = old[name] if known else measured(name, Path(place))
            if "exception" in old.get(name, {}):
                table[name]["exception"] = old[name]["exception"]
    lines = [
        f"{key}: {yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000)}"
        for key, entry in table.items()
    ]
    RECORD.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    write(sys.argv[1:])
    sys.stdout.write(RECORD.read_text())
