# SPDX-License-Identifier: MIT
"""A family that is no attention: its first axis is no dtype, its integers reach 16,384, its tiles have nine numbers."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

from codegen.emit.render import generate
from codegen.out import committed
from codegen.plan.plan import resolve
from codegen.schema.algorithms import size_rule
from codegen.schema.errors import CodegenError, SelectionError
from codegen.schema.tree import Tree
from codegen.tell.check import check
from codegen.tell.explain import explain
from codegen.tell.listing import csv, table
from tests.codegen.conftest import ROOT, Copy
from tests.codegen.test_golden import COMPILERS

NUMBERS = "[block_m, block_n, block_k, warps_m, warps_n, warps_k, warp_m, warp_n, warp_k]"
FAMILY = f"""
family: norm
about: Rows by their norm.
axes:
  - {{name: kind, values: [layer, rms], about: Of the norm.}}
  - {{name: columns, values: [64, 1024, 8192, 16384], holds: at_least, word: "_n{{}}", about: Most columns of a row.}}
  - {{name: dtype, values: [fp32, fp16, bf16], about: Element type of x.}}
  - {{name: gamma_dtype, values: [fp32, fp16, bf16], word: "g{{}}", about: Element type of gamma.}}
  - {{name: out_dtype, values: [fp32, fp16, bf16, int8], word: "o{{}}", about: Element type of y.}}
  - {{name: experts, values: [1, 8], holds: equal, word: "_e{{}}", about: Experts.}}
rules:
  - {{name: int8_by_8, when: out_dtype=int8 columns<=64, says: int8 needs more than 64 columns}}
  - {{name: one_dtype, when: [dtype=fp32 gamma_dtype!=fp32, dtype!=fp32 gamma_dtype=fp32], says: gamma is as x}}
algorithm:
  - {{name: tile, of: {NUMBERS}, word: "_t{{}}", about: "A block, its warps, the tile of a warp."}}
  - {{name: stages, of: [stages], word: "_s{{}}", about: Of the pipeline.}}
  - {{name: persistent, default: no, about: Whether a block takes several rows.}}
  - {{name: load, values: [plain, bulk], default: plain, about: How rows are fetched.}}
sizes: [rows, columns]
choice:
  fit: {{rows: block_m, columns: block_n}}
pipelines:
  - {{name: rows, about: One row at a time.}}
engine:
  header: kernels/attention/fwd_engine.h
  type: tilekiln::fmha::FwdEngine
source_by: [dtype, columns]
"""
ALGORITHMS = """  norm:
    - {pipeline: rows, tile: 4x256x1x4x1x1x1x256x1, stages: 1, best: rows>=64}
    - {pipeline: rows, tile: [1, 1024, 1, 1, 4, 1, 1, 256, 1], stages: 2, persistent: yes, when: columns>=8192, rank: 1}
    - {pipeline: rows, tile: 1x1024x1x1x4x1x1x256x1, stages: 2, load: bulk, needs: columns>=4096 rows<=65535, rank: 2}
"""
RECEIPT = """
receipt: norms
number: 901
about: Tests.
families:
  norm:
    keep: dtype!=fp16 gamma_dtype!=fp16
