# SPDX-License-Identifier: MIT
"""CONTRIBUTING.md's recipes, carried out: what it says to write is written into a copy of the tree, and does that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "codegen",
    "receipts",
    "kernels",
    "include",
    "docs/reference",
    "VERSION",
    "LICENSE",
    "python/tilekiln/_generated/declared.pyi",
    "python/tilekiln/_generated/operators.json",
    "python/tilekiln/dispatcher/_fields.py",
    "python/tilekiln/dispatcher/_limits.py",
    "python/tilekiln/dispatcher/_setters.py",
    "python/tilekiln/reference",
    "python/tilekiln/torch/_declared.py",
    "tests/python",
)
TESTED = (
    "build_support",
    "python",
    "tests/alone.py",
    "tests/bytecode.py",
    "tests/codegen",
    "tests/conftest.py",
    "tests/gpu_run.py",
    "tests/programs.py",
    "tests/programs.yaml",
    "tests/named.py",
    "tests/pristine.py",
    "tests/progress.py",
    "tests/quick.py",
    "tests/sampling.py",
)
FORWARD = "kernels/attention/fmha_fwd/family.yaml"


def section(title: str) -> list[str]:
    """The YAML blocks below a heading, without their indentation in the page."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"CONTRIBUTING.md has no heading {title}"
    return [textwrap.dedent(block) for block in re.findall(r"^ *```yaml\n(.*?)^ *```$", found[1], re.M | re.S)]


class Scratch(NamedTuple):
    """A copy of the tree, or of what the generator needs of it."""

    root: Path

    def run(self, *words: str, code: int = 0) -> str:
        """Output of `python WORDS` there; its exit code must be `code`."""
        environment = {**os.environ, "PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'python'}"}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == code, f"{' '.join(words)}\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
        return done.stdout + done.stderr

    def codegen(self, *words: str, code: int = 0) -> str:
        return self.run("-m", "codegen", *words, code=code)

    def count(self, *words: str) -> int:
        return int(self.codegen("list", *words, "--count"))

    def append_to_list(self, file: str, key: str, block: str) -> None:
        """Put a block at the end of what stands below the topmost `key:` of a YAML file, indented as that is."""
        path = self.root / file
        found = re.search(rf"^{key}:\n((?: .*\n|\n)*? .*\n)(?=\n*\S)", path.read_text(), re.M)
        assert found
        path.write_text(path.read_text().replace(found[0], found[0] + textwrap.indent(block, "  "), 1))

    def add_head_dim(self) -> None:
        """Replace the line of the dtype that the page's line is for."""
        (line,) = section("A head dimension")
        dtype = line.strip().partition(":")[0]
        path = self.root / FORWARD
        text, replaced = re.subn(
            rf"^      {dtype}: \[.*\]$", f"      {line.strip()}", path.read_text(), count=1, flags=re.M
        )
        assert replaced == 1
        path.write_text(text)

    def add_receipt(self, block: str) -> str:
        name = block.partition("\n")[0].removeprefix("receipt: ")
        (self.root / "receipts" / f"{name}.yaml").write_text(block)
        return name

    def add_target(self) -> str:
        block = section("A target")[0]
        name = block.partition("\n")[0].removeprefix("target: ")
        (self.root / "kernels/targets" / f"{name}.yaml").write_text(block)
        return name


def copied(root: Path, parts: tuple[str, ...]) -> Scratch:
    for part in parts:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "build")
            shutil.copytree(ROOT / part, root / part, ignore=ignored, dirs_exist_ok=True)
        else:
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / part, root / part)
    return Scratch(root)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return copied(tmp_path / "tree", PARTS)


def changed(said: str) -> dict[str, tuple[int, int]]:
    """The receipts that `codegen check` names: instances before and now."""
    rows = re.findall(r"^  (\w+) +(none|[\d,]+) -> (none|[\d,]+)$", said, re.M)
    number = {"none": "0"}
    return {name: tuple(int(number.get(n, n).replace(",", "")) for n in both) for name, *both in rows}  # type: ignore[misc]


