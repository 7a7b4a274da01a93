# SPDX-License-Identifier: MIT
"""`features: fixed`: a kernel for each combination of features, built as everything else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from tests.conftest import ROOT
from tests.programs import OF_LLVM

RECEIPT = """receipt: fixed_small
about: Four kernels.
extends: fp32_min
without: [fmha_bwd_dq_dk_dv]
features: fixed
families:
  fmha_fwd:
    add: [{values: mask=window, reason: of tests}]
"""
SAME = """
import sys
import numpy as np, tilekiln as tk
fixed, shared = (tk.Library(path) for path in sys.argv[1:])
random = np.random.default_rng(3)
shapes = (2, 70, 4, 40), (2, 90, 2, 40), (2, 90, 2, 40)
q, k, v = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
sink = random.standard_normal(4).astype(np.float32)
for arguments in ({}, {"sink": sink}):
    assert np.array_equal(fixed.fmha_fwd(q, k, v, **arguments), shared.fmha_fwd(q, k, v, **arguments)), arguments
    assert not np.array_equal(fixed.fmha_fwd(q, k, v, causal=True, **arguments), fixed.fmha_fwd(q, k, v, **arguments))
try:
    fixed.fmha_fwd(q, k, v, return_lse=True)
except tk.NoKernelError:
    pass
else:
    raise AssertionError("no kernel writes an LSE")
"""


@pytest.mark.day
def test_built_in_parallel_killed_and_resumed(built_tree, script, binding: Path, tmp_path: Path) -> None:
    (built_tree.root / "receipts/fixed_small.yaml").write_text(RECEIPT)
    place = built_tree.root / f"build/{built_tree.variant}"
    # The third kernel hangs. Memory is for one job at a time, whatever -j says: launchers tell when they begin and end.
    log = tmp_path / "log"
    launcher = script(
        "watch",
        [
            'case "$*" in *-c*fixed/fmha_fwd/*) ;; *) exec "$@" ;; esac',
            f'echo begin >> "{log}"',
            f'[ "$(grep -c begin "{log}")" != 3 ] || exec sleep 60',
            '"$@"',
            "code=$?",
            f'echo end >> "{log}"',
            "exit $code",
        ],
    )
    options = ["receipt=fixed_small", "-j4"]
    environment = {**os.environ, "TILEKILN_BUILD_MEMORY": "1 MB"}
    command = [sys.executable, "-m", "SCons", "-Q", *options, f"launcher={launcher}"]
    build = subprocess.Popen(
        command, cwd=built_tree.root, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    # A job gives its memory back before it is written down: the third may begin between the two.
    written, deadline = place / "unfinished.jsonl", time.monotonic() + 120
    while not log.exists() or log.read_text().count("begin") < 3 or written.read_text().count("/fmha_fwd_qlanes_") < 2:
        assert time.monotonic() < deadline
        assert build.poll() is None
        time.sleep(0.02)
    assert log.read_text().split() == ["begin", "end", "begin", "end", "begin"]
    os.killpg(build.pid, signal.SIGKILL)
    build.wait(30)
    done = {path: path.stat().st_mtime_ns for path in place.glob("obj/engine/*/fmha_fwd_qlanes_*.o")}
    assert len(done) == 2
    # Finished objects stay; the rest is made, several at a time.
    said = built_tree.built(*options)
    assert len([label for label in said.actions("compile") if label.startswith("fixed/")]) == 2
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert not (place / "unfinished.jsonl").exists()
    assert len([*place.glob("obj/engine/*/fmha_fwd_qlanes_*.o")]) == 4
    assert "is up to date" in built_tree.built(*options).out
    libraries = [place / f"lib/libtilekiln_{name}.so" for name in ("fixed_small", "fp32_min")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    ran = subprocess.run(
        [sys.executable, "-c", SAME, *map(str, libraries)], env=variables, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


CUDA = """receipt: fixed_cuda
about: Four kernels of CUDA.
features: fixed
families:
  fmha_fwd:
    keep: >-
      dtype=bf16 hdim_q=64 hdim_v=64 mode=batch bias=none,alibi lse=yes dropout=no softcap=no skip_min_seqlen_q=no
      sink=no
