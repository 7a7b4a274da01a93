# SPDX-License-Identifier: MIT
"""A second family, with an axis and values of its own: everything that speaks of families holds for several."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

from codegen.emit.render import generate
from codegen.out import committed
from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from codegen.tell.check import check
from codegen.tell.explain import explain
from tests.codegen.conftest import ROOT, Copy, what_there_is
from tests.codegen.test_golden import COMPILERS

FAMILY = """
family: toy
about: A family to test with.
axes:
  - {name: dtype, values: [bf16, int8], about: Element type.}
  - {name: hdim_q, values: head_dims, holds: at_least, word: "_d{}", about: Head dim.}
  - {name: hdim_v, values: head_dims, holds: at_least, word: "x{}", about: Head dim.}
  - {name: paged, about: Whether pages are used.}
tables:
  head_dims:
    by: dtype
    values:
      bf16: [64x64]
      int8: [64x64, 72x72]
algorithm:
  - {name: tile, of: [rows, columns], word: "_b{}", about: A tile.}
rules:
  - {name: paged_needs_bf16, when: dtype!=bf16 paged=yes, says: pages are for bf16}
pipelines:
  - {name: rows, about: One row at a time.}
engine:
  header: kernels/attention/fwd_engine.h
  type: tilekiln::fmha::FwdEngine
source_by: [dtype]
"""
RECEIPT = """
receipt: both
about: Tests.
families:
  fmha_fwd:
    keep: dtype=bf16,fp8fp32 hdim_q=64,128 mask=none mode=batch bias=none dropout=no
  toy:
    keep: [paged=no, hdim_q=64]
"""


@pytest.fixture
def both(copy: Copy) -> Tree:
    folder = copy.path / "kernels" / "toy"
    folder.mkdir()
    (folder / "family.yaml").write_text(FAMILY)
    (folder / "cpu").mkdir()
    (folder / "cpu/rows.cpp").write_text("")
    (copy.path / "receipts/both.yaml").write_text(RECEIPT)
    algorithms = "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n"
    copy.edit(
        "kernels/targets/cpu-generic.yaml", algorithms, algorithms + "  toy:\n    - {pipeline: rows, tile: 1x8}\n"
    )
    return copy.tree()


def names(root: Tree, where: str, family: str = "") -> dict[str, int]:
    counts: dict[str, int] = {}
    for instance in resolve("both", ["cpu-avx2"], where, family, root).instances:
        counts[instance.family] = counts.get(instance.family, 0) + 1
    return counts


@pytest.mark.day
def test_plans_and_selections_hold_for_several_families(copy: Copy, both: Tree) -> None:
    assert check(both).startswith(f"all is well: {what_there_is(copy.path)}; ")
    every = names(both, "")
    assert every == {"fmha_fwd": every["fmha_fwd"], "toy": 4}
    assert names(both, "", "toy") == {"toy": 4}
    assert names(both, "paged=yes") == {"toy": 1}  # an axis of one family
    assert names(both, "dtype=int8") == {"toy": 2}  # a value of one family
    assert names(both, "dtype=fp8fp32,int8 hdim_v=128,72") == {"fmha_fwd": 12, "toy": 1}
    assert names(both, "dtype!=bf16,fp8fp32") == {"toy": 2}
    assert names(both, "dtype=bf16 paged=no or sink=yes lse=yes") == {"toy": 1, "fmha_fwd": 8}
    assert names(both, "family=toy") == {"toy": 4}
    assert names(both, "family=toy hdim_v=64 or family!=toy sink=yes lse=yes mode=group,batch") == {
        "toy": 3,
        "fmha_fwd": 8,
    }
    with pytest.raises(CodegenError, match=r"^where: axis 'dtype' has no value 'int9'; nearest: int8; values: "):
        names(both, "dtype=int9")
    with pytest.raises(CodegenError, match=r"^where: axis 'dtype' of toy has no value 'int9'; values: bf16, int8\n"):
        names(both, "family=toy dtype=int9")
    with pytest.raises(CodegenError, match=r"^where: no family 'tyo'; nearest: toy\n"):
        names(both, "family=tyo")
    with pytest.raises(CodegenError, match=r"^where: this leaves no value of axis 'dtype'\n"):
        names(both, "family=toy dtype!=int8,bf16")


def test_explain_finds_the_family(both: Tree) -> None:
    answer = explain(both, "both", "dtype=int8 paged=no", ["cpu-avx2"]).text
    assert answer.startswith("yes: both lists toy dtype=int8 paged=no\n2 instances:")
    answer = explain(both, "both", "toy paged=yes dtype=int8", ["cpu-avx2"]).text
    assert "rule paged_needs_bf16: pages are for bf16" in answer
    answer = explain(both, "flash", "toy paged=no", ["cpu-avx2"]).text
    assert "receipt flash has no toy" in answer
    assert "listed by: both" in answer


def test_tables_and_manifest_hold_both(both: Tree, tmp_path: pathlib.Path) -> None:
    plan = resolve("both", ["cpu-generic", "cpu-avx2"], root=both)
    generated = generate([plan], tmp_path / "gen", committed.INFO)
    assert [engine.symbol for engine in generated.engines] == [
        "tilekiln_cpu_generic_fmha_fwd_qlanes",
        "tilekiln_cpu_avx2_fmha_fwd_qlanes",
        "tilekiln_cpu_generic_toy_rows",
        "tilekiln_cpu_avx2_toy_rows",
    ]
    manifest = json.loads((tmp_path / "gen/both/manifest.json").read_text())
    columns = manifest["instances"]["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in manifest["instances"]["rows"]]
    assert len(rows) == len(plan.instances)
    for row, instance in zip(rows, plan.instances, strict=True):
        own = manifest["families"][instance.family]["signature"]
        assert {axis: row[axis] for axis in own} == instance.signature
        assert all(row[axis] is None for axis in columns[2:-3] if axis not in own)
    for source in generated.sources:
        flags = [
            "-std=c++20",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{ROOT / 'include'}",
            f"-I{ROOT}",
            "-I.",
        ]
        if source.kind == "table":
            done = subprocess.run(
                [COMPILERS[0], *flags, source.path], cwd=tmp_path / "gen", capture_output=True, text=True, check=False
            )
            assert done.stderr == ""


COMPANION = """
family: toy_sum
about: A companion with an axis and a rule of its own.
companion_of: toy
axes:
  - {name: dtype, values: main}
  - {name: hdim_v, values: main, word: "_v{}"}
  - {name: lse, about: Whether the LSE is summed too.}