@pytest.mark.day
def test_a_head_dimension(scratch: Scratch) -> None:
    assert "no value '160'" in scratch.codegen("list", "flash", "--where", "hdim_q=160", code=2)
    scratch.add_head_dim()
    names = scratch.codegen("list", "flash", "--where", "hdim_q=160").splitlines()
    assert names
    assert all(name.startswith("fmha_fwd_bf16_d160x160_") for name in names)
    named = changed(scratch.codegen("check"))
    assert {"ck_default", "flash", "aiter", "pytorch"} <= set(named)
    assert not {"fp32", "fp8", "ck_bwd_fp16"} & set(named)
    assert named["flash"][1] - named["flash"][0] == len(names)


def test_a_rule(scratch: Scratch) -> None:
    (rule,) = section("A rule")
    question = "fmha_fwd dtype=bf16 bias=alibi sink=yes"
    assert scratch.codegen("explain", "ck_default", question).startswith("yes: ")
    scratch.append_to_list(FORWARD, "rules", rule)
    scratch.codegen("check")
    answer = scratch.codegen("explain", "ck_default", question, code=1)
    assert "rule alibi_without_sink: alibi takes no attention sinks" in answer
    scratch.append_to_list(FORWARD, "rules", rule.replace("alibi_without_sink", "again"))
    assert "never applies: head dims and the other rules allow nothing" in scratch.codegen("check", code=2)


