# SPDX-License-Identifier: MIT
"""Targets and their backends: what no backend compiles is refused; a target refuses signatures with its reason."""

from __future__ import annotations

import re

import pytest
import yaml

from codegen.emit import kernels
from codegen.emit.render import render
from codegen.out.committed import INFO
from codegen.plan.plan import resolve
from codegen.plan.sieve import Sieve
from codegen.schema import nvidia
from codegen.schema.errors import CodegenError
from codegen.schema.targets import check_limits
from codegen.schema.tree import Tree, tree
from codegen.tell.check import check, check_absent
from codegen.tell.explain import explain
from codegen.tell.listing import targets
from tests.codegen.conftest import Copy

VULKAN = """target: vulkan-one
backend: vulkan
about: A card.
index: 40
order: 40
arch: any
flags: []
"""
NO_FP32 = """refuses:
  fmha_fwd:
    - {name: no_fp32, when: dtype=fp32, says: the unit multiplies no fp32}
"""
AVX2 = "kernels/targets/cpu-avx2.yaml"


def test_a_target_that_nothing_here_compiles_is_refused(copy: Copy) -> None:
    (copy.path / "kernels/targets/vulkan-one.yaml").write_text(VULKAN)
    said = r"^kernels/targets/vulkan-one\.yaml:2:10: no backend 'vulkan': nothing here compiles or runs its targets; "
    with pytest.raises(CodegenError, match=said):
        _ = copy.tree().targets
    (copy.path / "kernels/targets/vulkan-one.yaml").write_text(VULKAN.replace("backend: vulkan", "backend: cpu"))
    with pytest.raises(CodegenError, match=r"yaml:1:9: the name must begin with that of its backend: cpu-$"):
        _ = copy.tree().targets
    (copy.path / "kernels/targets/vulkan-one.yaml").unlink()
    copy.edit(AVX2, "isa: avx2\n", "")
    with pytest.raises(CodegenError, match=r"cpu-avx2\.yaml:1:1: 'isa' is missing here: a target of backend cpu needs"):
        _ = copy.tree().targets


def test_targets_of_other_backends_are_read_when_they_are_named(copy: Copy) -> None:
    copy.edit("kernels/targets/hip-gfx90a.yaml", "backend: hip", "backend: hip\nwarps: 4")
    root = copy.tree()
    assert root.native().backend == "cpu"
    assert resolve("fp32_min", ["all"], root=root).instances
    with pytest.raises(CodegenError, match=r"^kernels/targets/hip-gfx90a\.yaml:3:1: "):
        root.target("hip-gfx942")
    copy.edit(AVX2, "extends: cpu-generic", "extends: hip-gfx942")
    copy.edit("kernels/targets/hip-gfx90a.yaml", "warps: 4\n", "")
    with pytest.raises(CodegenError, match=r"'hip-gfx942' is of backend hip, must be of cpu as 'cpu-avx2' is$"):
        copy.tree().native()


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
    # Algorithms of its own make it a target as others are, but never the native one of this machine.
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
    assert "how_cpu_avx512, refused_cpu_avx512," in table
    assert table.count('{ "no_bf16", ') == 1


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


UNIT = """backend: unit
about: A backend of tests with kernels of its own.
device: 14
machine: cuda
toolchain: cxx
engine: {header: kernels/backends/unit/engine.h, type: "unit::Engine"}
limits: {registers: of a thread, shared_bytes: shared memory of a block}
"""
UNIT_ONE = """target: unit-one
backend: unit
about: Its one target.
index: 40
order: 40
arch: sm_90a
flags: [-arch=sm_90a]
limits: {registers: 255, shared_bytes: 232448}
algorithms:
  fmha_fwd:
    - {pipeline: qlanes, tile: 64x64}
"""


def unit(copy: Copy, backend: str = UNIT, target: str = UNIT_ONE) -> Tree:
    room = copy.path / "kernels/backends/unit"
    room.mkdir(exist_ok=True)
    (room / "backend.yaml").write_text(backend)
    (copy.path / "kernels/targets/unit-one.yaml").write_text(target)
    return copy.tree()


