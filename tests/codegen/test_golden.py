# SPDX-License-Identifier: MIT
"""Committed files that are generated, golden files among them: what is written, and a sample through compilers."""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from codegen.cli import help_pages, main
from codegen.emit.render import Generated, generate
from codegen.out import committed
from codegen.plan.plan import Plan, resolve
from codegen.schema.axes import CODES, ENUMERATED, INTEGERS
from codegen.schema.tree import tree
from tests.codegen.conftest import ROOT, Copy

FAMILIES = list(tree().families)
# Some of every family, in each receipt that has them all.
WIDE = (
    "family!=fmha_batch_prefill hdim_q=64,192 mode=group or family=fmha_fwd_appendkv "
    "or family=fmha_mla_decode or family=fmha_batch_prefill mask=window bias=none softcap=no lse=no sink=no"
)
COMPILERS = [name for name in ("g++", "clang++", "clang++-16") if shutil.which(name)]


@pytest.mark.day
@pytest.mark.turns(1)
def test_what_is_out_of_date_is_named_and_written(copy: Copy) -> None:
    commands = help_pages()
    folder = copy.path / committed.GOLDEN
    assert not folder.exists()
    committed.write(copy.tree(), commands)
    assert not folder.exists()  # of a tree without its tests
    (folder / "plans").mkdir(parents=True)
    (folder / "plans/gone.txt").write_text("a receipt that is no more\n")
    done = committed.write(copy.tree(), commands)
    assert done[-1] == f"{committed.GOLDEN}/plans/gone.txt: removed"
    assert f"{committed.GOLDEN}/plans/flash.txt: written" in done
    assert f"{committed.GOLDEN}/sources/kernels/generated/softmax.h.txt: written" in done
    assert all(line.startswith(f"{committed.GOLDEN}/") for line in done)
    # One word of a declaration is in the C header, the types of Python and the page, and nowhere else.
    copy.edit("kernels/norm/softmax/operator.yaml", 'about: "Softmax:', 'about: "The softmax:')
    gone = "include/tilekiln/operators/gone.h"  # of an operator that is no more
    (copy.path / gone).write_text("// Made by `python -m codegen operators --write` from its operator.yaml.\n")
    (copy.path / "include/tilekiln/by_hand.h").write_text("// Of a host.\n")
    expected = {"docs/reference/operators/softmax.md", "include/tilekiln/operators/softmax.h", gone}
    named = committed.stale(copy.tree(), commands)
    assert expected <= set(named)
    named.remove(gone)
    assert all(
        "softmax" in path or path.startswith(("docs/reference/README", "python/", committed.GOLDEN)) for path in named
    )
    assert committed.write(copy.tree(), commands) == [*(f"{path}: written" for path in named), f"{gone}: removed"]
    assert committed.stale(copy.tree(), commands) == []
    assert (copy.path / "include/tilekiln/by_hand.h").exists()


def test_the_tree_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = main(["write", "--check"]), capsys.readouterr().out
    assert (code, said) == (0, "everything generated is up to date\n")


@pytest.mark.day
def test_a_stale_file_ends_the_check_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(committed, "INFO", {**committed.INFO, "cxx_version": "12.3.0"})
    assert main(["write", "--check"]) == 1
    stale = f"{committed.GOLDEN}/sources/{committed.RECEIPT}/manifest.json.txt"
    assert capsys.readouterr() == (f"{stale}: out of date\nwrite them: python -m codegen write\n", "")


def test_operators_from_outside_are_none_of_the_tree(command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = command("write", "--operators", "tests/consumers/relative_attention")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("codegen: write is of files that the tree holds; ")


@pytest.mark.day
@pytest.mark.parametrize("compiler", COMPILERS)
def test_generated_sources_compile_without_a_warning(compiler: str, tmp_path: pathlib.Path) -> None:
    narrow = [
        ("aiter", "family=fmha_bwd_dq_dk_dv hdim_q=80 mode=batch bias=alibi"),
        ("fp8", "hdim_q=192"),
        ("fp32_min", ""),
        ("ck_test", "family=fmha_fwd_appendkv,fmha_fwd_splitkv hdim_q=32 bias=alibi sink=no mask=none or rope=half"),
        ("aiter_group", "family=fmha_fwd_pagedkv bias=alibi or page_size=1 dtype=fp8bf16 mask=none"),
    ]
    generated = generate([resolve(name, ["all"], where) for name, where in narrow], tmp_path, committed.INFO)
    paths = [source.path for source in generated.sources]
    flags = [
        "-std=c++20",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        f"-I{ROOT / 'include'}",
        f"-I{ROOT}",
        "-I.",
    ]
    done = subprocess.run([compiler, *flags, *paths], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Plan, Generated, pathlib.Path]]:
    """made(receipt, targets, where) -> its plan, what is generated of it, and the folder, once for all families."""

    @functools.cache
    def make(receipt: str, targets: tuple[str, ...], where: str) -> tuple[Plan, Generated, pathlib.Path]:
        plan, place = resolve(receipt, list(targets), where), tmp_path_factory.mktemp(receipt)
        return plan, generate([plan], place, committed.INFO), place

    return make


