# SPDX-License-Identifier: MIT
"""Rows, moves, choices of experts and matrix products on HIP targets over hipsim.

Emulated (functional), never run on AMD silicon.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.emit import kernels
from codegen.plan.plan import resolve
from codegen.schema.tree import tree
from tests.kernels.hip.test_library import report
from tools.executor.amdgcn.code_object import ARCHITECTURES

ROWS = (
    "family=rmsnorm2d,softmax,rotary,cross_entropy,layernorm2d_bwd,reduce,moe_smoothquant dtype=bf16",
    "family=layernorm2d_rdquant,silu_and_mul_bwd,gelu_and_mul,merge,cross_entropy_bwd,rmsnorm2d_bwd dtype=fp16",
    "family=rmsnorm2d_rdquant,topk_softmax,silu_and_mul,gelu_and_mul_bwd,reshape_and_cache dtype=fp32",
    "family=permute,transpose element=bytes1,bytes4",
    "family=img2col element=bytes2",
    "family=moe_sorting",
)
WHERE = {
    "norm_default": " or ".join(ROWS),
    "moe_default": "family=topk_gating dtype=bf16",
    "gemm_default": "family=gemm dtype=bf16 activation=none,gelu c=yes or family=batched_gemm dtype=fp16",
    "gemm_multi_d": "dtype=bf16",
    "gemm_tiles": "dtype=bf16",
}

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("binding", "executor")]


PROBLEMS = {"norm_default": 24, "moe_default": 1, "gemm_default": 2, "gemm_multi_d": 1, "gemm_tiles": 1}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("receipt", WHERE)
def test_against_float64(build_library: Callable[..., Path], receipt, architecture, pytestconfig, tmp_path):
    """Rows of 0 to 4,099 columns, packed or not, in place; moves bit for bit; products of every layout and epilogue."""
    library = build_library(receipt, targets=f"hip-{architecture}", where=WHERE[receipt])
    # Signatures of one dtype: 256 of gemm_multi_d; half the problems of gemm_tiles are by stream-K.
    cases = {"gemm_multi_d": 16, "gemm_tiles": 12}.get(receipt, 6)
    problems = report(library, architecture, pytestconfig, tmp_path / "report.json", cases)["problems"]
    assert len(problems) == PROBLEMS[receipt]
    if receipt == "gemm_multi_d":
        assert problems[0]["family"] == receipt
    assert all(one["worst"] > 0 for one in problems if "2d" in one["family"])


def test_every_row_has_a_kernel():
    """By the plan alone: a product has that of its dtype, a norm one of its own, moves the one there is."""
    for architecture in ("gfx942", "gfx1201"):
        for receipt in ("gemm_default", "gemm_multi_d", "norm_default", "norm_ck"):
            plan = resolve(receipt, [f"hip-{architecture}"])
            held = {kernel.name for kernel in kernels.of_plan(plan).values()}
            assert plan.instances
            for instance in plan.instances:
                signature = instance.signature
                product = "gemm" in instance.family
                moves = instance.family in ("permute", "copy", "transpose", "batched_transpose")
                name = "gemm" if product else "move" if moves else instance.family
                assert f"{name}_{architecture}-{signature.get('dtype', 'any')}" in held, instance.name


def test_products_of_other_dtypes_are_refused():
    root = tree()
    for family in ("gemm", "batched_gemm", "gemm_multi_d"):
        (rule,) = root.refusals(root.target("hip-gfx942"), root.family(family))
        assert rule.name == "hip_products_of_16_bits"