rules:
  - {name: lse_without_int8, when: dtype=int8 lse=yes, says: int8 has no LSE}
algorithm:
  - {name: tile, of: [rows], word: "_b{}", about: A tile.}
pipelines:
  - {name: sums, about: One row at a time.}
engine:
  header: kernels/attention/fwd_engine.h
  type: tilekiln::fmha::FwdEngine
source_by: [dtype]
"""


@pytest.mark.day
def test_a_companion_multiplies_what_is_needed_with_its_own_axes(
    copy: Copy, both: Tree, tmp_path: pathlib.Path
) -> None:
    """`paged` is not shared and `lse` is its own: signatures of toy that differ in paged need the same of it."""
    folder = copy.path / "kernels/toy_sum"
    folder.mkdir()
    (folder / "family.yaml").write_text(COMPANION)
    (folder / "cpu").mkdir()
    (folder / "cpu/sums.cpp").write_text("")
    copy.edit("kernels/targets/cpu-generic.yaml", "  toy:\n", "  toy_sum:\n    - {pipeline: sums, tile: 8}\n  toy:\n")
    root = copy.tree()
    assert check(root).startswith(f"all is well: {what_there_is(copy.path)}; ")
    plan = resolve("both", ["cpu-avx2"], "", "toy_sum", root)
    assert [instance.name for instance in plan.instances] == [
        "toy_sum_bf16_v64_nlse_sums_b8_cpu_avx2",
        "toy_sum_bf16_v64_lse_sums_b8_cpu_avx2",
        "toy_sum_int8_v64_nlse_sums_b8_cpu_avx2",
        "toy_sum_int8_v72_nlse_sums_b8_cpu_avx2",
    ]
    assert names(root, "family=toy paged=yes") == {"toy": 1, "toy_sum": 2}
    assert names(root, "family!=toy") == {"fmha_fwd": names(root, "")["fmha_fwd"]}
    assert (
        "rule lse_without_int8: int8 has no LSE"
        in explain(root, "both", "toy_sum dtype=int8 lse=yes", ["cpu-avx2"]).text
    )
    generated = generate([plan], tmp_path / "gen", committed.INFO)
    assert [(engine.source, engine.symbol) for engine in generated.engines] == [
        ("kernels/toy_sum/cpu/sums.cpp", "tilekiln_cpu_avx2_toy_sum_sums")  # it has an engine of its own
    ]
