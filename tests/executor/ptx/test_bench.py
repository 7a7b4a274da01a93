# SPDX-License-Identifier: MIT
"""`tilekiln fmha-fwd -device=cuda`, `bench` and `tune --device cuda` over cudasim: answers right, the device named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]


@pytest.mark.parametrize(
    "words",
    [
        "fmha-fwd -mode=1 -s=33,7 -s_k=40,9 -mask=2 -lse=1",
        "fmha-bwd -s=33 -mask=1",
    ],
)
def test_a_runner_on_a_device(emulated: Callable[..., Emulated], words: str) -> None:
    emulation = emulated("attention")
    shared = "-device=cuda -b=2 -h=2 -d=64 -prec=bf16 -warmup=0 -repeat=1"
    said, code = emulation.python("-m", "tilekiln", *words.split(), *shared.split(), f"-receipt={emulation.library}")
    assert code == 0, said
    assert said.endswith(", valid:y, on emulated by tilekiln cudasim\n")


def test_a_bench_on_a_device(emulated: Callable[..., Emulated]) -> None:
    emulation = emulated("attention")
    words = "bench fmha_fwd dtype=bf16 seqlen_q=9 nhead_q=2 hdim_q=64 --repeat 1 --warmup 0 --device cuda --receipt"
    said, code = emulation.python("-m", "tilekiln", *words.split(), emulation.library)
    assert code == 0, said
    assert " on emulated by tilekiln cudasim: " in said
    assert "_cuda_sm90a; right, " in said


@pytest.mark.turns(1)
def test_tuned_on_a_device(emulated: Callable[..., Emulated], tmp_path: Path) -> None:
    """Every tile is measured by the device's events; the table is of the GPU, and calls there go by it."""
    emulation, out = emulated("tiles"), tmp_path / "table.json"
    (tmp_path / "shapes.txt").write_text("gemm m=64 n=64 k=64 dtype=bf16 b.order=column\n")
    words = ("--shapes", tmp_path / "shapes.txt", "--device", "cuda", "--rounds", "1", "--out", out)
    said, code = emulation.python("-m", "tilekiln", "tune", emulation.library, *words)
    assert code == 0, said
    assert " on emulated by tilekiln cudasim (clocks unknown): " in said
    assert " us, 17 ways, 1 rounds: as untuned\n" in said
    table = json.loads(out.read_text())
    assert table["tables"][0]["machine"].endswith(" + emulated by tilekiln cudasim")
    (one,) = table["tables"][0]["problems"]
    one["instance"] = one["instance"].replace("hopper_b128x256x32", "tiles_b192x64x32")
    out.write_text(json.dumps(table))
    program = f"""
import numpy as np, tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.bench.device import Device
library = tk.load({str(emulation.library)!r})
a = np.ones((64, 64), NUMPY["bf16"])
find, gemm = (Device("cuda").called(one) for one in (library.gemm_find, library.gemm))
before = library.instance_name(find(a=a, b=a.T))
library.tune(tk.tune.read({str(out)!r}, library, device="cuda"))
print(before, library.instance_name(find(a=a, b=a.T)), set(gemm(a=a, b=a.T).ravel().tolist()))
try:
    tk.tune.read({str(out)!r}, library)
except tk.ArgumentError as error:
    print(error)
"""
    said, code = emulation.python("-c", program)
    assert code == 0, said
    first, second, values = said.splitlines()[0].split(maxsplit=2)
    assert "hopper_b128x256x32" in first
    assert "tiles_b192x64x32" in second
    assert values == "{64.0}"
    assert "has no table for library gemm_tiles" in said
