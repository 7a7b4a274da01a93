# SPDX-License-Identifier: MIT
"""Products of cpu-avx512bf16 in formats of tiles: cpu-amx has an engine for each, or a rule that says why not."""

from __future__ import annotations

import pytest

from codegen.schema import select
from codegen.schema.tree import tree

FORMATS = {"bf16", "int8", "fp8", "bf8", "fp8bf16", "fp8fp32"}
"""Words of dtypes that tiles multiply, as they are or widened."""
PRODUCTS = {
    *(
        "gemm",
        "gemm_multi_d",
        "batched_contraction",
        "gemm_quant",
        "gemm_list",
        "batched_gemm",
        "grouped_gemm",
        "flatmm",
        "flatmm_quant",
    ),
    *("fused_moe", "fmha_fwd", "fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_batch_prefill", "fmha_bwd_dq_dk_dv"),
    *("fmha_mla_decode", "conv_fwd", "conv_bwd_data", "conv_bwd_weight"),
}
OTHERS = {
    *("fmha_fwd_appendkv", "fmha_fwd_splitkv_combine", "fmha_bwd_dot_do_o", "fmha_bwd_convert_dq", "rotary"),
    *("rmsnorm2d", "layernorm2d", "rmsnorm2d_rdquant", "layernorm2d_rdquant", "smoothquant", "moe_smoothquant"),
    *("rmsnorm2d_bwd", "layernorm2d_bwd", "silu_and_mul", "silu_and_mul_bwd", "softmax", "cross_entropy", "merge"),
    *("cross_entropy_bwd", "reduce", "topk_softmax", "topk_gating", "moe_sorting", "permute", "copy", "transpose"),
    *("batched_transpose", "elementwise", "pooling", "img2col", "sample", "causal_conv1d", "causal_conv1d_bwd"),
    *("gated_delta_rule", "gated_delta_rule_bwd", "gelu_and_mul", "gelu_and_mul_bwd", "group_norm", "pooling_bwd"),
    "reshape_and_cache",
}
"""Families whose work is no product of matrices."""


def test_families_are_products_or_not() -> None:
    vectors = tree().target("cpu-avx512bf16")
    assert {name for name, family in tree().families.items() if tree().algorithms(vectors, family)} == PRODUCTS | OTHERS


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_every_signature_has_a_tile_engine_or_a_reason(name: str) -> None:
    root = tree()
    family, tiles = root.family(name), root.target("cpu-amx")
    engines = [clause for how in root.algorithms(tiles, family) for clause in how.when]
    reasons = [clause for rule in root.refusals(tiles, family) for clause in rule.when]
    values = [value for value in family.axis_of["dtype"].values if value in FORMATS]
    assert values
    left = select.bind(family, f"dtype={','.join(values)}")
    for clause in (*engines, *reasons):
        left = [rest for one in left for rest in select.minus(one, clause)]
    assert left == [], f"cpu-amx neither answers {select.text_of(family, left[0])} of {name} nor says why not"
