# SPDX-License-Identifier: MIT
"""size_budget: a release library that is over it fails, and its largest parts are named."""

from __future__ import annotations

import re

import pytest

from build_support import budget
from codegen.tell import elf

BUILD = ("receipt=fp32_min", "mode=release", "target=cpu-generic", "where=hdim_q=48 mask=none")


@pytest.mark.day
@pytest.mark.turns(0)
def test_over_and_within(tree, tmp_path):
    tree.edit("receipts/fp32_min.yaml", "number:", "size_budget: 100 kB\nnumber:")
    cache = f"cache={tmp_path / 'cache'}"
    said = tree.scons(*BUILD, cache)
    assert said.code == 2
    text = said.out[said.out.index("build/generic-release") :]
    assert re.search(
        r"libtilekiln_fp32_min\.so is \d+ kB, over the size_budget of 100 kB of receipt fp32_min\. Its largest parts:\n"
        r"  (runtime|engines for cpu-generic) +\d+ kB\n",
        said.out,
    ), text
    assert "table" in text, text
    assert "raise size_budget in receipts/fp32_min.yaml" in said.out
    assert not list((tree.root / "build").glob("*/lib/*.so"))
    # Other modes carry what nobody ships.
    tree.edit("receipts/fp32_min.yaml", "size_budget: 100 kB", "size_budget: 50 MB")
    said = tree.built(*BUILD, cache)
    assert said.actions("built")
    assert not [label for label in said.actions("compile") if label.startswith("kernels/attention/")]
    # A lower one is seen although nothing else changed.
    tree.edit("receipts/fp32_min.yaml", "size_budget: 50 MB", "size_budget: 0.2 MB")
    assert "over the size_budget of 200 kB" in tree.scons(*BUILD, cache).out


def test_only_release():
    assert budget.of(1000, "flash", "release") == budget.Budget(1000, "flash")
    assert budget.of(1000, "flash", "debug") is None
    assert budget.of(None, "flash", "release") is None


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("build/avx2-release/obj/engine/cpu-avx2-0123abcd.o", "engines for cpu-avx2"),
        ("build/avx2-release/obj/rows/fmha_fwd/cpu-avx2/fp32_d32x32-12.o", "rows of fmha_fwd for cpu-avx2"),
        ("build/avx2-release/obj/runtime/pool.o", "runtime"),
        ("build/avx2-release/obj/flash/table.o", "table of flash"),
    ],
)
def test_parts(path, part):
    assert budget.part(path) == part


def test_no_elf_file(tmp_path):
    (tmp_path / "x").write_text("text")
    with pytest.raises(ValueError, match="is no 64-bit little-endian ELF file"):
        elf.sections(str(tmp_path / "x"))
