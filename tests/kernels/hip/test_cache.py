# SPDX-License-Identifier: MIT
"""KV caches on HIP targets over hipsim: split-KV with combine, paged KV, batch prefill, append with rotation.

Emulated (functional), never run on AMD silicon.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernels.hip.test_library import TARGETS, report, run
from tools.executor.amdgcn.code_object import ARCHITECTURES

FAMILIES = ("fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_fwd_appendkv", "fmha_batch_prefill")
WHERE = f"family={','.join(FAMILIES)} dtype=bf16,fp8,fp8bf16 hdim_q=128 hdim_v=128"
OF_8_BITS = "family=fmha_batch_prefill kv_dtype=fp8 hdim_q=128 bias=none dropout=no lookup=vllm"
"""Of flash: caches of e4m3 under a bf16 q."""

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("binding", "executor")]


@pytest.fixture(scope="module")
def library(build_library: Callable[..., Path]) -> Path:
    return build_library("ck_default", targets=TARGETS, where=WHERE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_against_float64(library, architecture, pytestconfig, tmp_path):
    """Random problems: pages of many sizes, packed heads, splits, masks, biases, dropout; appends bit for bit."""
    cases = 120 if pytestconfig.option.full else 10
    problems = report(library, architecture, pytestconfig, tmp_path / "report.json", cases, "caches")["problems"]
    assert [one["family"] for one in problems if one["dtype"] == "bf16"] == list(FAMILIES)
    fp8 = [one["family"] for one in problems if one["dtype"] == "fp8"]
    assert fp8 == [*FAMILIES[:3]]
    assert [one["family"] for one in problems if one["dtype"] == "fp8bf16"] == ["fmha_batch_prefill"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_caches_of_8_bits_under_bf16(build_library, architecture, pytestconfig, tmp_path):
    """Scales of a tensor, and of a page and head; both layouts of pages."""
    library = build_library("flash", targets=TARGETS, where=OF_8_BITS)
    cases = 120 if pytestconfig.option.full else 8
    [problems] = report(library, architecture, pytestconfig, tmp_path / "report.json", cases)["problems"]
    assert (problems["family"], problems["dtype"]) == ("fmha_batch_prefill", "bf16")


EVERY_INSTANCE = """
import sys
import numpy as np
import tilekiln as tk
from tests import cases
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import kv_problems
from tools.hip.cases import Hip
library = tk.Library(sys.argv[1])
for page_size, layout in ((1, "linear"), (16, "vectorized"), (1024, "linear"), (1024, "vectorized")):
    where = f"family=fmha_batch_prefill mask=window bias=alibi softcap=no lse=yes dropout=no sink=no lookup=vllm"
    own = library.instances(f"{where} page_size={page_size} layout={layout}")
    own = [one for one in own if "hip_gfx1201" in one.name]
    sizes = kv_problems.Sizes(lengths_q=(5, 3), lengths_k=(130, 77), nhead_q=4, nhead_k=2, window=(60, 0))
    problem = kv_problems.make("fmha_batch_prefill", dict(own[0].signature), sizes, 1)
    call = attention.call("fmha_batch_prefill", problem, attention.HIP)
    for one in own:
        error = cases.share(library, "fmha_batch_prefill", call, Hip(), instance=one.number)
        assert error <= 1, (one.name, error)
        print("held", page_size, layout, one.name.split("_nqscale_")[1])
"""


def test_every_way_to_load_a_page(library):
    """Small pages by the offsets of one buffer and by 64-bit addresses, large ones by a buffer each; both layouts."""
    said, code = run(["-c", EVERY_INSTANCE, str(library)], "gfx1201")
    assert code == 0, said
    held = [line.split()[1:] for line in said.splitlines() if line.startswith("held")]
    kinds = {f"{how}_ptruncate_hip_gfx1201" for how in ("waves_b64x64_small", "waves_b64x64_large", "decode_b64x64")}
    assert {words[2] for words in held} == kinds, said
    assert len(held) == 12


HIDDEN = """
import sys
import ml_dtypes
import numpy as np
import tilekiln as tk
from tools.hip.device import DeviceArray
cache, q = np.ones((5, 2, 16, 128), ml_dtypes.bfloat16), np.ones((8, 1, 128), ml_dtypes.bfloat16)
cache[0] = cache[4, :, 15] = np.nan
k, v, out = DeviceArray(cache), DeviceArray(cache), DeviceArray(np.zeros_like(q))
where = {"block_table": np.array([[1, 2, 3, 4]]), "seqlen_k": np.array([63]), "cu_seqlens_q": np.array([0, 1])}
where = {name: DeviceArray(array.astype(np.int32)) for name, array in where.items()}
tk.Library(sys.argv[1]).fmha_fwd_pagedkv(DeviceArray(q), k, v, **where, window=(6, 0), layout="bhsd", out=out)
assert (out.host() == 1).all(), out.host()
"""


def test_pages_that_a_window_hides_are_not_read(library):
    """The host names a page that is needed in their place, behind whose last key anything may lie."""
    said, code = run(["-c", HIDDEN, str(library)], "gfx1201")
    assert code == 0, said
