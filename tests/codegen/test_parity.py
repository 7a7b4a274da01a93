# SPDX-License-Identifier: MIT
"""A receipt covers the same signatures on a CPU, on CUDA and on HIP, or a rule of the target says why not."""

from __future__ import annotations

import pytest

from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import tree

RECEIPTS = ("flash", "ck_default", "fp32", "fp8", "aiter", "gemm_default", "gemm_multi_d", "norm_default")
TARGETS = (
    "cpu-generic",
    "cuda-sm80",
    "cuda-sm90a",
    "hip-gfx90a",
    "hip-gfx942",
    "hip-gfx950",
    "hip-gfx1100",
    "hip-gfx1201",
)


def signatures(receipt: str, target: str) -> dict[str, set[int]]:
    """Packed, by family."""
    try:
        plan = resolve(receipt, [target])
    except CodegenError as error:
        if "lists no" not in str(error):
            raise
        return {}
    found: dict[str, set[int]] = {}
    for instance in plan.instances:
        found.setdefault(instance.family, set()).add(instance.packed)
    return found


@pytest.mark.parametrize("receipt", RECEIPTS)
def test_what_a_target_lacks_a_rule_refuses(receipt):
    root = tree()
    have = {target: signatures(receipt, target) for target in TARGETS}
    everywhere: dict[str, set[int]] = {}
    for own in have.values():
        for family, packed in own.items():
            everywhere.setdefault(family, set()).update(packed)
    unsaid = []
    for target in TARGETS:
        for name, packed in everywhere.items():
            family = root.family(name)
            if family.main or not root.algorithms(root.target(target), family):
                continue  # a companion comes with its main family; a target without kernels of a family says so
            clauses = [clause for rule in root.refusals(root.target(target), family) for clause in rule.when]
            for one in packed - have[target].get(name, set()):
                said = any(
                    all(allowed >> axis.code_in(one) & 1 for axis, allowed in zip(family.axes, clause, strict=True))
                    for clause in clauses
                )
                if not said:
                    unsaid.append(f"{target} {name} {family.signature(one)}")
    assert not unsaid, f"{len(unsaid)}: " + "\n".join(unsaid[:8])