def test_a_target_says_the_limits_of_its_backend(copy: Copy) -> None:
    root = unit(copy)
    assert re.search(r"\n    limits +registers 255, shared_bytes 232,448\n", targets(root))
    one = root.target("unit-one")
    check_limits(one, "forward.cu", {"registers": 255, "shared_bytes": 232448})
    said = r"^forward\.cu: shared_bytes was 232,449, must be at most 232,448 \(shared memory of a block\)"
    with pytest.raises(CodegenError, match=said):
        check_limits(one, "forward.cu", {"shared_bytes": 232449})
    without = UNIT_ONE.replace(", shared_bytes: 232448", "")
    with pytest.raises(CodegenError, match=r"'shared_bytes' is missing here: shared memory of a block$"):
        _ = unit(copy, target=without).targets
    more = UNIT_ONE.replace("232448}", "232448, waves: 3}")
    with pytest.raises(CodegenError, match=r"no limit 'waves' of backend unit; it has registers, shared_bytes$"):
        _ = unit(copy, target=more).targets
    copy.edit("kernels/targets/cpu-avx2.yaml", "isa: avx2\n", "isa: avx2\nlimits: {registers: 16}\n")
    with pytest.raises(CodegenError, match=r"cpu-avx2\.yaml:.*no limit 'registers' of backend cpu, which has none$"):
        _ = unit(copy).targets


def test_a_family_that_a_target_answers_has_a_kernel(copy: Copy) -> None:
    """Of kernels compiled ahead: without one each call would end with an error of the library's own."""
    copy.edit("kernels/backends/cuda/builds.yaml", "  family: softmax\n", "  family: rotary\n")
    said = r"^kernels/backends/cuda/builds\.yaml: no kernel of family softmax is for cuda-sm(80|90a), whose file lists"
    with pytest.raises(CodegenError, match=said):
        check(copy.tree())


def test_a_kernel_for_each_architecture(copy: Copy) -> None:
    """Each has what an entry says of it; words that cannot mean anything are refused where they stand."""
    path = copy.path / "kernels/backends/hip/builds.yaml"
    entry = yaml.safe_load(path.read_text())["move_{architecture}"]

    def kernels_of(of: str, name: str = "move_{architecture}", **changes: object) -> list[kernels.Kernel]:
        said = {name: {key: value for key, value in {**entry, **changes}.items() if value is not None}}
        path.write_text(yaml.safe_dump(said))
        return kernels.of_target(copy.tree(), of)

    own = {"architectures": ["gfx942", "gfx1100"], "vary": {"gfx1100": {"THREADS": 128}}}
    made = {
        target: [(one.name, one.file.define["THREADS"]) for one in kernels_of(target, **own)]
        for target in ("hip-gfx90a", "hip-gfx942", "hip-gfx1100")
    }
    assert made == {
        "hip-gfx90a": [],
        "hip-gfx942": [("move_gfx942-any", 256)],
        "hip-gfx1100": [("move_gfx1100-any", 128)],
    }
    for one in ("gfx1100", "gfx1201", "gfx90a", "gfx942", "gfx950"):
        assert [made.name for made in kernels_of(f"hip-{one}")] == [f"move_{one}-any"]
    more = kernels_of("hip-gfx942", dtypes=["bf16"], further={"gfx942": ["fp16"]})
    assert [one.name for one in more] == ["move_gfx942-bf16", "move_gfx942-fp16"]
    no_architecture = r"no architecture of its targets 'gfx94'; nearest: gfx942; it has .*gfx942.*$"
    for name, changes, said in [
        ("move_{architecture}", {"architectures": ["gfx94"]}, no_architecture),
        ("move_{architecture}", {"vary": {"gfx94": {}}}, no_architecture),
        ("move_{architecture}", {"further": {"gfx94": []}}, no_architecture),
        (
            "move_{architecture}",
            {"architectures": ["gfx942"], "vary": {"gfx1100": {}}},
            r"no architecture of its targets 'gfx1100'; it has gfx942$",
        ),
        (
            "move_{architecture}",
            {"vary": {"gfx942": {"THREAD": 1}}},
            r"no macro of define 'THREAD'; nearest: THREADS; it has THREADS$",
        ),
        (
            "move_{architecture}",
            {"target": "hip-gfx942"},
            r"'target' says what \{architecture\} in the name does: leave it out, or name architectures$",
        ),
        (
            "move",
            {"target": "hip-gfx942", "vary": {"gfx942": {}}},
            r"'vary' is of kernels with \{architecture\} in their names, was move$",
        ),
        ("move", {}, r"'target' is missing here, or \{architecture\} in the name$"),
    ]:
        with pytest.raises(CodegenError, match=rf"^kernels/backends/hip/builds\.yaml:\d+:\d+: .*{said}"):
            kernels_of("hip-gfx942", name, **changes)


