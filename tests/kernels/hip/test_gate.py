"""The static figures of the HIP forward kernels against those recorded in kernels/attention/fmha_fwd/hip/gate.yaml.

`python -m tests.kernels.hip.test_gate` writes the record, which keeps its exceptions. Emulated (functional), never run
on AMD silicon.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kernels.hip import forward
from tests.kernels.hip.forward import Build
from tests.kernels.hip.test_forward import PLAIN
from tests.python import problems
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


def builds(architecture: str) -> list[Build]:
    """fp16 and bf16 at three head dims. Eight waves of gfx1100 share an LDS tile; on gfx1201 they would spill."""
    rdna, gfx1100 = architecture.startswith("gfx1"), architecture == "gfx1100"
    tiles = ((64, 64, 4), (128, 64, 8 if gfx1100 else 4), (256, 32, 8 if gfx1100 else 4))
    return [
        Build(architecture, dtype, hdim, hdim, tile_k, waves, rdna and hdim >= 160, int(dtype == "bf16"))
        for dtype in ("fp16", "bf16")
        for hdim, tile_k, waves in tiles
    ]


def name(build: Build) -> str:
    return f"{build.architecture}_{build.dtype}_d{build.hdim_q}_{build.tile_q}x{build.tile_k}"


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gate(architecture, tmp_path):
    recorded = yaml.safe_load(RECORD.read_text())
    found = []
    for build in builds(architecture):
        now = measured(build, tmp_path)
        print(f"{name(build)}: {now.sentence()}")
        found += [f"{name(build)}: {why}" for why in gate.complaints(now, recorded.get(name(build)), build.hdim_q)]
    assert not found, "\n".join(found)


def test_what_the_gate_refuses():
    good = gate.Figures(1024, 400, 100, 300, 0.67, 1.0, 200, 0, 36864, 2)
    recorded = good.rounded()
    assert gate.complaints(good, recorded, 128) == []
    assert gate.complaints(dataclasses.replace(good, valu=407), recorded, 128) == []
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
        assert gate.complaints(dataclasses.replace(good, **worse), recorded, 128), worse
    slow = dataclasses.replace(good, overlapped=0.6)
    assert gate.complaints(slow, slow.rounded(), 128) == ["overlapped: was 0.600, must be at least 0.75"]
    assert gate.complaints(slow, slow.rounded(), 64) == []
    assert gate.complaints(slow, {**slow.rounded(), "exception": {"overlapped": "why"}}, 128) == []
    assert gate.complaints(good, None, 64) == ["no figures are recorded: was none, must be recorded once"]


def write() -> None:
    old = yaml.safe_load(RECORD.read_text()) if RECORD.exists() else {}
    table = {}
    with tempfile.TemporaryDirectory() as place:
        for architecture in ARCHITECTURES:
            for build in builds(architecture):
                entry = measured(build, Path(place)).rounded()
                if "exception" in old.get(name(build), {}):
                    entry["exception"] = old[name(build)]["exception"]
                table[name(build)] = entry
    lines = [
        f"{key}: {yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000)}"
        for key, entry in table.items()
    ]
    RECORD.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    write()
    sys.stdout.write(RECORD.read_text())
