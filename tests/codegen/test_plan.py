"""Every receipt against brute force; names, order and counts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from codegen.errors import CodegenError
from codegen.plan import resolve
from codegen.receipts import receipt_names
from codegen.targets import native_target, targets
from codegen.tree import Tree
from tests.codegen.brute import AXES, RECEIPTS, signatures
from tests.codegen.conftest import ROOT, Copy

TARGETS = ["cpu-generic", "cpu-avx2", "cpu-avx512", "cpu-avx512bf16"]


def text(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", RECEIPTS)
def test_a_receipt_lists_what_the_facts_say(name: str) -> None:
    number, count, meaning = RECEIPTS[name]
    plan = resolve(name, ["cpu-generic"])
    listed = [tuple(text(value) for value in instance.signature.values()) for instance in plan.instances]
    assert listed == signatures(meaning())
    assert len(listed) == count
    assert resolve(str(number), ["cpu-generic"]).digest == plan.digest


def test_no_other_receipt_exists() -> None:
    assert receipt_names() == list(RECEIPTS)


def test_targets_have_the_same_signatures() -> None:
    plan = resolve("ck_default", ["all"])
    assert plan.targets == TARGETS == [target.name for target in targets()]
    assert len(plan.instances) == 15808
    by_target = [[i.signature for i in plan.instances if i.algorithm["target"] == target] for target in TARGETS]
    assert all(signatures == by_target[0] for signatures in by_target)


def test_native_is_one_of_them() -> None:
    assert native_target() in TARGETS
    assert resolve("fp32_min", ["native"]).targets == [native_target()]


def test_names_follow_from_signature_and_algorithm() -> None:
    """Written out here as the contract has it, and unique over all receipts and targets."""
    seen: dict[str, tuple[object, ...]] = {}
    for receipt in RECEIPTS:
        for i in resolve(receipt, ["all"]).instances:
            s, a = i.signature, i.algorithm
            none = {axis: f"n{axis}" if s[axis] == "none" else s[axis] for axis in ("mask", "bias", "qscale")}
            flags = [("" if s[axis] else "n") + axis for axis in ("lse", "dropout", "softcap")]
            words = [
                *(
                    "fmha_fwd",
                    s["dtype"],
                    f"d{s['hdim_q']}x{s['hdim_v']}",
                    s["mode"],
                    none["mask"],
                    none["bias"],
                    *flags,
                ),
                *("skip" if s["skip_min_seqlen_q"] else "nskip", "sink" if s["sink"] else "nsink", none["qscale"]),
                *(a["pipeline"], f"b{a['tile']}", str(a["target"]).replace("-", "_")),
            ]
            assert i.name == "_".join(map(str, words))
            assert list(s) == list(AXES)
            assert seen.setdefault(i.name, (*s.values(), *a.values())) == (*s.values(), *a.values())
    assert len(set(seen.values())) == len(seen)


def test_where_narrows_a_plan_and_an_empty_one_is_an_error() -> None:
    plan = resolve("flash", ["cpu-avx2"], "  dtype=bf16   hdim_q=192 hdim_v=128 ")
    assert plan.where == "dtype=bf16 hdim_q=192 hdim_v=128"
    assert len(plan.instances) == 16
    with pytest.raises(CodegenError) as raised:
        resolve("flash", ["cpu-avx2"], "sink=yes")
    assert str(raised.value) == (
        "receipt flash lists no instance where 'sink=yes'; "
        "`python -m codegen explain flash 'fmha_fwd sink=yes'` says why"
    )


def test_a_second_algorithm_is_a_second_instance_where_its_selection_holds(copy: Copy) -> None:
    copy.edit("kernels/fmha_fwd/family.yaml", "engine:\n", "  - {name: decode, about: Few queries.}\nengine:\n")
    copy.edit(
        "kernels/targets/cpu-generic.yaml",
        "{pipeline: qlanes, tile: 64x64}\n",
        "{pipeline: qlanes, tile: 64x64}\n"
        "    - {pipeline: decode, tile: 1x256, when: mode=group dtype=bf16, rank: 1}\n",
    )
    plan = resolve("flash", ["cpu-avx2"], root=copy.tree())  # it extends cpu-generic
    extra = [instance for instance in plan.instances if instance.algorithm["pipeline"] == "decode"]
    assert len(extra) == 176
    assert all(i.signature["mode"] == "group" and i.signature["dtype"] == "bf16" for i in extra)
    assert len(plan.instances) == 1040 + 176
    at = plan.instances.index(extra[0])  # rank decides the order within a signature
    assert plan.instances[at - 1].signature == extra[0].signature


def test_a_target_without_an_algorithm_for_a_signature_does_not_list_it(copy: Copy) -> None:
    copy.edit(
        "kernels/targets/cpu-generic.yaml", "tile: 64x64}", "tile: 64x64, when: [dtype=fp32, dtype=bf16 sink=no]}"
    )
    plan = resolve("ck_default", ["cpu-generic"], root=copy.tree())
    assert {(i.signature["dtype"], i.signature["sink"]) for i in plan.instances} == {("bf16", False)}


def test_a_new_value_head_dim_and_rule_are_one_edit_each(copy: Copy, real: Tree) -> None:
    before = len(resolve("ck_default", ["cpu-generic"], root=real).instances)
    family = "kernels/fmha_fwd/family.yaml"
    copy.edit(family, "  fp8fp32: [128x128]", "  fp8fp32: [128x128, 160x160]")
    assert len(resolve("ck_default", ["cpu-generic"], root=copy.tree()).instances) == before + 48
    copy.edit(family, "values: [none, window]", "values: [none, window, tree]")
    assert len(resolve("ck_default", ["cpu-generic"], root=copy.tree()).instances) == (before + 48) * 3 // 2
    rule = "  - {name: tree_in_batches, when: mask=tree mode!=batch, says: tree masks are for batches}\n"
    copy.edit(family, "# The order is Row::pipeline", rule + "# The order is Row::pipeline")
    assert len(resolve("ck_default", ["cpu-generic"], root=copy.tree()).instances) == (before + 48) * 5 // 4


def test_listing_imports_nothing_heavy() -> None:
    program = (
        "import sys; from codegen.cli import main; assert main(['list', 'ck_default', '--target', 'all']) == 0\n"
        "heavy = {'jinja2', 'rich', 'argparse', 'difflib', 'numpy', 'SCons', 'subprocess'} & sys.modules.keys()\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert len(done.stdout.splitlines()) == 15808
