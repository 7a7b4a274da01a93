# SPDX-License-Identifier: MIT
"""Lengths around tiles, rows without keys, empty sequences, every mask: all architectures, five interleavings.

Through the facade over hipsim, against float64: emulated (functional), never run on AMD silicon. A run takes some of
every matrix, in which every two values meet, architectures among them; `--full` takes all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernels.hip import test_backward, test_cache, test_library
from tests.kernels.hip.test_library import TARGETS, run
from tools.executor.amdgcn.code_object import ARCHITECTURES

LIBRARIES = {  # those that other tests build: receipt and where
    "forward": ("flash", test_library.WHERE["flash"]),
    "features": ("ck_default", test_library.WHERE["ck_default"]),
    "backward": ("ck_default", test_backward.WHERE),
    "wide": ("flash", test_backward.WIDE),
    "caches": ("ck_default", test_cache.WHERE),
}
MATRICES = {  # by library: family, dtype, cases of all, by lengths, masks, sequences and pages
    ("forward", "fmha_fwd", "fp16"): 500,  # without columns of a sink
    ("features", "fmha_fwd", "bf16"): 600,
    ("backward", "fmha_bwd_dq_dk_dv", "fp16"): 600,
    ("backward", "fmha_bwd_dq_dk_dv", "bf16"): 600,
    ("wide", "fmha_bwd_dq_dk_dv", "fp16"): 600,
    ("caches", "fmha_fwd_splitkv", "bf16"): 600,
    ("caches", "fmha_fwd_pagedkv", "bf16"): 300,
    ("caches", "fmha_batch_prefill", "bf16"): 150,
    ("caches", "fmha_fwd_splitkv", "fp8"): 250,  # without pages, without columns of a sink
    ("caches", "fmha_fwd_pagedkv", "fp8"): 250,
    ("caches", "fmha_batch_prefill", "fp8bf16"): 125,
}

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("binding", "executor")]


@pytest.mark.sampled(22)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("library", "family", "dtype"), MATRICES, ids=lambda value: value)
def test_edges(build_library: Callable[..., Path], library, family, dtype, architecture, pytestconfig):
    receipt, where = LIBRARIES[library]
    built = build_library(receipt, targets=TARGETS, where=where)
    words = ["-m", "tools.hip.edges", "--library", str(built), "--family", family, "--dtype", dtype]
    if not pytestconfig.option.full:
        words += ["--sample", str(pytestconfig.option.sample_seed)]
    said, code = run(words, architecture)
    assert code == 0, said
    taken = re.fullmatch(r".*: (\d+) of (\d+) cases in 5 interleavings, 0 wrong, .*", said.strip())
    assert taken, said
    drawn, whole = int(taken[1]), int(taken[2])
    assert whole == MATRICES[library, family, dtype]
    assert drawn == whole if pytestconfig.option.full else drawn >= 5, said  # each length
