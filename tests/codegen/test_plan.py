# SPDX-License-Identifier: MIT
"""Every receipt against brute force; names, order and counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings

from codegen.plan.plan import Plan, resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree, tree
from tests.codegen import brute_bwd, brute_kv
from tests.codegen.brute import AXES, RECEIPTS, signatures
from tests.codegen.conftest import ROOT, Copy
from tests.codegen.test_select import clauses
from tests.sampling import examples

TARGETS = list(tree().of_host)


def text(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def listed(plan: Plan, family: str = "") -> list[tuple[str, ...]]:
    """The signatures of a plan, or of one family in it."""
    instances = [instance for instance in plan.instances if family in ("", instance.family)]
    return [tuple(text(value) for value in instance.signature.values()) for instance in instances]


@pytest.mark.parametrize("name", RECEIPTS)
def test_a_receipt_lists_what_the_facts_say(name: str) -> None:
    number, meaning = RECEIPTS[name]
    plan = resolve(name, ["cpu-generic"], family="fmha_fwd")
    assert listed(plan) == signatures(meaning())
    assert resolve(str(number), ["cpu-generic"], family="fmha_fwd").digest == plan.digest


@pytest.mark.parametrize("name", brute_bwd.RECEIPTS)
def test_a_receipt_lists_of_the_backward_what_the_facts_say(name: str) -> None:
    plan = resolve(name, ["cpu-generic"], "family!=fmha_fwd" if name in RECEIPTS else "")
    main = brute_bwd.signatures(brute_bwd.RECEIPTS[name]())
    assert main
    assert listed(plan, brute_bwd.MAIN) == main
    for family in brute_bwd.COMPANIONS:
        found = listed(plan, family)
        assert len(found) == len(set(found))
        assert set(found) == brute_bwd.projected(main, family)
    number = brute_bwd.NUMBERS[name] if name in brute_bwd.NUMBERS else RECEIPTS[name][0]
    assert plan.source.number == number


@settings(max_examples=examples(40), deadline=None)
@given(clauses(brute_bwd.AXES))
def test_companions_follow_a_narrowed_main_plan(where: str) -> None:
    main = brute_bwd.signatures(brute_bwd.RECEIPTS["aiter"]() & brute_bwd.selected(where))
    if not main:
        return
    plan = resolve("aiter", ["cpu-generic"], f"family={brute_bwd.MAIN} {where}")
    assert listed(plan, brute_bwd.MAIN) == main
    for family in brute_bwd.COMPANIONS:
        assert set(listed(plan, family)) == brute_bwd.projected(main, family)
        assert listed(resolve("aiter", ["cpu-generic"], f"family={brute_bwd.MAIN} {where}", family)) == listed(
            plan, family
        )


def test_receipts_stand_by_number_and_hold_the_families_they_should() -> None:
    """Of those that are spoken of here; others may be added."""
    numbers = {name: number for name, (number, _) in RECEIPTS.items()} | brute_bwd.NUMBERS
    found = [receipt.name for receipt in tree().sound_receipts if receipt.name in numbers]
    assert found == sorted(numbers, key=lambda name: numbers[name])
    for name in numbers:
        families = {instance.family for instance in resolve(name, ["cpu-generic"]).instances}
        families -= {*brute_kv.FAMILIES, "fmha_fwd_splitkv_combine"}  # test_kv.py
        assert ("fmha_mla_decode" in families) == (name in ("flash", "aiter", "aiter_batch", "aiter_group"))
        families -= {"fmha_mla_decode"}
        backward = {brute_bwd.MAIN, *brute_bwd.COMPANIONS} if name in brute_bwd.RECEIPTS else set()
        assert families == backward | ({"fmha_fwd"} if name in RECEIPTS else set())


def test_targets_have_the_same_signatures() -> None:
    plan = resolve("ck_default", ["all"])
    assert plan.targets == TARGETS
    assert TARGETS[0] == "cpu-generic"
    whole = [target.name for target in tree().of_host.values() if target.beside is None]
    by_target = [
        [(i.family, i.signature) for i in plan.instances if i.algorithm["target"] == target] for target in whole
    ]
    assert all(signatures == by_target[0] for signatures in by_target)


def test_native_is_one_of_them() -> None:
    assert tree().native().name in TARGETS
    assert resolve("fp32_min", ["native"]).targets == [target.name for target in tree().natives()]


def test_names_follow_from_signature_and_algorithm() -> None:
    """Written out here as the contract has it, and unique over all receipts and targets."""
    seen: dict[str, tuple[object, ...]] = {}
    for receipt in RECEIPTS:
        for i in resolve(receipt, ["all"], family="fmha_fwd").instances:
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


def test_names_of_the_backward() -> None:
    names = {i.name for i in resolve("aiter", ["cpu-avx2"]).instances}
    for name in (
        "fmha_bwd_dq_dk_dv_fp16_d192x128_group_window_nbias_ndbias_dropout_store_softcap_sink_deterministic_qlanes_b64x256_cpu_avx2",
        "fmha_bwd_dq_dk_dv_fp32_d48x48_batch_nmask_elementwise_dbias_dropout_nsoftcap_nsink_ndeterministic_qlanes_b64x256_cpu_avx2",
        "fmha_bwd_dq_dk_dv_bf16_d80x80_batch_nmask_alibi_ndbias_ndropout_nsoftcap_nsink_ndeterministic_qlanes_b64x256_cpu_avx2",
        "fmha_bwd_dot_do_o_fp16_dv128_group_qlanes_b64_cpu_avx2",
        "fmha_bwd_convert_dq_fp32_d48_batch_ndeterministic_qlanes_b64_cpu_avx2",
    ):
        assert name in names


def test_where_narrows_a_plan_and_an_empty_one_is_an_error() -> None:
    plan = resolve("flash", ["cpu-avx2"], "  dtype=bf16   hdim_q=192 hdim_v=128 lse=yes,no ")
    assert plan.where == "dtype=bf16 hdim_q=192 hdim_v=128 lse=yes,no"
    assert len(plan.instances) == 16
    with pytest.raises(CodegenError) as raised:
        resolve("flash", ["cpu-avx2"], "sink=yes skip_min_seqlen_q=yes")
    assert str(raised.value) == (
        "receipt flash lists no instance where 'sink=yes skip_min_seqlen_q=yes'; "
        "`python -m codegen explain flash 'sink=yes skip_min_seqlen_q=yes'` says why"
    )
    with pytest.raises(CodegenError) as raised:
        resolve("fp8", ["cpu-avx2"], "", "fmha_bwd_dot_do_o")
    assert str(raised.value) == (
        "receipt fp8 lists no fmha_bwd_dot_do_o; `python -m codegen explain fp8 'fmha_bwd_dot_do_o'` says why"
    )
    with pytest.raises(CodegenError) as raised:
        resolve("fp32", ["cuda-sm90a"])
    assert str(raised.value) == (
        "receipt fp32 lists no instance for cuda-sm90a; "
        "`python -m codegen explain fp32 '' --target cuda-sm90a` says why"
    )


def test_a_second_algorithm_is_a_second_instance_where_its_selection_holds(copy: Copy) -> None:
    copy.edit(
        "kernels/attention/fmha_fwd/family.yaml", "engine:\n", "  - {name: decode, about: Few queries.}\nengine:\n"
    )
    copy.edit(
        "kernels/targets/cpu-generic.yaml",
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n",
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n"
        "    - {pipeline: decode, tile: 1x256, when: mode=group dtype=bf16, rank: 1}\n",
    )
    plan = resolve("flash", ["cpu-avx2"], family="fmha_fwd", root=copy.tree())  # it extends cpu-generic
    extra = [instance for instance in plan.instances if instance.algorithm["pipeline"] == "decode"]
    plain = [instance for instance in plan.instances if instance.algorithm["pipeline"] == "qlanes"]
    assert [i.signature for i in extra] == [
        i.signature for i in plain if i.signature["mode"] == "group" and i.signature["dtype"] == "bf16"
    ]
    assert len(plan.instances) == len(plain) + len(extra)
    at = plan.instances.index(extra[0])  # rank decides the order within a signature
    assert plan.instances[at - 1].signature == extra[0].signature


def test_a_target_without_an_algorithm_for_a_signature_does_not_list_it(copy: Copy) -> None:
    copy.edit(
        "kernels/targets/cpu-generic.yaml",
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}",
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64, when: [dtype=fp32, dtype=bf16 sink=no]}",
    )
    plan = resolve("ck_default", ["cpu-generic"], family="fmha_fwd", root=copy.tree())
    assert {(i.signature["dtype"], i.signature["sink"]) for i in plan.instances} == {("bf16", False)}


def test_a_new_value_head_dim_and_rule_are_one_edit_each(copy: Copy, real: Tree) -> None:
    def count(root: Tree) -> int:
        return len(resolve("ck_default", ["cpu-generic"], family="fmha_fwd", root=root).instances)

    before = count(real)
    family = "kernels/attention/fmha_fwd/family.yaml"
    copy.edit(family, "  fp8fp32: [", "  fp8fp32: [184x184, ")
    assert count(copy.tree()) == before + 48
    copy.edit(family, "values: [none, window]", "values: [none, window, tree]")
    assert count(copy.tree()) == (before + 48) * 3 // 2
    rule = "  - {name: tree_in_batches, when: mask=tree mode!=batch, says: tree masks are for batches}\n"
    copy.edit(family, "# The order is Row::pipeline", rule + "# The order is Row::pipeline")
    assert count(copy.tree()) == (before + 48) * 5 // 4


def test_listing_imports_nothing_heavy() -> None:
    program = (
        "import sys; from codegen.cli import main; assert main(['list', 'ck_default', '--target', 'all']) == 0\n"
        "heavy = {'jinja2', 'rich', 'argparse', 'difflib', 'numpy', 'SCons', 'subprocess'} & sys.modules.keys()\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert len(done.stdout.splitlines()) == len(resolve("ck_default", ["all"]).instances)