def test_a_backend_with_kernels_of_its_own(copy: Copy) -> None:
    """Its engines have its type, and only its runtime says which devices run them."""
    root = unit(copy)
    made = render([resolve("fp32_min", ["cpu-generic", "unit-one"], root=root)], INFO)
    table = made.contents["fp32_min/table.cpp"].decode()
    assert 'extern "C" const unit::Engine tilekiln_unit_one_fmha_fwd_qlanes;' in table
    assert 'extern "C" const tilekiln::fmha::FwdEngine tilekiln_cpu_generic_fmha_fwd_qlanes;' in table
    assert '#include "kernels/backends/unit/engine.h"' in table
    assert (
        '{ "unit-one", "", 40, 40, nullptr, engines_unit_one, how_unit_one, nullptr,\n    &unit_backend, "sm_90a" },'
        in table
    )
    assert "supported_unit_one" not in table
    sources = {engine.symbol: engine.source for engine in made.generated.engines}
    assert sources["tilekiln_unit_one_fmha_fwd_qlanes"] == "kernels/attention/fmha_fwd/unit/qlanes.cpp"
    assert "kernels/backends/unit/*.cpp" in made.generated.host["fp32_min"]


def test_words_for_targets(copy: Copy) -> None:
    """`all` is one library for every machine: a device's targets are named, or their backend is."""
    root = unit(copy)
    cpus = ["cpu-generic", "cpu-avx2", "cpu-avx512", "cpu-avx512bf16", "cpu-amx"]
    assert resolve("fp32_min", ["all"], root=root).targets == cpus
    assert resolve("fp32_min", ["cpu"], root=root).targets == cpus
    assert resolve("fp32_min", ["unit"], root=root).targets == ["unit-one"]
    said = r"^backend paper: its targets are listed and not built, and are named one by one: paper-generic$"
    with pytest.raises(CodegenError, match=said):
        resolve("fp32_min", ["paper"], root=root)


