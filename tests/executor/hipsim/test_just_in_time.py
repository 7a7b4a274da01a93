# SPDX-License-Identifier: MIT
"""Kernels of AMD GPUs built when they are asked for, over hipsim. Emulated (functional), never run on AMD silicon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import shared_objects
from tests.kernels.hip.test_library import run

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("binding")]

PROGRAM = """
import functools
import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.api import _missing, operators, registry
from tools.hip.device import DeviceArray

operators._at_hand = functools.cache(lambda: registry.built)
asked = "fmha_fwd dtype=bf16 hdim_q=64 hdim_v=64 mode=batch mask=none bias=none lse=no dropout=no softcap=no sink=no"
library = tk.jit(asked + " skip_min_seqlen_q=no qscale=none", target="hip-gfx942")
print([target["name"] for target in library.manifest["targets"]])
random = np.random.default_rng(1)
q, k, v = (random.standard_normal((1, length, 2, 64)).astype(NUMPY["bf16"]) for length in (40, 50, 50))
there = [DeviceArray(x) for x in (q, k, v)]

def close(causal, **more):
    out = DeviceArray(np.zeros(q.shape, q.dtype))
    tk.attention(*there, out=out, causal=causal, **more)
    return bool(np.abs(out.host().astype(np.float32) - tk.reference.fmha_fwd(q, k, v, causal=causal)).max() < 2e-2)

def refused(statement):
    try:
        statement()
    except (tk.NoKernelError, tk.ArgumentError) as error:
        return str(error).split(":")[0] if isinstance(error, tk.NoKernelError) else str(error)

print(close(False))
print(refused(lambda: close(True)).startswith("no kernel"))
_missing._TARGETS[10] = "hip-gfx942"  # Linux lists no device of hipsim
print(close(True, on_missing="build"), len(registry.built))
import runpy
runpy.run_path("examples/devices/buffers.py")["main"]("hip", registry.built[0].path)
print(refused(lambda: tk.jit(asked, target="hip")))
print(refused(lambda: tk.jit(asked, target="ck-gfx942")))
"""


@pytest.mark.day
def test_kernels_are_built_for_the_device_of_the_arrays(tmp_path: Path) -> None:
    store = {"TILEKILN_JIT": str(tmp_path), "TILEKILN_JIT_OPTIONS": " ".join(shared_objects())}
    said, code = run(["-c", PROGRAM], **store)
    assert (said.splitlines(), code) == (
        [
            "['hip-gfx942']",
            "True",
            "True",
            "True 2",
            "hip: four buffers, causal attention of (1, 40, 2, 64) over 50 keys, 4.6e-03 from float64",
            "config: no device here runs a target of hip: name one, hip-gfx1100, hip-gfx1201, hip-gfx90a, hip-gfx942, "
            "hip-gfx950",
            "config: target ck-gfx942 is planned: it is listed, and nothing builds it yet",
        ],
        0,
    )
