# SPDX-License-Identifier: MIT
"""An engine without a function for a dtype that its library lists fails the build, and leaves no library."""

from __future__ import annotations

import re


def test_an_engine_without_a_listed_dtype(built_tree):
    built_tree.edit(
        "kernels/attention/fmha_fwd/cpu/qlanes.cpp",
        "{tilekiln::cpu::fp32_tile<float, float>, tilekiln::cpu::fp32_tile<tilekiln::cpu::fp16",
        "{nullptr, tilekiln::cpu::fp32_tile<tilekiln::cpu::fp16",
    )
    said = built_tree.scons(*built_tree.SMALL)
    assert said.code == 2
    assert re.search(
        r"library fp32_min lists fmha_fwd_fp32_d48x48_\w+, and the engine of fmha_fwd for it has no such function "
        r"\(`entries` of its family.yaml\)\nfailed: link build/\S+/lib/libtilekiln_fp32_min.so\n",
        re.sub(r"\x1b\[[0-9;]*m", "", said.out),
    ), said.out
    assert not list((built_tree.root / "build").glob("*/lib/*.so"))
