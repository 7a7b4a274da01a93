# SPDX-License-Identifier: MIT
"""Generated trees: the same bytes everywhere, written only when they change, never half, nothing stale."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from codegen.emit import files
from codegen.emit.generated import Generated
from codegen.emit.inputs import prepare
from codegen.emit.manifest import inflated
from codegen.emit.render import generate
from codegen.plan import held
from codegen.plan.plan import resolve
from codegen.schema.tree import tree
from codegen.tell.check import mixed
from tests.codegen.conftest import ROOT, Copy

INFO = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ["-O2"]}
TARGETS = ["cpu-generic", "cpu-avx2"]


def make(copy: Copy, out: pathlib.Path, *receipts: str, where: str = "", write: bool = True) -> Generated:
    root = copy.tree()
    return generate([resolve(name, TARGETS, where, root=root) for name in receipts], out, INFO, write=write)


def content(out: pathlib.Path) -> dict[str, str]:
    found = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.day
def test_two_directories_hash_seeds_and_trees_give_the_same_bytes(copy: Copy, tmp_path: pathlib.Path) -> None:
    program = (
        "import sys\nfrom codegen.emit.inputs import prepare\nfrom codegen.schema.tree import Tree\n"
        f"prepare(['flash', 'fp8'], {TARGETS!r}, '', sys.argv[1], {INFO!r}, root=Tree(sys.argv[2]))"
    )
    other = tmp_path / "elsewhere" / "tree"
    shutil.copytree(copy.path, other)
    trees = []
    for seed, root in (("1", copy.path), ("2", other)):
        out = root.parent / f"gen{seed}"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", program, out, root], env=environment, check=True, cwd=tmp_path)
        trees.append(content(out))
    assert trees[0] == trees[1]
    for path in (copy.path.parent / "gen1").rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes()


def test_units_hold_the_plan(copy: Copy, tmp_path: pathlib.Path) -> None:
    generated = make(copy, tmp_path / "gen", "flash")
    plan = resolve("flash", TARGETS)
    rows = [source for source in generated.sources if source.kind == "rows"]
    assert sorted(name for source in rows for name in source.instances) == sorted(i.name for i in plan.instances)
    for source in rows:
        text = (tmp_path / "gen" / source.path).read_text()
        assert [line.partition("// ")[2] for line in text.splitlines() if line.startswith("  {")] == list(
            source.instances
        )
    assert [source.path for source in generated.sources if source.kind != "rows"] == [
        "flash/table.cpp",
        "flash/operators.cpp",
        "flash/manifest.cpp",
    ]
    assert [(engine.source, engine.target, engine.symbol, engine.receipts) for engine in generated.engines] == [
        (f"kernels/{room}/cpu/{pipeline}.cpp", f"cpu-{isa}", f"tilekiln_cpu_{isa}_{family}_{pipeline}", ("flash",))
        for family, room, pipelines in (
            # of all five families over a KV cache, in the order of the first
            ("fmha_fwd_splitkv", "attention/fmha_fwd_splitkv", ("qlanes", "dlanes")),
            ("fmha_bwd_dq_dk_dv", "attention/fmha_bwd/dq_dk_dv", ("qlanes",)),
            ("fmha_fwd", "attention/fmha_fwd", ("qlanes",)),
            ("fmha_mla_decode", "attention/fmha_mla_decode", ("qlanes",)),
        )
        for isa in ("generic", "avx2")
        for pipeline in pipelines
    ]
    operators = [path.parent.name for path in sorted((ROOT / "kernels").glob("**/operator.yaml"))]
    units = held.units(tree())
    assert "kernels/generated/host/runtime.cpp" in units
    names = [*tree().families, *(f"operators/{o}{end}" for o in operators for end in ("", "_table", "_entries"))]
    assert sorted(generated.headers) == sorted([*units, *(f"kernels/generated/{name}.h" for name in names)])


@pytest.mark.parametrize("receipt", ["fp32_min", "norm_default"])
def test_a_family_brings_no_host_code_of_others(receipt: str) -> None:
    companions = {family.name for family in tree().families.values() if family.file.companion_of}
    for family in {instance.family for instance in resolve(receipt, TARGETS[:1]).instances} - companions:
        plan = resolve(receipt, TARGETS[:1], f"family={family}")
        asked, operators = {instance.family for instance in plan.instances}, held.operators(plan)
        called = {os.path.dirname(one.file.call.header) for one in operators}  # a gradient's may be its forward's
        others = {one.room for one in tree().operators.values() if asked.isdisjoint(one.file.stages)} - called
        assert {f"{room}/*.cpp" for room in others}.isdisjoint(held.host(operators, []))


def test_a_second_generation_writes_nothing(copy: Copy, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "gen"
    first = make(copy, out, "flash")
    assert len(first.written) == len(first.sources) + len(first.headers) + 1  # and manifest.json
    for path in out.rglob("*"):
        os.utime(path, (1, 1))
    second = make(copy, out, "flash")
    assert (second.written, second.removed) == ([], [])
    assert {path.stat().st_mtime for path in out.rglob("*") if path.is_file()} == {1}
    assert (second.sources, second.engines) == (first.sources, first.engines)


@pytest.mark.day
def test_write_false_touches_nothing_and_says_what_would_be(copy: Copy, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "gen"
    told = make(copy, out, "fp32_min", write=False)
    assert not out.exists()
    assert told.written == make(copy, out, "fp32_min").written
    before = content(out)
    told = make(copy, out, "fp32_min", where="sink=yes", write=False)
    assert content(out) == before
    # Sources of each target: 2 of the forward and 2 + 1 + 1 of the backward. Headers stay: the runtime needs all.
    assert len(told.removed) == 2 * (2 + 2 + 1 + 1)


@pytest.mark.day
def test_receipts_share_units_and_leave_each_others_alone(copy: Copy, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "gen"
    both = make(copy, out, "ck_default", "ck_extended", where="dtype=bf16 hdim_q=64")
    shared = [source for source in both.sources if source.kind == "rows"]
    assert shared
    assert all(source.receipts == ("ck_default", "ck_extended") for source in shared)
    assert all(engine.receipts == ("ck_default", "ck_extended") for engine in both.engines)
    before = content(out)
    make(copy, out, "fp8")
    assert {path: text for path, text in content(out).items() if path in before} == before


def test_what_a_receipt_no_longer_needs_goes_and_nothing_else(copy: Copy, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "gen"
    make(copy, out, "flash", "ck_default", where="dtype=bf16 hdim_q=64,128 sink=no skip_min_seqlen_q=no")
    mine = out / "rows" / "fmha_fwd" / "mine.txt"
    mine.write_text("not generated")
    kept = set(content(out))
    done = make(copy, out, "flash", where="dtype=bf16 hdim_q=64")
    assert done.removed
    assert all("d128x128" in path for path in done.removed)
    # Units that ck_default still has are the same files as flash had, or stay.
    assert set(content(out)) == kept - set(done.removed) | set(done.written)
    assert mine.read_text() == "not generated"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("file", "old", "new", "touched"),
    [
        ("kernels/attention/fmha_fwd/family.yaml", "fp8fp32: [", "fp8fp32: [248x248, ", "fp8fp32_d248x248"),
        ("receipts/fp8.yaml", "hdim_q=128,192", "hdim_q=128,192,64", "_d64x64"),
    ],
)
def test_a_new_value_changes_only_the_units_concerned(
    copy: Copy, tmp_path: pathlib.Path, file: str, old: str, new: str, touched: str
) -> None:
    out = tmp_path / "gen"
    make(copy, out, "fp8")
    copy.edit(file, old, new)
    if "248x248" in new:
        copy.edit("receipts/fp8.yaml", "hdim_q=128,192", "hdim_q=128,192,248")
    done = make(copy, out, "fp8")
    rows = [path for path in done.written if path.startswith("rows/")]
    others = [path for path in rows if touched not in path]
    assert rows
    assert others == []
    assert done.removed == []
    assert {path for path in done.written if not path.startswith("rows/")} <= {
        "fp8/manifest.cpp",
        "fp8/manifest.json",
        "fp8/table.cpp",
        "kernels/generated/fmha_fwd.h",
    }


@pytest.mark.day
def test_a_value_apart_leaves_the_units_that_were_there(copy: Copy, tmp_path: pathlib.Path) -> None:
    """Without `apart` a further mode changes every source of the family, whose rows it doubles."""
    out, mode = tmp_path / "gen", "- name: mode\n    values: [batch, group"
    make(copy, out, "fp8")
    shutil.copytree(ROOT / "docs/reference", copy.path / "docs/reference", dirs_exist_ok=True)
    before = [path for path in content(out) if path.startswith("rows/")]
    copy.edit("kernels/attention/fmha_fwd/family.yaml", f"{mode}]", f"{mode}, nested]\n    apart: [nested]")
    assert mixed(copy.tree()) == []
    done = make(copy, out, "fp8")
    written = [path for path in done.written if path.startswith("rows/")]
    assert written
    assert all(path.startswith("rows/fmha_fwd/") and "_nested-" in path for path in written)
    assert done.removed == []
    copy.edit("kernels/attention/fmha_fwd/family.yaml", "\n    apart: [nested]", "")
    (line,) = mixed(copy.tree())
    assert line.startswith("kernels/attention/fmha_fwd/family.yaml: mode=nested is new, and every source of rows")
    assert "`apart: [nested]`" in line
    done = make(copy, out, "fp8")
    gone = {path for path in done.removed if "_nested-" not in path}
    assert gone == {path for path in before if path.startswith("rows/fmha_fwd/")}


def test_a_failed_write_leaves_the_old_file(
    copy: Copy, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "gen"
    make(copy, out, "fp32_min")
    before = content(out)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        make(copy, out, "fp32_min", where="sink=yes")
    assert content(out) == before


def test_prepare_skips_all_work_when_nothing_changed(copy: Copy, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "gen"
    first = prepare(["flash", "fp8"], TARGETS, "", out, INFO, root=copy.tree())
    program = (
        "import sys\nfrom codegen.emit import inputs\nfrom codegen.schema.tree import Tree\n"
        "inputs.resolve = inputs.generate = None\n"
        f"root = Tree({str(copy.path)!r})\n"
        f"made = inputs.prepare(['flash', 'fp8'], {TARGETS!r}, '', {str(out)!r}, {INFO!r}, root=root)\n"
        "print(len(made.sources), made.written, made.removed, 'jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(first.sources)} [] [] False\n"
    again = prepare(["flash", "fp8"], TARGETS, "", out, INFO, root=copy.tree())
    assert (again.sources, again.engines, again.headers) == (first.sources, first.engines, first.headers)


@pytest.mark.quick(1)
@pytest.mark.parametrize("change", ["receipt", "template", "header", "info", "file", "lost", "target", "ledger"])
def test_prepare_works_when_anything_changed(copy: Copy, tmp_path: pathlib.Path, change: str) -> None:
    out, info, targets = tmp_path / "gen", dict(INFO), list(TARGETS)
    first = prepare(["fp8"], targets, "", out, info, root=copy.tree())
    source = out / next(source.path for source in first.sources if source.kind == "rows")
    if change == "receipt":
        copy.edit("receipts/fp8.yaml", "number: 888", "number: 889")
    elif change == "template":
        copy.edit("kernels/runtime/rows.cpp.jinja", "Generated by codegen", "Made by codegen")
    elif change == "header":
        (copy.path / "include/tilekiln/new.h").write_text("#pragma once\n")
    elif change == "info":
        info["mode"] = "debug"
    elif change == "file":
        source.write_text(source.read_text().replace("0x", "0x1"))
    elif change == "lost":
        source.unlink()
    elif change == "target":
        targets.append("cpu-avx512")
    else:
        (out / "ledger" / "fp8.json").write_text("{")
    wanted = {} if change == "ledger" else content(out)
    done = prepare(["fp8"], targets, "", out, info, root=copy.tree())
    fresh = tmp_path / "fresh"
    prepare(["fp8"], targets, "", fresh, info, root=copy.tree())
    assert content(out) == content(fresh)
    assert done.written or change == "ledger"
    assert wanted != content(out)


def test_an_edit_of_the_plan_is_seen_by_its_digest() -> None:
    plans = [resolve("fp32_min", TARGETS), resolve("fp32_min", TARGETS[:1]), resolve("fp32_min", TARGETS, "sink=no")]
    assert len({plan.digest for plan in plans}) == 3


def test_any_text_compiles(copy: Copy, tmp_path: pathlib.Path) -> None:
    """The end of a raw string, an emoji, quotes and control characters reach the library as they stand in YAML."""
    about = 'ends it )manifest" and )manifest1" \\ "quoted" \U0001f642'
    receipt = copy.path / "receipts/fp32_min.yaml"
    lines = receipt.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("about:"))
    lines[at] = f"about: {json.dumps(about, ensure_ascii=False)}"
    receipt.write_text("\n".join(lines) + "\n")
    family = copy.path / "kernels/attention/fmha_fwd/family.yaml"
    rule, *_ = [line for line in family.read_text().splitlines() if line.strip().startswith("says: ")]
    says = 'a tab\t1 and "quotes" \\ \U0001f642 ??/'
    copy.edit(
        "kernels/attention/fmha_fwd/family.yaml",
        rule,
        rule.partition("says: ")[0] + f"says: {json.dumps(says, ensure_ascii=False)}",
    )
    out = tmp_path / "gen"
    make(copy, out, "fp32_min")
    program = tmp_path / "shows.cpp"
    program.write_text(
        f'#include "{out}/fp32_min/manifest.cpp"\n#include "{out}/fp32_min/table.cpp"\n#include <cstdio>\n'
        "int main() {\n  std::fwrite(tilekiln::manifest_fp32_min, 1, sizeof(tilekiln::manifest_fp32_min), stdout);\n"
        "  std::putchar(10);\n  for (const auto& rule : tilekiln::fmha_fwd_table::rules) std::puts(rule.says);\n}\n"
    )
    include = [f"-I{copy.path}/include", f"-I{copy.path}", f"-I{out}"]
    # The table's rows and engines are not linked: only what is shown is kept.
    flags = ["-std=c++20", "-O1", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]
    command = ["g++", *flags, *include, str(program), "-o", str(tmp_path / "shows")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([tmp_path / "shows"], capture_output=True, check=True).stdout
    (manifest,) = inflated(shown)
    assert json.loads(manifest)["receipt"]["about"] == about
    assert says in shown.decode(errors="replace").splitlines()