"""


@pytest.fixture
def norms(copy: Copy) -> Tree:
    folder = copy.path / "kernels/test/norm"
    folder.mkdir(parents=True)
    (folder / "family.yaml").write_text(FAMILY)
    (folder / "cpu").mkdir()
    (folder / "cpu/rows.cpp").write_text("")
    (copy.path / "receipts/norms.yaml").write_text(RECEIPT)
    copy.edit("kernels/targets/cpu-generic.yaml", "algorithms:\n", "algorithms:\n" + ALGORITHMS)
    return copy.tree()


def names(root: Tree, where: str) -> list[str]:
    return [instance.name for instance in resolve("norms", ["cpu-generic", "cpu-avx2"], where, root=root).instances]


@pytest.mark.day
def test_it_is_listed_and_selected(norms: Tree) -> None:
    check(norms)
    everything = names(norms, "")
    # Instances of one column count: kinds x legal pairs of dtype and gamma_dtype x out_dtypes x experts, int8 not of
    # 64 columns.
    each, least = 2 * 2 * 4 * 2, 2 * 2 * 3 * 2
    signatures = least + 3 * each
    assert len(everything) == len(set(everything)) == 2 * (signatures + 2 * each + signatures)
    assert everything[0] == "norm_layer_n64_fp32gfp32ofp32_e1_rows_t4x256x1x4x1x1x1x256x1_s1_cpu_generic"
    assert any(name.endswith("_rows_t1x1024x1x1x4x1x1x256x1_s2_persistent_cpu_avx2") for name in everything)
    assert any(name.endswith("_rows_t1x1024x1x1x4x1x1x256x1_s2_bulk_cpu_avx2") for name in everything)

    def count(where: str) -> int:
        return len(names(norms, where))

    assert count("columns>=1024") + count("columns<=64") == len(everything)
    assert count("columns>=100 columns<=9000") == count("columns=1024,8192")
    assert count("persistent=yes") == count("stages>=2") - count("load=bulk") == 2 * 2 * each
    assert count("block_m<=3") == count("tile=1x1024x1x1x4x1x1x256x1") == count("block_n>=257") == count("stages=2")
    assert count("target=cpu-avx2 warps_n=4 load!=bulk") == 2 * each
    assert count("target!=cpu-avx2 or target=cpu-avx2") == len(everything)
    with pytest.raises(CodegenError, match=r"^where: no axis 'blok_m' in norm; nearest: block_m\n"):
        names(norms, "blok_m=1")
    with pytest.raises(CodegenError, match=r"^where: axis 'tile' of norm has no value '4x256x1'; values: 4x256x1x4x"):
        names(norms, "family=norm tile=4x256x1")
    with pytest.raises(CodegenError, match=r"^where: this leaves no value of axis 'stages'\n"):
        names(norms, "family=norm stages>=3")
    with pytest.raises(CodegenError, match=r"^where: axis 'target'.* has no value 'cpu-avx3'; nearest: cpu-avx2"):
        names(norms, "target=cpu-avx3")


def test_it_is_told(norms: Tree) -> None:
    plan = resolve("norms", ["cpu-avx2"], "columns=16384 experts=1 kind=rms dtype=bf16 out_dtype=int8", root=norms)
    assert plan.algorithm_axes() == ("target", "pipeline", "tile", "stages", "persistent", "load")
    assert [instance.algorithm for instance in plan.instances] == [
        {"target": "cpu-avx2", "pipeline": "rows", "tile": "4x256x1x4x1x1x1x256x1", "stages": "1"},
        {"target": "cpu-avx2", "pipeline": "rows", "tile": "1x1024x1x1x4x1x1x256x1", "stages": "2", "persistent": True},
        {"target": "cpu-avx2", "pipeline": "rows", "tile": "1x1024x1x1x4x1x1x256x1", "stages": "2", "load": "bulk"},
    ]
    assert csv([plan]).splitlines()[0].endswith(",target,pipeline,tile,stages,persistent,load")
    assert "4x256x1x4x1x1x1x256x1" in table([plan])
    answer, listed = explain(norms, "norms", "norm columns=16384 stages=2 load=bulk kind=rms", ["cpu-avx2"])
    assert listed
    assert answer.startswith("yes: norms lists norm kind=rms columns=16384 stages=2 load=bulk\n")
    answer = explain(norms, "norms", "norm columns=64 persistent=yes", ["cpu-avx2"]).text
    assert "it lists norm columns=64; the algorithms of this family are" in answer
    assert "rule int8_by_8" in explain(norms, "norms", "norm columns=64 out_dtype=int8", ["cpu-avx2"]).text


def test_it_is_rendered_and_compiled(norms: Tree, tmp_path: pathlib.Path) -> None:
    plan = resolve("norms", ["cpu-generic", "cpu-avx2"], root=norms)
    generated = generate([plan], tmp_path, committed.INFO)
    manifest = json.loads((tmp_path / "norms/manifest.json").read_text())
    assert manifest["families"]["norm"]["numbers"]["tile"] == NUMBERS[1:-1].split(", ")
    header = (tmp_path / "kernels/generated/norm.h").read_text()
    assert "namespace fields" in header
    program = tmp_path / "checks.cpp"
    program.write_text(
        '#include "kernels/generated/norm.h"\nusing namespace tilekiln::norm;\n'
        "constexpr Signature s{Kind::rms, 16384, Dtype::bf16, GammaDtype::fp16, OutDtype::int8, 8};\n"
        "static_assert(unpack(pack(s), pack_integers(s)).columns == 16384);\n"
        "static_assert(unpack(pack(s), pack_integers(s)).experts == 8);\n"
        "static_assert(wants::columns == 0 && wants::experts == 1 && sizes::columns == 1);\n"
        "static_assert(fields::block_m == 0 && fields::warp_k == 8 && fields::stages == 9 && fields::load == 11);\n"
    )
    paths = [*(source.path for source in generated.sources if source.kind in ("rows", "table")), "checks.cpp"]
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
    done = subprocess.run([COMPILERS[0], *flags, *paths], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "values: [64, 1024, 8192, 16384], holds",
            "values: [64, many], holds",
            "an axis that holds problems has numbers",
        ),
        (
            "values: [64, 1024, 8192, 16384], holds",
            "values: [64, 3000000000], holds",
            "3000000000 is more than an integer",
        ),
        (
            "values: [1, 8], holds: equal",
            "values: sizes, holds: equal",
            "no table 'sizes': write main, engine, the table or a list",
        ),
        ("fit: {rows: block_m", "fit: {row: block_m", "no size 'row'; nearest: rows"),
        (
            "name: load, values: [plain, bulk]",
            "name: load, of: [load], values: [plain]",
            "an algorithm axis has numbers",
        ),
        ("default: plain", "default: paper", "no load 'paper'; values: plain, bulk"),
        ("name: stages, of: [stages]", "name: stages, of: [block_m]", "'block_m' stands here twice"),
        (
            "source_by:",
            "entries: [{member: 'tile[int(Dtype::{dtpye})]'}]\nsource_by:",
            "it may name one axis in braces: ",
        ),
        ("sizes: [rows, columns]", "sizes: [a, b, c, d, e, f, g]", "a family has at most 6 sizes"),
    ],
)
def test_mistakes_of_a_family_are_told(copy: Copy, norms: Tree, old: str, new: str, message: str) -> None:
    copy.edit("kernels/test/norm/family.yaml", old, new)
    with pytest.raises(CodegenError) as raised:
        check(copy.tree())
    where, _, told = str(raised.value).partition(": ")
    assert where.startswith("kernels/test/norm/family.yaml:")
    assert told.startswith(message)


def test_sizes_are_ranges() -> None:
    rule = size_rule("rows>=64 columns=8 or rows<=2", ["rows", "columns"], "norm")
    assert [rule.holds(sizes) for sizes in ([64, 8], [63, 8], [64, 9], [2, 0], [0, 0], [3, 8])] == [
        True, False, False, True, True, False,
    ]  # fmt: skip
    assert size_rule("", [], "norm").holds([])
    for text in ("rows=1,2", "rows!=1", "rows>=18446744073709551616", "cols=1", "rows>=2 rows<=1"):
        with pytest.raises(SelectionError):
            size_rule(text, ["rows", "columns"], "norm")
