# SPDX-License-Identifier: MIT
"""Lists == builds == registers: the plan, the manifest and the C ABI name the same instances, and each one computes."""

from __future__ import annotations

import itertools

import pytest
import tilekiln as tk
from tilekiln.reference import problems

# Together these hold every signature of the forward and the backward. Of the forward ck_default all but fp32's, fp32
# those, flash fp32 with a soft cap; of the backward aiter all. tests/python/test_kv.py does the same for KV caches.
CACHES = ("fmha_batch_prefill", "fmha_fwd_appendkv", "fmha_fwd_pagedkv", "fmha_fwd_splitkv", "fmha_fwd_splitkv_combine")
HOLDERS = ("ck_default", "fp32", "flash", "aiter")
SIZES = problems.Sizes(lengths_q=(5, 3), lengths_k=(9, 70), nhead_q=2, nhead_k=1, window=(2, 3), sink_size=1)


def test_these_receipts_hold_everything():
    from codegen.plan.plan import resolve
    from codegen.schema.tree import tree

    operators = [one for one in tree().operators.values() if one.area_room == "kernels/attention"]
    attention = {stage for operator in operators for stage in operator.file.stages}

    def names(receipt: str) -> set[str]:
        plan = resolve(receipt, ["cpu-generic"])
        return {instance.name for instance in plan.instances if instance.family in attention - set(CACHES)}

    held = set().union(*map(names, HOLDERS))
    for receipt in (one.name for one in tree().sound_receipts):
        assert names(receipt) <= held, receipt


@pytest.mark.parametrize("receipt", HOLDERS)
def test_lists_builds_registers(load, receipt):
    from codegen.plan.plan import resolve

    library = load(receipt, targets="all")
    plan = resolve(receipt, [one["name"] for one in library.manifest["targets"]])
    listed = [instance.name for instance in plan.instances]
    assert len(listed) == len(set(listed))
    assert [instance.name for instance in library.instances()] == listed
    assert [library.instance_name(i) for i in range(library.instance_count)] == listed
    assert library.manifest["plan_hash"] == plan.digest
    for instance, planned in zip(library.instances(), plan.instances, strict=True):
        assert instance.signature == planned.signature
        assert instance.algorithm == planned.algorithm


SIXTEEN = ("fp16", "bf16", "fp8bf16", "fp8fp32")
GROUPS = [
    *itertools.product(("ck_default",), SIXTEEN, ("batch", "group"), ("none", "window")),
    *itertools.product(("fp32", "flash"), ("fp32",), ("batch", "group"), ("none", "window")),
]


@pytest.mark.quick(each="receipt")
@pytest.mark.parametrize(("receipt", "dtype", "mode", "mask"), GROUPS, ids=lambda value: value)
def test_every_instance_computes(load, receipt, dtype, mode, mask):
    """One reference per signature, every usable target against it, at head dims just inside the instance's."""
    library = load(receipt, targets="all")
    by_signature: dict[tuple, list[tk.Instance]] = {}
    for instance in library.instances(f"family=fmha_fwd dtype={dtype} mode={mode} mask={mask}"):
        by_signature.setdefault(tuple(instance.signature.items()), []).append(instance)
    assert by_signature
    for number, (signature, instances) in enumerate(by_signature.items()):
        values = dict(signature)
        sizes = problems.Sizes(
            **{**vars(SIZES), "hdim_q": values["hdim_q"] - number % 2, "hdim_v": values["hdim_v"] - number % 3}
        )
        problem = problems.make(values, sizes, seed=number)
        expected = problem.reference()
        usable = [instance for instance in instances if library.instance_usable(instance.number)]
        assert usable, "the native target runs here"
        for instance in usable:
            made = problem.outputs()
            library.fmha_fwd(**problem.inputs, **made, instance=instance.number, num_threads=1)
            try:
                problem.check(made, expected)
            except AssertionError as error:
                raise AssertionError(f"{instance.name}: {error}") from None