"""


HIP = CUDA.replace("fixed_cuda", "fixed_hip").replace("CUDA", "HIP").replace("dtype=bf16", "dtype=fp16")


def killed_and_resumed(tree: Any, receipt: str, target: str, objects: str) -> Path:
    """The library of a receipt of four kernels, whose build was killed when the first of them was there."""
    options = [f"receipt={receipt}", f"target={target}", "mode=release", "-j2"]
    command = [sys.executable, "-m", "SCons", "-Q", *options]
    build = subprocess.Popen(command, cwd=tree.root, stdout=subprocess.DEVNULL, start_new_session=True)
    made, deadline = tree.root / f"build/{target}-release", time.monotonic() + 600
    place = f"obj/engine/{target}/{objects}-*.o"
    done: dict[Path, int] = {}
    while not done:
        assert time.monotonic() < deadline
        assert build.poll() is None
        time.sleep(0.05)
        done = {path: path.stat().st_mtime_ns for path in made.glob(place)}
    os.killpg(build.pid, signal.SIGKILL)
    build.wait(30)
    again = [label for label in tree.built(*options).actions("compile") if label.startswith(f"{objects}-")]
    assert len(again) + len(done) == len([*made.glob(place)]) == 4
    assert {path: path.stat().st_mtime_ns for path in done} == done
    return made / f"lib/libtilekiln_{receipt}.so"


@pytest.mark.needs("nvcc", "cuobjdump")
def test_those_of_cuda_killed_and_resumed(
    built_tree, scons, binding: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """And each against float64, in the executor."""
    from tests.executor.conftest import LIBRARIES
    from tests.executor.ptx.programs import Emulated

    if not pytestconfig.option.full:
        pytest.skip("--full runs it")
    (built_tree.root / "receipts/fixed_cuda.yaml").write_text(CUDA)
    made = killed_and_resumed(built_tree, "fixed_cuda", "cuda-sm90a", "fmha_fwd_d64-bf16")
    scons("receipt=fp32_min", *(f"build/executor-release/{name}" for name in LIBRARIES))
    library = Emulated(made, tmp_path)
    assert len(library.texts) == 4
    ran, code = library.run(8, 3)
    assert code == 0, ran
    assert "8 problems, 0 wrong" in ran


@pytest.mark.day
@pytest.mark.needs(*OF_LLVM)
def test_those_of_hip_killed_and_resumed(built_tree, scons, binding: Path, pytestconfig: pytest.Config) -> None:
    """And each against float64, in the executor: emulated (functional), never run on AMD silicon."""
    from tests.executor.conftest import LIBRARIES
    from tests.kernels.hip.test_library import run

    if not pytestconfig.option.full:
        pytest.skip("--full runs it")
    (built_tree.root / "receipts/fixed_hip.yaml").write_text(HIP)
    made = killed_and_resumed(built_tree, "fixed_hip", "hip-gfx942", "fmha_fwd_gfx942_d64-fp16")
    scons("receipt=fp32_min", *(f"build/executor-release/{name}" for name in LIBRARIES))
    ran, code = run(["tools/hip", "report", "--library", str(made), "--cases", "8", "--seed", "3"])
    assert code == 0, ran
    assert "signatures: 4 executed of 4; 0 problems wrong" in ran


def test_what_has_no_such_kernels_is_refused(tree) -> None:
    path = tree.root / "receipts/fixed_small.yaml"
    path.write_text(RECEIPT.replace("without: [fmha_bwd_dq_dk_dv]\n", ""))
    said = r"fixed_small\.yaml:4:11: fmha_bwd_dq_dk_dv has no kernels of fixed features; fmha_fwd has"
    with pytest.raises(CodegenError, match=said):
        Tree(str(tree.root)).receipt("fixed_small")
    path.write_text(RECEIPT.replace("features: fixed", "features: some"))
    with pytest.raises(CodegenError, match=r"fixed_small\.yaml:5:11: .*'some'"):
        Tree(str(tree.root)).receipt("fixed_small")
    path.write_text(RECEIPT)
    assert len(resolve("fixed_small", ["cpu-generic"], root=Tree(str(tree.root))).instances) == 8