def holder(wanted: str, family: str) -> tuple[str, str]:
    """The wanted receipt, WIDE of it, if it lists the family; else the first that does, all of it."""
    receipts = [r.name for r in tree().all_receipts() if any(f.name == family for f in tree().families_of(r))]
    return (wanted, WIDE) if wanted in receipts else (receipts[0], "")


@pytest.mark.sampled(24)
@pytest.mark.parametrize("family", FAMILIES)
def test_packing_in_the_header_is_that_of_the_rows(
    made: Callable[..., tuple[Plan, Generated, pathlib.Path]], family: str
) -> None:
    """Every row of a plan, unpacked and packed by the generated header at compile time, gives the plan's signature."""
    receipt, where = holder("ck_default", family)
    plan, _, place = made(receipt, ("cpu-generic",), where)
    checks = []
    for instance in plan.instances:
        if instance.family != family:
            continue
        fields = []
        for axis, value in instance.signature.items():
            enum = f"{''.join(part.capitalize() for part in axis.split('_'))}::{value}"
            if tree().family(family).axis_of[axis].kind == ENUMERATED:
                fields.append(enum if isinstance(value, str) else f"{enum.partition('::')[0]}::_{value}")
            else:
                fields.append(str(value).lower())
        codes, integers = instance.packed & CODES, instance.packed >> INTEGERS
        checks.append(f"static_assert(pack({{{', '.join(fields)}}}) == {codes}u);")
        checks.append(f"static_assert(pack_integers({{{', '.join(fields)}}}) == {integers}u);")
        checks.append(f"static_assert(pack(unpack({codes}u, {integers}u)) == {codes}u);")
    source = place / f"check_{family}.cpp"
    head = f'#include "kernels/generated/{family}.h"\nusing namespace tilekiln::{family};\n'
    source.write_text(head + "\n".join(checks))
    flags = ["-std=c++20", "-fsyntax-only", f"-I{ROOT / 'include'}", f"-I{ROOT}", "-I."]
    done = subprocess.run([COMPILERS[0], *flags, source], cwd=place, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(checks) == 3 * sum(instance.family == family for instance in plan.instances) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_table_lists_the_plan_in_its_order(
    made: Callable[..., tuple[Plan, Generated, pathlib.Path]], family: str
) -> None:
    """Read table.cpp back: plan -> row, instance_of, groups ascending and by codes."""
    receipt, where = holder("flash", family)
    plan, generated, place = made(receipt, ("cpu-generic", "cpu-avx2"), where)
    text = (place / receipt / "table.cpp").read_text()
    found = re.search(rf"namespace {family}_table {{(.*?)}}  // namespace", text, re.DOTALL)
    assert found
    own = found[1]

    def numbers(name: str, text: str = text) -> list[list[int]]:
        body = re.search(rf" {name}\[\] = {{(?:  //[^\n]*)?\n(.*?)}};", text, re.DOTALL)
        assert body
        found = re.findall(r"{([^{}]*)}|(\w+),", body[1])
        return [[int(word.rstrip("u"), 0) for word in (braced or single).split(",")] for braced, single in found]

    rows = {source.path: (place / source.path).read_text() for source in generated.sources if source.kind == "rows"}
    batches = [
        [
            (int(codes, 0) | int(integers, 0) << INTEGERS, name)
            for codes, integers, name in re.findall(r"{(0x\w+)u, (0x\w+)u, .*// (\w+)", rows[source.path])
        ]
        for source in generated.sources
        if source.kind == "rows"
    ]
    listed = [batches[batch][index] for batch, index in numbers("plan")]
    assert listed == [(instance.packed, instance.name) for instance in plan.instances]
    instance_of = [number for (number,) in numbers("instance_of", own)]
    assert sorted(instance_of) == [at for at, i in enumerate(plan.instances) if i.family == family]
    groups = numbers("groups", own)
    assert groups == sorted(groups)
    assert [begin for _, begin, _ in groups] == [0, *(end for _, _, end in groups[:-1])]
    axes = tree().family(family).axis_of
    integers = [axes[name] for name in ("hdim_q", "hdim_v") if name in axes]
    for codes, begin, end in groups:
        members = [listed[number] for number in instance_of[begin:end]]
        assert all(packed & CODES == codes for packed, _ in members)
        sizes = [[packed >> axis.shift & axis.field for axis in integers] for packed, _ in members]
        order = [
            (*size, name.endswith("avx2"), "_dlanes_" in name) for size, (_, name) in zip(sizes, members, strict=True)
        ]
        assert order == sorted(order)
    assert f'{len(plan.instances)}, "{plan.digest}"' in text
