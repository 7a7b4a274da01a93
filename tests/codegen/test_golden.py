"""Plans and a sample of generated sources against the golden files, and the sample through compilers."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

from codegen.plan import resolve
from codegen.render import generate
from tests.codegen import golden
from tests.codegen.conftest import ROOT

COMPILERS = [name for name in ("g++", "clang++", "clang++-16") if shutil.which(name)]


@pytest.mark.parametrize("make", [golden.plans, golden.sources], ids=["plans", "sources"])
def test_golden_files_are_current(make: object) -> None:
    assert callable(make)
    new = make()
    kind = next(iter(new)).partition("/")[0]
    old = {path: text for path, text in golden.stored().items() if path.startswith(kind)}
    assert sorted(old) == sorted(new), "write them: tools/dev python tests/codegen/golden.py --write"
    for path, text in new.items():
        assert text == old[path], f"{path}; write it: tools/dev python tests/codegen/golden.py --write"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_generated_sources_compile_without_a_warning(compiler: str, tmp_path: pathlib.Path) -> None:
    generated = generate([resolve("fp32_min", ["all"]), resolve("fp8", ["all"], "hdim_q=192")], tmp_path, golden.INFO)
    paths = [unit.path for unit in generated.units]
    flags = [
        "-std=c++20",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        f"-I{ROOT / 'include'}",
        "-Iinclude",
    ]
    done = subprocess.run([compiler, *flags, *paths], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_packing_in_the_header_is_that_of_the_rows(tmp_path: pathlib.Path) -> None:
    """Every row of a plan, unpacked and packed by the generated header at compile time, gives the plan's signature."""
    plan = resolve("ck_default", ["cpu-generic"], "hdim_q=64,192 mode=group")
    generate([plan], tmp_path, golden.INFO)
    checks = []
    for instance in plan.instances:
        fields = []
        for axis, value in instance.signature.items():
            enum = f"{''.join(part.capitalize() for part in axis.split('_'))}::{value}"
            fields.append(str(value).lower() if isinstance(value, (bool, int)) else enum)
        checks.append(f"static_assert(pack({{{', '.join(fields)}}}) == {instance.packed}u);")
        checks.append(f"static_assert(pack(unpack({instance.packed}u)) == {instance.packed}u);")
    source = tmp_path / "check.cpp"
    head = '#include "tilekiln/generated/fmha_fwd.h"\nusing namespace tilekiln::fmha_fwd;\n'
    source.write_text(head + "\n".join(checks))
    flags = ["-std=c++20", "-fsyntax-only", f"-I{ROOT / 'include'}", "-Iinclude"]
    done = subprocess.run([COMPILERS[0], *flags, source], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(checks) > 500


def test_table_lists_the_plan_in_its_order(tmp_path: pathlib.Path) -> None:
    """Read table.cpp back: plan -> row, refs -> plan, groups ascending and by features, names in place."""
    plan = resolve("flash", ["cpu-generic", "cpu-avx2"], "hdim_q=64,192 mode=batch")
    generated = generate([plan], tmp_path, golden.INFO)
    text = (tmp_path / "flash" / "table.cpp").read_text()

    def numbers(name: str) -> list[list[int]]:
        body = re.search(rf" {name}\[\] = {{\n(.*?)}};", text, re.DOTALL)
        assert body
        found = re.findall(r"{([^{}]*)}|(\w+),", body[1])
        return [[int(word.rstrip("u"), 0) for word in (braced or single).split(",")] for braced, single in found]

    rows = {unit.path: (tmp_path / unit.path).read_text() for unit in generated.units if unit.kind == "rows"}
    batches = [
        [(int(packed, 0), name) for packed, name in re.findall(r"{(0x\w+)u, .*// (\w+)", rows[unit.path])]
        for unit in generated.units
        if unit.kind == "rows"
    ]
    listed = [batches[batch][index] for batch, index in numbers("plan")]
    assert listed == [(instance.packed, instance.name) for instance in plan.instances]
    refs, instance_of = numbers("refs"), [number for (number,) in numbers("instance_of")]
    assert [batches[batch][index] for batch, index in refs] == [listed[number] for number in instance_of]
    assert sorted(instance_of) == list(range(len(listed)))
    groups = numbers("groups")
    assert groups == sorted(groups)
    assert [begin for _, begin, _ in groups] == [0, *(end for _, _, end in groups[:-1])]
    hdims = (1 << 20) - 1 << 4
    for features, begin, end in groups:
        members = [listed[number] for number in instance_of[begin:end]]
        assert all(packed & ~hdims == features for packed, _ in members)
        order = [(packed >> 4 & 1023, packed >> 14 & 1023, name.endswith("avx2")) for packed, name in members]
        assert order == sorted(order)
    names = "".join(re.findall(r'^  "(\w+)\\0";?$', text, re.MULTILINE))
    offsets = [offset for (offset,) in numbers("name_offset")]
    assert names == "".join(instance.name for instance in plan.instances)
    assert offsets == [sum(len(i.name) + 1 for i in plan.instances[:at]) for at in range(len(plan.instances))]
