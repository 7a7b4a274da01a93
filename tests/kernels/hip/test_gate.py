# SPDX-License-Identifier: MIT
"""The static figures of the HIP forward kernels against those recorded in kernels/attention/fmha_fwd/hip/gate.yaml.

`python -m tests.kernels.hip.test_gate [NAME...]` writes the record, which keeps its exceptions.
Emulated (functional), never run on AMD silicon.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from tilekiln.reference import problems
from tilekiln.reference.problems import PLAIN

from codegen.emit import kernels
from codegen.schema.tree import tree
from tests.kernels.hip import forward
from tests.kernels.hip.forward import Build
from tools.executor.amdgcn import gate
from tools.executor.amdgcn.code_object import ARCHITECTURES, CodeObject

RECORD = forward.ROOT / "kernels" / "attention" / "fmha_fwd" / "hip" / "gate.yaml"
TILES = 8  # by which the longer of two runs is longer
HEAD = """\
# Static figures of the forward kernel's main loop, by instruction counts of the executor: emulated (functional), never
# run on AMD silicon. Cycles of one wave and one key tile; serial and overlapped are bounds on the share of the matrix
# peak (tools/executor/amdgcn/gate.py). Written by python -m tests.kernels.hip.test_gate. An exception names what may
# miss the gate, with the reason.
"""


def builds() -> dict[str, Build]:
    """The code objects of fmha_fwd that libraries hold, by name."""
    found: dict[str, Build] = {}
    for architecture in ARCHITECTURES:
        for kernel in kernels.of_target(tree(), f"hip-{architecture}"):
            given = kernel.file.define
            if kernel.file.family != "fmha_fwd":
                continue
            found[kernel.name] = Build(
                architecture,
                kernel.dtype,
                *(given[word] for word in ("HDIM_Q", "HDIM_V", "TILE_K", "WAVES")),
                bool(given["RELOAD_Q"]),
                bool(given["DROPOUT"]),
            )
    return found


BUILDS = builds()


def measured(build: Build, place: Path) -> gate.Figures:
    """Two runs without masks whose keys differ by TILES tiles."""
    path = forward.compiled(build, place)
    code = CodeObject(path, build.architecture)
    covered: list[Any] = [{}]
    for tiles in (4, 4 + TILES):
        sizes = problems.Sizes((build.tile_q,), (tiles * build.tile_k,), 1, 1, build.hdim_q, build.hdim_v)
        problem = problems.make({**PLAIN, "dtype": build.dtype}, sizes, 1)
        forward.run(code, build, problem, seed=0, races=False)
        covered.append(code.coverage())
    return gate.figures(build.architecture, gate.mix(*covered, TILES * build.waves), gate.notes(path), build.waves)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", BUILDS)
def test_gate(name, tmp_path):
    recorded = yaml.safe_load(RECORD.read_text())
    now = measured(BUILDS[name], tmp_path)
    print(f"{name}: {now.sentence()}")
    found = gate.failures(now, recorded.get(name), BUILDS[name].hdim_q)
    assert not found, "\n".join(found)


def test_every_code_object_has_figures_and_none_spills():
    recorded = yaml.safe_load(RECORD.read_text())
    assert list(recorded) == list(BUILDS)
    assert not [name for name, entry in recorded.items() if entry["spills"] and "exception" not in entry]


def test_what_the_gate_refuses():
    good = gate.Figures(1024, 400, 100, 300, 0.67, 1.0, 200, 0, 36864, 2)
    recorded = good.rounded()
    assert gate.failures(good, recorded, 128) == []
    assert gate.failures(dataclasses.replace(good, valu=407), recorded, 128) == []
    for worse in (
        {"valu": 409},
        {"lds": 310},
        {"spills": 1},
        {"overlapped": 0.74},
        {"serial": 0.65},
        {"waves_per_simd": 1},
        {"vgprs": 206},
        {"matrix": 512},
    ):
        assert gate.failures(dataclasses.replace(good, **worse), recorded, 128), worse
    slow = dataclasses.replace(good, overlapped=0.6)
    assert gate.failures(slow, slow.rounded(), 128) == ["overlapped: was 0.600, must be at least 0.75"]
    assert gate.failures(slow, slow.rounded(), 64) == []
    assert gate.failures(slow, {**slow.rounded(), "exception": {"overlapped": "why"}}, 128) == []
    assert gate.failures(good, None, 64) == ["no figures are recorded: was none, must be recorded once"]


def write(names: list[str]) -> None:
    """Measures those anew, or all; and what has no figures yet."""
    old = yaml.safe_load(RECORD.read_text()) if RECORD.exists() else {}
    table = {}
    with tempfile.TemporaryDirectory() as place:
        for name, build in BUILDS.items():
            if name in old and name not in (names or BUILDS):
                table[name] = old[name]
                continue
            entry = table[name] = measured(build, Path(place)).rounded()
            if "exception" in old.get(name, {}):
                entry["exception"] = old[name]["exception"]
    lines = [
        f"{key}: {yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000)}"
        for key, entry in table.items()
    ]
    RECORD.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    write(sys.argv[1:])
    sys.stdout.write(RECORD.read_text())
