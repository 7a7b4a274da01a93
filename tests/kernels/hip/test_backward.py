# SPDX-License-Identifier: MIT
"""Gradients on HIP targets over hipsim, all three stages: emulated (functional), never run on AMD silicon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernels.hip.test_library import TARGETS, report, run
from tools.executor.amdgcn.code_object import ARCHITECTURES

MAIN = "family=fmha_bwd_dq_dk_dv"
WHERE = f"{MAIN} dtype=fp16 hdim_q=64 hdim_v=64 deterministic=yes or {MAIN} dtype=bf16 hdim_q=128 hdim_v=128"
WIDE = f"{MAIN} dtype=bf16 hdim_q=192 hdim_v=128,192 bias=none,alibi or {MAIN} dtype=fp16 hdim_q=256 hdim_v=256"
"""Of flash: head dims whose columns all but gfx950 take in two parts."""

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("binding", "executor")]


@pytest.fixture(scope="module")
def library(build_library: Callable[..., Path]) -> Path:
    return build_library("ck_default", targets=TARGETS, where=WHERE)


@pytest.fixture(scope="module")
def wide(build_library: Callable[..., Path]) -> Path:
    return build_library("flash", targets=TARGETS, where=WIDE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_against_float64(library, wide, architecture, pytestconfig, tmp_path):
    """dq, dk, dv, dbias, d_sink and delta of random problems; what must stay untouched does."""
    kinds = {library: ["fp16 64x64", "bf16 128x128"], wide: ["bf16 192x128", "bf16 192x192", "fp16 256x256"]}
    for built, cases in ((library, 6), (wide, 2)):
        count = 10 * cases if pytestconfig.option.full else cases
        name = "backward" if built == library else "wide"
        problems = report(built, architecture, pytestconfig, tmp_path / "report.json", count, name)["problems"]
        assert {one["family"] for one in problems} == {"fmha_bwd"}
        assert sorted(f"{one['dtype']} {one['hdim']}" for one in problems) == sorted(kinds[built])


TWICE = """
import sys
import numpy as np
import tilekiln as tk
from tilekiln.reference import gradients, problems
from tools.hip.device import DeviceArray
library = tk.Library(sys.argv[1])
signature = {"dtype": "fp16", "hdim_q": 64, "hdim_v": 64, "mode": "batch", "mask": "window", "bias": "none",
             "dbias": False, "dropout": "none", "softcap": False, "sink": False, "deterministic": True}
sizes = problems.Sizes((70,), (300,), 4, 2, 64, 64, window=(-1, 0))
problem = gradients.make(signature, sizes, 1)
inputs = {k: DeviceArray(v) if isinstance(v, np.ndarray) else v for k, v in problem.inputs.items()}
bits = []
for run in range(3):  # the executor draws another order of workgroups for each launch
    made = {name: DeviceArray(array) for name, array in problem.outputs().items()}
    library.fmha_bwd(**inputs, **made, deterministic=True)
    bits.append([array.host().tobytes() for array in made.values()])
print("same" if bits[0] == bits[1] == bits[2] else "other")
"""


def test_deterministic_is_the_same_bits(library):
    said, code = run(["-c", TWICE, str(library)], "gfx942")
    assert (said.strip(), code) == ("same", 0)


WORKSPACE = """
import ctypes, sys
import numpy as np
import tilekiln as tk
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import gradients, problems
from tools.hip.device import ROCM, DeviceArray, ask
library = tk.Library(sys.argv[1])
signature = {"dtype": "fp16", "hdim_q": 64, "hdim_v": 64, "mode": "group", "mask": "none", "bias": "none",
             "dbias": False, "dropout": "none", "softcap": False, "sink": False, "deterministic": True}
problem = gradients.make(signature, problems.Sizes((70, 0, 33), (90, 7, 140), 4, 2, 64, 64), 1)
judge = attention.call(attention.BACKWARD, problem, attention.HIP).judge
inputs = {k: DeviceArray(v) if isinstance(v, np.ndarray) else v for k, v in problem.inputs.items()}
starts = [inputs.pop("cu_seqlens_q"), inputs.pop("cu_seqlens_k")]
def outputs():
    return {name: DeviceArray(array) for name, array in problem.outputs().items()}
def checked(made):
    error = judge({name: array.host() for name, array in made.items()})
    assert error <= 1, error
packed, most = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), starts)), {"max_seqlen_q": 70, "max_seqlen_k": 140}
made = outputs()
size = library.fmha_bwd_workspace_size(**inputs, **packed, **most, **made, deterministic=True)
room = lambda size: DeviceArray(np.full(size, 255, np.uint8))
library.fmha_bwd(**inputs, **packed, **most, **made, deterministic=True, workspace=room(size))
checked(made)
try:
    library.fmha_bwd(**inputs, **packed, **most, **outputs(), deterministic=True, workspace=room(size - 16))
except tk.ArgumentError as error:
    print(error)
asked = {**packed, **most, "deterministic": True, "workers": 5}  # each walks over units of several tiles and heads
own = room(library.fmha_bwd_workspace_size(**inputs, **made, **asked))
library.fmha_bwd(**inputs, **(made := outputs()), **asked, workspace=own)
checked(made)
plan = tk.plan_backward_workspace(seqstart_q=[0, 70, 70, 103], seqstart_k=[0, 90, 97, 237], nhead_q=2, hdim_q=64,
                                  kM0=32, kN0=128, workers=5)
segment = own.host()
ints = lambda at, count: np.frombuffer(segment[at : at + 4 * count].tobytes(), np.int32)
assert ints(0, 3).tolist() == plan.nsplits
offsets = np.frombuffer(segment[16:48].tobytes(), np.int64)  # of two query heads a key head
assert offsets.tolist() == [2 * at for at in plan.offsets]
assert ints(48, 40).reshape(5, 8)[:, :6].tolist() == [list(state) for state in plan.cu_states_remapped]
states = ints(208, 12).reshape(3, 4)[:, :2]
assert [tuple(state) for state in states.tolist()] == [(state.sq, state.nc) for state in plan.batch_states]
print(len(plan.nsplits), max(plan.nsplits))
launcher = tk.BackwardLauncher(library=library, dtype="fp16", hdim_q=64, hdim_v=64, nhead_q=4, nhead_k=2, batch=3,
                               seqlen_q=103, seqlen_k=140, max_seqlen_q=70, mode="group", deterministic=True,
                               device=(ROCM, 0))
native = ctypes.c_void_p()
ask("hipStreamCreate", ctypes.byref(native))
stream = tk.Stream(device=(ROCM, 0), native=native.value)
workspace, made = room(launcher.workspace_size), outputs()
launcher.prepare(workspace, *starts, stream=stream)
there = {"workspace": workspace, "stream": stream, "deterministic": True}
launcher.run(**inputs, **dict(zip(("seqstart_q", "seqstart_k"), starts)), **made, **there)
stream.synchronize()
checked(made)
launcher.prepare(workspace, DeviceArray(np.array([0, 90, 80, 103], np.int32)), starts[1], stream=stream)
try:
    stream.synchronize()
except tk.ArgumentError as error:
    print(error)
"""


def test_one_workspace_of_ones_own_prepared_in_stream_order(library):
    """Of any contents and of the size it says, its head as the host packs it; prepared from starts unseen."""
    said, code = run(["-c", WORKSPACE, str(library)], "gfx942")
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0].startswith("workspace: had "), said
    assert lines[1] == "3 2"  # the device's schedule is the host's, with two splits at most
    assert lines[2].startswith("seqstart_q: "), said
