"""Lists == builds == registers: the plan, the manifest and the C ABI name the same instances, and each one computes."""

from __future__ import annotations

import itertools

import pytest
import tilekiln as tk

from tests.python import problems

RECEIPT = "ck_default"
SIZES = problems.Sizes(lengths_q=(5, 3), lengths_k=(9, 70), nhead_q=2, nhead_k=1, window=(2, 3), sink_size=1)


@pytest.fixture(scope="session")
def everything(load):
    """ck_default for every target: all signatures but fp32's."""
    return load(RECEIPT, targets="all")


def test_lists_builds_registers(everything):
    from codegen.plan import resolve
    from codegen.targets import targets

    plan = resolve(RECEIPT, [target.name for target in targets()])
    listed = [instance.name for instance in plan.instances]
    assert len(listed) == len(set(listed)) == 4 * 3952
    assert [instance.name for instance in everything.instances()] == listed
    assert [everything.instance_name(i) for i in range(everything.instance_count)] == listed
    assert everything.manifest["plan_hash"] == plan.digest
    for instance, planned in zip(everything.instances(), plan.instances, strict=True):
        assert instance.signature == planned.signature


GROUPS = list(itertools.product(("fp16", "bf16", "fp8bf16", "fp8fp32"), ("batch", "group"), ("none", "window")))


@pytest.mark.parametrize(("dtype", "mode", "mask"), GROUPS, ids=lambda value: value)
def test_every_instance_computes(everything, dtype, mode, mask):
    """One reference per signature, every usable target against it, at head dims just inside the instance's."""
    by_signature: dict[tuple, list[tk.Instance]] = {}
    for instance in everything.instances(f"dtype={dtype} mode={mode} mask={mask}"):
        by_signature.setdefault(tuple(instance.signature.items()), []).append(instance)
    assert by_signature
    ran = 0
    for number, (signature, instances) in enumerate(by_signature.items()):
        values = dict(signature)
        sizes = problems.Sizes(
            **{**vars(SIZES), "hdim_q": values["hdim_q"] - number % 2, "hdim_v": values["hdim_v"] - number % 3}
        )
        problem = problems.make(values, sizes, seed=number)
        expected = problem.reference()
        for instance in instances:
            if everything.instance_usable(instance.number):
                made = problem.outputs()
                everything.fmha_fwd(**problem.inputs, **made, instance=instance.number, num_threads=1)
                try:
                    problem.check(made, expected)
                except AssertionError as error:
                    raise AssertionError(f"{instance.name}: {error}") from None
                ran += 1
    assert ran >= len(by_signature), "some signature ran on no target"
