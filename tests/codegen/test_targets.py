"""Targets and their backends: what no backend compiles is refused; a target refuses signatures with its reason."""

from __future__ import annotations

import re

import pytest

from codegen.emit.render import render
from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.tell.check import check
from codegen.tell.explain import explain
from codegen.tell.listing import targets
from tests.codegen.conftest import Copy
from tests.codegen.golden import INFO

CUDA = """target: cuda-sm90a
backend: cuda
about: Hopper.
index: 40
order: 40
arch: any
flags: [-arch=sm_90a]
"""
NO_FP32 = """refuses:
  fmha_fwd:
    - {name: no_fp32, when: dtype=fp32, says: the unit multiplies no fp32}
"""
AVX2 = "kernels/targets/cpu-avx2.yaml"


def test_a_target_that_nothing_here_compiles_is_refused(copy: Copy) -> None:
    (copy.path / "kernels/targets/cuda-sm90a.yaml").write_text(CUDA)
    said = r"^kernels/targets/cuda-sm90a\.yaml:2:10: no backend 'cuda': nothing here compiles or runs its targets; "
    with pytest.raises(CodegenError, match=said):
        _ = copy.tree().targets
    (copy.path / "kernels/targets/cuda-sm90a.yaml").write_text(CUDA.replace("backend: cuda", "backend: cpu"))
    with pytest.raises(CodegenError, match=r"yaml:1:9: the name must begin with that of its backend: cpu-$"):
        _ = copy.tree().targets
    (copy.path / "kernels/targets/cuda-sm90a.yaml").unlink()
    copy.edit(AVX2, "isa: avx2\n", "")
    with pytest.raises(CodegenError, match=r"cpu-avx2\.yaml:1:1: 'isa' is missing here: a target of backend cpu needs"):
        _ = copy.tree().targets


def test_targets_of_two_backends_do_not_extend_each_other(copy: Copy) -> None:
    room = copy.path / "kernels/backends/unit"
    room.mkdir()
    text = (copy.path / "kernels/backends/cpu/backend.yaml").read_text()
    (room / "backend.yaml").write_text(
        text.replace("backend: cpu", "backend: unit").replace("device: 1 ", "device: 14")
    )
    target = (copy.path / AVX2).read_text().replace("target: cpu-avx2", "target: unit-one").replace("1\n", "40\n")
    (copy.path / "kernels/targets/unit-one.yaml").write_text(target.replace("backend: cpu", "backend: unit"))
    with pytest.raises(CodegenError, match=r"'cpu-generic' is of backend cpu, must be of unit as 'unit-one' is$"):
        _ = copy.tree().targets
    # With algorithms of its own it is a target as others are, but never the native one of this machine.
    algorithms = "algorithms:\n  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n"
    without = re.sub("extends: .*\n", algorithms, target).replace("backend: cpu", "backend: unit")
    (copy.path / "kernels/targets/unit-one.yaml").write_text(without)
    root = copy.tree()
    assert list(root.targets)[-1] == "unit-one"
    assert root.native().backend == "cpu"
    assert {i.family for i in resolve("fp32_min", ["unit-one"], root=root).instances} == {"fmha_fwd"}


def test_a_target_refuses_by_a_rule_with_its_reason(copy: Copy) -> None:
    before = resolve("flash", ["cpu-avx2", "cpu-avx512"], family="fmha_fwd", root=copy.tree()).instances
    (copy.path / AVX2).write_text((copy.path / AVX2).read_text() + NO_FP32.replace("fp32", "bf16"))
    root = copy.tree()
    plan = resolve("flash", ["cpu-avx2", "cpu-avx512"], family="fmha_fwd", root=root)
    gone = {i.name for i in before} - {i.name for i in plan.instances}
    assert gone
    assert gone == {i.name for i in before if i.target.name == "cpu-avx2" and i.signature["dtype"] == "bf16"}
    answer = explain(root, "flash", "fmha_fwd dtype=bf16 hdim_q=128", ["cpu-avx2"])
    assert not answer.listed
    assert "\n  rule no_bf16 of target cpu-avx2: the unit multiplies no bf16\n" in answer.text
    assert "targets that can: cpu-generic, cpu-avx512, cpu-avx512bf16" in answer.text
    assert "refuses" in targets(root)
    table = render([plan], INFO).contents["flash/table.cpp"].decode()
    assert '{ "no_bf16", "the unit multiplies no bf16", {conditions_' in table
    assert "how_cpu_avx2, refused_cpu_avx2," in table
    assert "how_cpu_avx512, nullptr," in table


def test_a_refusal_must_forbid_something(copy: Copy) -> None:
    (copy.path / AVX2).write_text(
        (copy.path / AVX2).read_text() + NO_FP32.replace("dtype=fp32", "dtype=fp16 qscale=pertensor")
    )
    with pytest.raises(CodegenError, match=r"'no_fp32' never applies: cpu-avx2 answers nothing that it forbids$"):
        check(copy.tree())
    name = next(iter(copy.tree().families["fmha_fwd"].rules)).name
    copy.edit(AVX2, "no_fp32", name)
    with pytest.raises(CodegenError, match=rf"fmha_fwd has a rule '{name}' already$"):
        check(copy.tree())