ENGINE_CALL = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include "kernels/gemm/engine.h"
using namespace tilekiln::matrix;
extern "C" const Engine tilekiln_generic_gemm_panels;
int main() {
  const float a = 0.75f, b = 1;
  float out = 0;
  Problem p = {};
  p.activation = Activation::tanh, p.m = p.n = p.k = 1, p.a = &a, p.b = &b, p.out = &out;
  p.lda = p.ldb = p.out_row = 1, p.alpha = 1;
  const Engine& engine = tilekiln_generic_gemm_panels;
  engine.run[0](p, {0, 1, 0, 1}, std::aligned_alloc(64, engine.scratch_bytes));
  std::printf("%.7f", std::fabs(out - std::tanh(0.75)));
}
"""


@pytest.mark.day
def test_an_activation(scratch: Scratch) -> None:
    """One line of C++ and one of YAML: every operator of matrix products has it, and the engine computes it."""
    (values,) = section("An activation of matrix products")
    line = re.search(r"^ACTIVATION\(tanh.*$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert line
    [family] = scratch.root.glob("kernels/gemm/**/gemm/family.yaml")
    text, count = re.subn(r"(- name: activation\n    )values: .*\n", rf"\g<1>{values}", family.read_text())
    assert count == 1
    family.write_text(text)
    [activations] = scratch.root.rglob("activations.inc")
    activations.write_text(activations.read_text() + line[0] + "\n")
    scratch.codegen("operators", "--write")
    for receipt in ("gemm_default", "gemm_multi_d"):
        names = scratch.codegen("list", receipt, "--where", "activation=tanh").splitlines()
        assert {"gemm_default": 5, "gemm_multi_d": 1}[receipt] == len(
            {re.sub(r"_((fp|bf)(32|16|8)|int8).*", "", n) for n in names}
        )
    assert "7 (clamp) or 8 (tanh)" in (scratch.root / "include/tilekiln/operators/gemm.h").read_text()
    engine, caller = next(scratch.root.rglob("panels.cpp")), scratch.root / "call.cpp"
    shared = scratch.root.glob("kernels/gemm/cpu/*.cpp")
    caller.write_text(ENGINE_CALL)
    build = ["g++", "-std=c++20", "-O1", "-I", str(scratch.root / "include"), "-I", str(scratch.root)]
    program = scratch.root / "call"
    subprocess.run([*build, "-DTILEKILN_TARGET=generic", engine, *shared, caller, "-o", program], check=True)
    assert float(subprocess.run([program], check=True, capture_output=True, text=True).stdout) < 1e-6


@pytest.mark.day
def test_receipts(scratch: Scratch) -> None:
    alone, extending = section("A receipt")
    for block in (alone, extending):
        name = scratch.add_receipt(block)
        assert name in changed(scratch.codegen("check"))
        assert name in scratch.codegen("receipts", name)
    small = [line.split("_d128x128_")[0] for line in scratch.codegen("list", "decode_small").splitlines()]
    assert {name for name in small if "combine" not in name} == {"fmha_fwd_bf16", "fmha_fwd_splitkv_bf16"}
    assert scratch.count("decode_small") < scratch.count("flash") / 10
    every = scratch.codegen("list", "flash_sinks").splitlines()
    assert any("_sink_" in name for name in every)
    assert all("fmha_fwd_bf16_" in name and "_nbias_" in name for name in every if name.startswith("fmha_fwd_bf16"))
    assert not any(name.startswith(("fmha_batch_prefill", "fmha_fwd_fp16")) for name in every)
    flash = set(scratch.codegen("list", "flash").splitlines())
    assert {name for name in every if name not in flash} == {
        n for n in every if n.startswith("fmha_fwd_") and "_sink_" in n
    }
    assert {n for n in every if "_bwd_" in n} == {n for n in flash if "_bwd_" in n}  # not named: as they are


@pytest.mark.day
def test_an_axis_as_far_as_it_is_data(scratch: Scratch) -> None:
    axis, asked = section("An axis, or a value of an axis")
    before = scratch.count("flash", "--family", "fmha_fwd")
    scratch.append_to_list(FORWARD, "axes", axis)
    assert "axis 'relu' of fmha_fwd is missing here" in scratch.codegen("check", code=2)
    scratch.append_to_list(FORWARD.replace("family", "operator"), "signature", asked)
    scratch.codegen("operators", "--write")
    assert scratch.count("flash", "--family", "fmha_fwd") == 2 * before
    said = scratch.codegen("check")
    assert "relu=yes is new, and every source of rows that a receipt with it has is compiled again" in said
    named = changed(said)
    without = {path.stem for path in (ROOT / "receipts").glob("*.yaml")} - set(named)
    assert all(" fmha_fwd " not in scratch.codegen("receipts", name) for name in without)
    path = scratch.root / "receipts/flash.yaml"
    text = path.read_text()
    (keep,) = re.findall(r"  fmha_fwd:\n    keep: .*\n", text)
    path.write_text(text.replace(keep, f"{keep.rstrip()} relu=no\n"))
    assert scratch.count("flash", "--family", "fmha_fwd") == before
    assert "flash" not in changed(scratch.codegen("check"))


@pytest.mark.day
def test_an_operator(scratch: Scratch) -> None:
    """The files that the page names for softmax are all that it takes: without them the tree is well and speaks of no
    softmax, and with them all that is generated for it comes back."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = re.findall(r"^   \| `([^`]+)` \|", text[text.index("## An operator\n") :], re.M)
    shared = [name for name in files if "softmax" not in name]
    assert shared == ["kernels/targets/cpu-generic.yaml", "receipts/norm_default.yaml"]
    python = (
        "python/tilekiln/_generated/declared.pyi",
        "python/tilekiln/_generated/operators.json",
    )
    pages = ("include/tilekiln/operators.h", *python, "docs/reference/receipts.md")
    made = {name: (ROOT / name).read_bytes() for name in (*pages, "include/tilekiln/operators/softmax.h")}

    def write() -> None:
        scratch.codegen("write")

    assert re.search(r"^softmax_", scratch.codegen("list", "norm_default"), re.M)
    # The operator's files for GPUs came later, and are no part of the page's walk.
    backends = ("cuda", "hip")
    on_gpu = [
        *(
            str(path.relative_to(ROOT))
            for one in backends
            for path in sorted(ROOT.glob(f"kernels/targets/{one}-*.yaml"))
        ),
        *(f"kernels/backends/{one}/builds.yaml" for one in backends),
        *(f"kernels/norm/softmax/{one}/blocks.cpp" for one in backends),
    ]
    later = {name: (scratch.root / name).read_text() for name in on_gpu}
    for name, content in later.items():
        (scratch.root / name).write_text(
            re.sub(r"^softmax[^:\n]*:.*\n(  .*\n)*|^  softmax:.*\n(    .*\n)*", "", content, flags=re.M)
        )
    for one in backends:
        shutil.rmtree(scratch.root / "kernels/norm/softmax" / one)
    taken = {name: (scratch.root / name).read_text() for name in files if (scratch.root / name).exists()}
    for name, content in taken.items():
        if name in shared:
            path = scratch.root / name
            path.write_text(re.sub(r"^  softmax:\n    .*\n", "", content, flags=re.M))
            assert path.read_text() != content
        else:
            (scratch.root / name).unlink()
    (scratch.root / "include/tilekiln/operators/softmax.h").unlink()
    (scratch.root / "docs/reference/operators/softmax.md").unlink()
    for folder in ("cpu", ""):
        (scratch.root / "kernels/norm/softmax" / folder).rmdir()
    write()
    scratch.codegen("check")
    assert not re.search(r"^softmax_", scratch.codegen("list", "norm_default"), re.M)
    assert not any(b"tilekiln_softmax" in (scratch.root / name).read_bytes() for name in pages)
    for name, content in (*taken.items(), *later.items()):
        (scratch.root / name).parent.mkdir(exist_ok=True)
        (scratch.root / name).write_text(content)
    write()
    scratch.codegen("check")
    assert made == {name: (scratch.root / name).read_bytes() for name in made}


@pytest.mark.day
def test_kernels_of_an_operator(scratch: Scratch) -> None:
    """The entry of the page is the tree's, and `codegen check` names what of the page's places is missing."""
    (entry,) = section("An operator")
    builds, blocks = "kernels/backends/cuda/builds.yaml", "kernels/norm/softmax/cuda/blocks.cpp"
    content = (scratch.root / builds).read_text()
    assert f"\n{entry}" in content
    (scratch.root / builds).write_text(content.replace(f"\n{entry}", "\n"))
    assert "no kernel of family softmax is for cuda-sm" in scratch.codegen("check", code=2)
    (scratch.root / builds).write_text(content)
    (scratch.root / blocks).unlink()
    assert f"{blocks} is missing" in scratch.codegen("check", code=2)


def test_no_list_by_hand_names_the_worked_operator() -> None:
    """No module names softmax, but as the score of a router, in aiter's words too."""
    said = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "python").rglob("*.py")
        if re.search(r"['\"]softmax['\"]", file.read_text())
    }
    of_aiter = {"python/tilekiln/compat/aiter/ops/topk.py", "python/tilekiln/compat/aiter/_routing.py"}
    assert said == {"python/tilekiln/reference/gating.py", "python/tilekiln/torch/routers.py", *of_aiter}


@pytest.mark.day
def test_a_target(scratch: Scratch) -> None:
    name = scratch.add_target()
    scratch.codegen("check")
    assert name in scratch.codegen("targets")
    assert scratch.count("fp8", "--target", name) == scratch.count("fp8", "--target", "cpu-generic")


@pytest.mark.turns(1, 2)
def test_what_is_added_by_hand_breaks_no_test(tmp_path: Path) -> None:
    """A head dim, two receipts and a target, then golden files and reference pages: the generator's tests hold."""
    tree = copied(tmp_path / "tree", (*PARTS, *TESTED))
    tree.add_head_dim()
    for block in section("A receipt"):
        tree.add_receipt(block)
    tree.add_target()
    tree.codegen("write")
    files = [
        f"tests/codegen/test_{name}.py" for name in ("cli", "explain", "families", "kv", "plan", "receipts", "select")
    ]
    files += [
        f"tests/codegen/test_yaml_errors.py::test_{name}"
        for name in ("numbers_and_places_in_the_order_are_unique", "the_tree_is_well")
    ]
    # Not those that draw hundreds of cases, nor those that start processes.
    slow = "verdict brute_force reads_back narrowed exactly_the_combines pipe process heavy 32_bit companion".split()
    said = tree.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *files, "-k", f"not ({' or '.join(slow)})"
    )
    assert " passed" in said
