# SPDX-License-Identifier: MIT
"""Libraries with products and norms for a CUDA target, without a GPU: plans, and what is asked of a driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.emit import kernels
from codegen.plan.plan import resolve
from codegen.schema.tree import tree
from tests.programs import need

ROOT = Path(__file__).resolve().parents[2]
PRODUCTS = "family=gemm dtype=bf16 out_dtype=bf16 bias=no activation=none scaled=no"
TILES = "dtype=bf16 out_dtype=bf16"
BYTES = "dtype=fp8 out_dtype=bf16,fp32 or family=grouped_gemm dtype=fp8"
INT8 = "family=gemm,gemm_quant dtype=int8 out_dtype=bf16,fp32,int8,fp8"
SUMS = "family=gemm,batched_gemm dtype=int8 or family=gemm dtype=fp32 layout_out=row bias=no activation=none,silu"
GROUPS = "family=grouped_gemm dtype=bf16 or family=grouped_gemm dtype=int8 activation=none,silu"
LISTS = "family=gemm_list dtype=bf16 layout_a=row layout_b=column"
WORDS = "family=flatmm_quant dtype=bf16,int8 activation=none,gelu out_dtype=bf16,fp32"
ROWS = "family=softmax,merge,moe_smoothquant,gelu_and_mul,reshape_and_cache,sample dtype=bf16"
EXPERTS = "family=fused_moe dtype=bf16 layout=row or family=topk_gating dtype=bf16 or "
EXPERTS += "family=fused_moe dtype=bf16 weights=int8,int4 activation=silu"

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]


@pytest.mark.parametrize(
    ("receipt", "target", "where", "case"),
    [
        ("gemm_tiles", "cuda-sm90a", TILES, "products"),
        pytest.param("gemm_fp8", "cuda-sm90a", BYTES, "of_bytes", marks=pytest.mark.turns(0)),
        pytest.param("gemm_default", "cuda-sm90a", SUMS, "sums", marks=pytest.mark.turns(1)),
        pytest.param("gemm_default", "cuda-sm90a", GROUPS, "groups", marks=pytest.mark.turns(0)),
        pytest.param("moe_default", "cuda-sm90a", EXPERTS, "experts", marks=pytest.mark.turns(1)),
        pytest.param("gemm_linear", "cuda-sm90a", WORDS, "words", marks=pytest.mark.turns(0)),
        pytest.param("gemm_default", "cuda-sm90a", LISTS, "lists", marks=pytest.mark.turns(1)),
        pytest.param("gemm_linear", "cuda-sm80", PRODUCTS, "ampere", marks=pytest.mark.turns(0)),
        pytest.param(
            "norm_default",
            "cuda-sm90a",
            "family=softmax,layernorm2d_bwd dtype=bf16",
            "rows",
            marks=pytest.mark.turns(1),
        ),
    ],
    ids=["products", "of_bytes", "sums", "groups", "experts", "words", "lists", "ampere", "rows"],
)
def test_host_side(
    build_library: Callable[..., Path],
    beside_stub: Callable[..., None],
    receipt: str,
    target: str,
    where: str,
    case: str,
) -> None:
    need("nvcc")
    beside_stub("tests/cuda/host_products.py", build_library(receipt, targets=target, where=where), case)


@pytest.mark.parametrize(("target", "gemm"), [("cuda-sm90a", "gemm"), ("cuda-sm80", "gemm_ampere")])
def test_every_row_has_a_kernel(target: str, gemm: str) -> None:
    """By the plan alone: a product has the build of its layouts, a norm one of its dtype, moves the one there is."""
    other = {"row": "column", "column": "row"}
    hopper = ["gemm_fp8", "moe_default"] if target == "cuda-sm90a" else []
    for receipt in ("gemm_default", "gemm_multi_d", "norm_default", *hopper):
        plan = resolve(receipt, [target])
        held = {kernel.name for kernel in kernels.of_plan(plan).values()}
        assert plan.instances
        for instance in plan.instances:
            signature = instance.signature
            if "layout_a" in signature and instance.family != "flatmm":
                layouts = (signature["layout_a"], signature["layout_b"])
                if signature.get("layout_out") == "column":
                    layouts = (other[str(layouts[1])], other[str(layouts[0])])
                build = f"{gemm}_{layouts[0]}_{layouts[1]}"
                if signature["dtype"] == "fp32":
                    assert "gemm_parts-any" in held
                    continue
                if signature["dtype"] in ("int8", "fp8", "bf8"):
                    assert layouts == ("row", "column")
                    build = "gemm_blocks" if signature.get("blocks") else "gemm_bytes"
                    build = "gemm_int8" if signature["dtype"] == "int8" else build
                    build += "_to_fp16" if signature.get("out_dtype") == "fp16" else ""
                assert f"{build}-{signature['dtype']}" in held
            elif instance.family == "fused_moe":
                kind, to = signature["weights"], "_of_fp16" if signature["dtype"] == "fp16" else ""
                own = {f"fused_moe_{signature['layout']}-{signature['dtype']}"}
                if kind == "fp8":
                    own = {f"fused_moe_bytes{to}-any"}
                elif kind != "same":  # rows of int8, and of int4 as they are
                    as_they_are = {f"fused_moe_{kind}-{signature['dtype']}"} if kind != "int8" else set()
                    own = {f"fused_moe_{kind}{'' if kind == 'int8' else '_by_int8'}{to}-any"} | as_they_are
                assert own <= held
            elif instance.family == "grouped_gemm":
                own = {"fp8": "blocks", "int8": "int8"}.get(str(signature["dtype"]), signature["layout_b"])
                assert f"grouped_gemm_{own}-{signature['dtype']}" in held
            elif "element" in signature and instance.family != "img2col":
                assert "move-any" in held
            else:
                assert f"{instance.family}-{signature.get('dtype', 'any')}" in held


def test_a_linear_layer_takes_one_kernel_a_dtype() -> None:
    held = {kernel.name for kernel in kernels.of_plan(resolve("gemm_linear", ["cuda-sm90a"])).values()}
    of_bytes = {f"gemm_{name}{to}-fp8" for name in ("bytes", "blocks") for to in ("", "_to_fp16")}
    of_bytes |= {"gemm_quant-any", "gemm_int8-int8", "gemm_int8_to_fp16-int8", "flatmm_quant-bf16", "flatmm_quant-fp16"}
    of_bytes |= {f"flatmm_quant_{kind}{to}-any" for kind in ("int8", "int4_by_int8") for to in ("", "_to_fp16")}
    of_bytes |= {f"{name}-{dtype}" for name in ("flatmm", "flatmm_quant_int4") for dtype in ("bf16", "fp16")}
    assert held == {f"gemm_row_{b}-{dtype}" for b in ("row", "column") for dtype in ("bf16", "fp16")} | of_bytes


def test_an_engine_holds_the_kernels_of_its_room() -> None:
    """Of fused_moe, whose engines are gemm's on CPUs: those on Hopper are its own, and read no Build of gemm's."""
    root = tree()
    of = {name: {k.name for k in kernels.of_engine(root, "cuda-sm90a", name)} for name in ("gemm", "fused_moe")}
    of_halves = {f"fused_moe_{layout}-{dtype}" for layout in ("row", "column") for dtype in ("bf16", "fp16")}
    of_halves |= {f"fused_moe_{kind}-{dtype}" for kind in ("int4", "mxfp4") for dtype in ("bf16", "fp16")}
    narrow = ("bytes", "int8", "int4_by_int8", "mxfp4_by_int8")
    assert of["fused_moe"] == of_halves | {f"fused_moe_{kind}{to}-any" for kind in narrow for to in ("", "_of_fp16")}
    assert not of["gemm"] & of["fused_moe"]
    assert "grouped_gemm_row-bf16" in of["gemm"]
    assert root.family("fused_moe").owner("experts").name == "fused_moe"
    assert root.family("fused_moe").owner("panels").name == "gemm"


def test_what_the_target_refuses() -> None:
    root = tree()
    for target in ("cuda-sm90a", "cuda-sm80"):
        for name in ("gemm", "batched_gemm", "gemm_multi_d"):
            said = [rule.says for rule in root.refusals(root.target(target), root.family(name))]
            hopper = target == "cuda-sm90a"
            assert ("no kernel of 8 bits exists yet" in said[0]) is not hopper
            assert "its tensor cores multiply no fp32" in said[0]
            assert len(said) == 1 + (hopper and name != "gemm_multi_d")
    every = [one.signature for one in resolve("gemm_default", ["cuda-sm90a"]).instances]
    assert {one["dtype"] for one in every if one.get("precision", "full") == "full"} == {"fp16", "bf16", "int8"}
    assert {one["precision"] for one in every if one["dtype"] == "fp32"} == {"bf16x3", "bf16x6"}