def test_an_architecture_of_a_gpu(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        CodegenError, match=r"yaml:6:7: 'x86_64' must be an architecture of NVIDIA's, as sm_80 or sm_90a$"
    ):
        _ = unit(copy, target=UNIT_ONE.replace("sm_90a\nf", "x86_64\nf")).targets
    with pytest.raises(CodegenError, match=r"'cpuid' is of CPUs: a target of backend unit has none$"):
        _ = unit(copy, target=UNIT_ONE + "cpuid: [avx2]\n").targets
    monkeypatch.setattr(nvidia, "capabilities", lambda: ((9, 0),))
    assert [nvidia.has(arch) for arch in ("sm_80", "sm_90", "sm_90a", "sm_100a", "x86")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    monkeypatch.setattr(nvidia, "capabilities", lambda: ((8, 9), (12, 0)))
    assert [nvidia.has(arch) for arch in ("sm_80", "sm_89", "sm_90a", "sm_120a")] == [True, True, False, True]
    monkeypatch.setattr(nvidia, "capabilities", tuple)
    assert not unit(copy).target("unit-one").usable


@pytest.mark.parametrize("target", [one.name for one in tree().every_target.values() if not one.planned])
def test_what_a_target_does_not_answer_a_rule_refuses(target: str) -> None:
    """Of each family that it has kernels of, every legal signature is answered, or a rule of its own says why not."""
    root = tree()
    of = root.target(target)
    has = [family for family in root.families.values() if root.algorithms(of, family) and family.main is None]
    for family in has:
        lists, refusals = {"table": family.table_clauses, "query": [family.everything]}, root.refusals(of, family)
        legal = Sieve(family, lists, [[family.everything]], refusals)
        answered = Sieve(family, lists, [how.when for how in root.algorithms(of, family)], refusals)
        unanswered = {leaf.words for leaf in legal.leaves()} - {leaf.words for leaf in answered.leaves()}
        assert not unanswered, f"{family.name} on {target}: {sorted(unanswered)[:3]}, and no rule says why"
    assert has


def test_a_target_without_a_family_says_so() -> None:
    said = explain(tree(), "norm_default", "family=group_norm", ["cuda-sm90a"]).text
    assert "target cuda-sm90a: it has no kernels of group_norm: arithmetic that PyTorch and compilers have on a" in said


@pytest.mark.parametrize("name", ["cuda", "hip"])
def test_every_family_that_gpus_lack_has_a_reason(name: str) -> None:
    root = tree()
    targets = [target for target in root.every_target.values() if target.backend == name]
    lacked = {one.name for one in root.families.values() if not any(root.algorithms(t, one) for t in targets)}
    assert lacked == set(root.backends[name].absent)


def test_a_reason_for_what_is_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hip = tree().backends["hip"]
    reasons = dict(hip.absent)
    for made, says in (
        (reasons | {"rotary": "none"}, "a target of hip has kernels of rotary"),
        (reasons | {"sampel": "none"}, "no family 'sampel'; nearest: sample"),
    ):
        monkeypatch.setattr(hip, "absent", made)
        with pytest.raises(CodegenError, match=says):
            check_absent(tree(), hip)


BESIDE = """target: cpu-part
backend: cpu
beside: cpu-avx2
about: A part.
index: 90
order: 99
isa: part
arch: any
flags: []
cpuid: []
algorithms:
  gemm:
    - {pipeline: panels, tile: 64x64x64, when: dtype=bf16}
refuses:
  fmha_fwd:
    - {name: no_attention, when: "dtype=bf16", says: it has none}
"""


@pytest.mark.day
def test_a_target_beside_another(copy: Copy) -> None:
    """Native is both; it may say why the other one answers a whole family; for tests it is built when it is named."""
    part = copy.path / "kernels/targets/cpu-part.yaml"
    part.write_text(BESIDE)
    root = copy.tree()
    assert [target.name for target in root.natives()] == ["cpu-avx2", "cpu-part"]
    assert resolve("fp32_min", ["native"], root=root).targets == ["cpu-avx2", "cpu-part"]
    made = resolve("gemm_default", ["native"], root=root).instances
    assert {i.signature["dtype"] for i in made if i.target.name == "cpu-part"} == {"bf16"}
    check(root)
    part.write_text(BESIDE.replace("beside: cpu-avx2\n", ""))
    with pytest.raises(CodegenError, match="'no_attention' never applies: cpu-part answers nothing that it forbids"):
        check(copy.tree())
    part.write_text(BESIDE.replace("beside: cpu-avx2", "beside: cpu-avx3"))
    with pytest.raises(CodegenError, match=r"cpu-part\.yaml:3:9: no target 'cpu-avx3'"):
        copy.tree().natives()
    part.write_text(BESIDE.replace("about:", "for_tests: yes\nabout:"))
    root = copy.tree()
    assert root.native().name != "cpu-part"
    assert "cpu-part" not in resolve("fp32_min", ["all"], root=root).targets
    assert resolve("gemm_default", ["cpu-part"], root=root).targets == ["cpu-part"]
