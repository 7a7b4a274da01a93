# SPDX-License-Identifier: MIT
"""bf16 in pairs or as fp32, where a processor has both: what the library says, and whose bits come out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.schema import cpu

DOTS = ("x86-64-v4", "avx512bf16", "avx512vnni")
pytestmark = [
    pytest.mark.host_only("of the CPU's engines"),
    pytest.mark.skipif(not cpu.has("x86_64", DOTS), reason="this CPU has no dot products of bf16"),
]

PROGRAM = """
import hashlib, json, sys
import numpy as np
import tilekiln as tk
from tilekiln import dtypes

numbers = np.random.default_rng(0)
draw = lambda *shape: numbers.standard_normal(shape).astype(dtypes.NUMPY["bf16"])
digest = lambda arrays: hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in arrays)).hexdigest()[:16]
attention, gemm = (tk.Library(path) for path in sys.argv[1:])
q, k, v = draw(2, 70, 4, 64), draw(2, 90, 2, 64), draw(2, 90, 2, 64)
out, lse = attention.fmha_fwd(q, k, v, causal=True, return_lse=True)
made = {"forward": [out, lse], "backward": attention.fmha_bwd(q, q, k, v, out, lse, causal=True)}
made["caches"] = [attention.fmha_fwd_splitkv(q[:, :rows], k, v) for rows in (40, 70)]
made["gemm"] = [
    gemm.gemm(draw(m, 130), draw(130, 200) if row else draw(200, 130).T, out_dtype="fp32")
    for m, row in ((1, 1), (5, 1), (32, 1), (70, 1), (32, 0), (70, 0))
]
wide = q.astype(np.float32)
print(json.dumps({
    "bits": {name: digest(arrays) for name, arrays in made.items()},
    "says": [library.bf16_arithmetic for library in (attention, gemm)],
    "why": attention.fmha_fwd_why(q, k, v),
    "why fp32": attention.fmha_fwd_why(wide, wide[:, :, :2], wide[:, :, :2]),
}))
"""


@pytest.fixture(scope="module")
def run(build_library: Callable[..., Path], binding: object) -> Callable[..., dict]:
    """run(TILEKILN_BF16 or "", an ISA) -> what the program above prints, and what stood on stderr."""

    def call(word: str, isa: str = "") -> dict:
        targets = f"cpu-{isa},cpu-avx512bf16" if isa else "native"
        paths = [str(build_library(receipt, targets=targets)) for receipt in ("flash", "gemm_default")]
        said = {"TILEKILN_BF16": word, "TILEKILN_ISA": isa or "avx512bf16"}  # not amx, whose tiles answer otherwise
        environment = {**os.environ, **said, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PROGRAM, *paths]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout) | {"stderr": done.stderr}

    return call


SAYS = re.compile(
    r"bf16 is multiplied (in pairs|as fp32): dot products of pairs take (\d+\.\d\d) of the time of fp32's multiply-adds"
)


def test_a_process_asks_the_processor(run: Callable[..., dict]) -> None:
    asked = run("")
    for says in asked["says"]:
        found = SAYS.fullmatch(says)
        assert found, says
        assert found[1] == ("as fp32" if float(found[2]) > 1.25 else "in pairs")
        assert 0.2 < float(found[2]) < 5
    assert SAYS.search(asked["why"])
    assert "multiplied" not in asked["why fp32"]
    forced = run("dots" if "in pairs" in asked["says"][0] else "fp32")
    assert forced["bits"] == asked["bits"]


def test_a_variable_says_it(run: Callable[..., dict]) -> None:
    dots, fp32 = run("dots"), run("fp32")
    assert set(dots["says"]) == {"bf16 is multiplied in pairs (TILEKILN_BF16=dots)"}
    assert set(fp32["says"]) == {"bf16 is multiplied as fp32 (TILEKILN_BF16=fp32)"}
    assert fp32["says"][0] in fp32["why"]
    for name, bits in dots["bits"].items():
        assert fp32["bits"][name] != bits, name
    wrong = run("yes")
    assert 'TILEKILN_BF16: was "yes", must be dots or fp32; ignored' in wrong["stderr"]
    assert all(map(SAYS.fullmatch, wrong["says"]))


def test_as_fp32_has_the_bits_of_a_processor_without_pairs(run: Callable[..., dict]) -> None:
    without = run("fp32", "avx512")
    assert set(without["says"]) == {""}
    assert run("fp32")["bits"] == without["bits"]
