# SPDX-License-Identifier: MIT
"""Kernels of fixed features on HIP targets: each knows its signature, and is right for problems of it.

Emulated (functional), never run on AMD silicon. A whole build of such a receipt: tests/build/test_fixed_features.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tilekiln.reference import problems

from build_support.toolchains import hip
from codegen.plan.plan import resolve
from codegen.schema.axes import CODES
from tests.kernels.hip import forward, test_library
from tests.kernels.hip.forward import Build
from tools.executor.amdgcn.code_object import CodeObject

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("executor")]

NAMES = (
    "fmha_fwd_fp16_d64x64_batch_nmask_nbias_lse_ndropout_nsoftcap_nskip_nsink_nqscale_waves_b128x64_hip_gfx942",
    "fmha_fwd_fp16_d64x64_group_window_alibi_lse_ndropout_nsoftcap_nskip_nsink_nqscale_waves_b128x64_hip_gfx942",
    "fmha_fwd_fp16_d64x64_group_window_nbias_lse_ndropout_nsoftcap_nskip_sink_nqscale_waves_b128x64_hip_gfx942",
)


def test_each_is_right_and_smaller(build_library: Callable[..., Path], tmp_path, monkeypatch):
    library = build_library("flash", targets=test_library.TARGETS, where=test_library.WHERE["flash"])
    include = library.parents[2] / "headers"
    instances = {one.name: one for one in resolve("ck_default", ["hip-gfx942"]).instances if one.name in NAMES}
    build = Build("gfx942")
    whole = forward.compiled(build, tmp_path).stat().st_size
    flags = hip.flags
    for name in NAMES:
        instance = instances[name]
        codes, signature = instance.packed & CODES, dict(instance.signature)
        place = tmp_path / f"{codes:x}"
        place.mkdir()

        def fixed(source, target, dtype, defines, paths, codes=codes):
            more = [*paths, str(include), str(forward.ROOT / "include")]
            return flags(source, target, dtype, {**defines, "TILEKILN_CODES": codes}, more)

        monkeypatch.setattr(hip, "flags", fixed)
        path = forward.compiled(build, place)
        assert path.stat().st_size < 0.8 * whole, name
        code = CodeObject(path, "gfx942")
        for seed, (m, n) in enumerate(((70, 130), (1, 64), (129, 5))):
            sizes = problems.Sizes((m, 3), (n, 0), 2, 1, 64, 64, window=(17, 0), sink_size=0)
            problem = problems.make(signature, sizes, seed)
            assert forward.excess(problem, forward.run(code, build, problem, seed=seed + 1)) <= 1, (name, seed)
