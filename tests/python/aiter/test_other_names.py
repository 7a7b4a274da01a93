# SPDX-License-Identifier: MIT
"""Names of tilekiln.compat.aiter beside its kernels: shapes of results, scratch memory, experts in two steps."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import normal  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]
# Names that give back what the caller wrote to, and those that give a new tensor, with its shape.
WRITTEN = {
    "gemm_op_a8w8": (
        "gen_gemm_a8w8_ck_fake_tensors", "gen_gemm_a8w8_bpreshuffle_ck_fake_tensors",
        "gen_gemm_a8w8_bpreshuffle_cktile_fake_tensors", "gen_gemm_a8w8_blockscale_ck_fake_tensors",
        "gen_gemm_a8w8_tune_fake_tensors", "gen_gemm_a8w8_blockscale_tune_fake_tensors",
        "gemm_a8w8_blockscale_bpreshuffle_fake",
    ),
    "batched_gemm_op_a8w8": ("gen_batched_gemm_a8w8_fake_tensors", "gen_batched_gemm_a8w8_tune_fake_tensors"),
    "batched_gemm_op_bf16": ("gen_batched_gemm_bf16_tune_fake_tensor",),
    "attention": ("gen_pa_fwd_native_fake", "gen_pa_fwd_asm", "gen_pa_ps_fwd_asm"),
}  # fmt: skip
MADE = {
    "gemm_op_a8w8": ("gemm_a8w8_fake", "gemm_a8w8_bpreshuffle_fake", "gemm_a8w8_blockscale_fake"),
    "norm": ("gen_layer_norm_fake_tensors",),
}


def ours(module: str) -> Any:
    return importlib.import_module(f"tilekiln.compat.aiter.{module}")


def called(function: Any, **given: Any) -> Any:
    """With these arguments by name, and a small tensor for each other that has no default."""
    parameters = inspect.signature(function).parameters.values()
    rest = {p.name: torch.empty(3, 4) for p in parameters if p.default is p.empty and p.name not in given}
    return function(**rest, **given)


def test_shapes_of_results() -> None:
    out = torch.empty(2)
    for module, names in WRITTEN.items():
        for name in names:
            function = getattr(ours(f"ops.{module}"), name)
            place = next(one for one in ("Out", "out", "out_") if one in inspect.signature(function).parameters)
            assert called(function, **{place: out}) is out, name
    for name in WRITTEN["attention"]:
        assert called(getattr(ours("ops.attention"), name)).shape == (3, 4)
    for module, names in MADE.items():
        for name in names:
            made = called(getattr(ours(f"ops.{module}"), name))
            assert made.shape == ((3, 3) if "gemm" in name else (3, 4)), name
    weights, ids = called(
        ours("ops.topk").gen_moe_fused_gate_fake_tensor, topk_ids=torch.empty(5, 2, dtype=torch.int32)
    )
    assert (weights.shape, ids.shape, ids.dtype) == ((3, 4), (5, 2), torch.int32)
    made = called(ours("fused_moe").fused_moe_fake, w2=torch.empty(6, 7, 8), dtype=torch.bfloat16)
    assert (made.shape, made.dtype) == ((3, 7), torch.bfloat16)


def test_scratch_memory() -> None:
    products, one = ours("ops.gemm_op_a8w8"), torch.device("cpu")
    assert not products.get_zero_bias_buf_keyed(one, 0, 5).any()
    assert products.get_zero_bias_buf(torch.empty(5, 2)) is products.get_zero_bias_buf_keyed(one, 0, 5)
    assert ours("ops.gemm_op_a16w16").get_semaphore_workspace(one).shape == (16, 64)
    assert not ours("ops.topk").get_topk_mb_workspace(one, 9).any()
    assert ours("ops.topk").get_topk_scratch_workspace(one, 9).shape == (9,)


@pytest.mark.parametrize("kind", ["No", "per_Token", "per_128x128"])
@pytest.mark.parametrize("activation", ["Silu", "Gelu", "Swiglu", "Situv2"])
def test_experts_in_two_steps(kind: str, activation: str) -> None:
    """torch_moe_stage1 and torch_moe_stage2 against the formula in float64, with biases and factors."""
    moe, enum = ours("fused_moe"), ours("ops.enum")
    tokens, experts, topk, hidden, inter = 5, 4, 2, 256, 128
    x, w1, w2 = (
        normal(tokens, hidden),
        normal(experts, 2 * inter, hidden, seed=1) / 16,
        normal(experts, hidden, inter, seed=2),
    )
    bias1, bias2 = normal(experts, 2 * inter, seed=3), normal(experts, hidden, seed=4)
    ids = torch.stack(
        [torch.randperm(experts, generator=torch.Generator().manual_seed(one))[:topk] for one in range(tokens)]
    )
    ids, weights = ids.int().to(DEVICE), normal(tokens, topk, seed=5).abs()

    def scales(*shape: int, seed: int) -> Any:
        return normal(*shape, seed=seed).abs() + 0.5

    given: list[Any] = [None] * 4  # of x, w1, the rows between, w2
    wide = [x.double(), w1.double(), None, w2.double()]
    between = 1.0
    if kind == "per_Token":
        given = [scales(tokens, 1, seed=6), scales(experts, 2 * inter, 1, seed=7), scales(tokens * topk, 1, seed=8),
                 scales(experts, hidden, 1, seed=9)]  # fmt: skip
        wide = [x.double() * given[0], w1.double() * given[1], None, w2.double() * given[3]]
        between = given[2].view(tokens, topk, 1).double()
    elif kind == "per_128x128":
        given = [scales(tokens, 2, seed=6), scales(experts, 4, seed=7), scales(tokens * topk, 1, seed=8),
                 scales(experts, 2, seed=9)]  # fmt: skip
        spread = [given[1].view(experts, 2, 2), given[3].view(experts, 2, 1)]
        spread = [one.repeat_interleave(128, 1).repeat_interleave(128, 2).double() for one in spread]
        wide = [x.double() * given[0].repeat_interleave(128, 1), w1.double() * spread[0], None, w2.double() * spread[1]]
        between = given[2].view(tokens, topk, 1).double()
    number, quant = getattr(enum.ActivationType, activation), getattr(enum.QuantType, kind)
    first = moe.torch_moe_stage1(x, w1, w2, weights, ids, torch.float32, number, quant, given[0], given[1], bias1)
    act = {"Silu": torch.nn.functional.silu, "Gelu": torch.nn.functional.gelu}.get(activation)
    right, total = torch.zeros(tokens, topk, inter).double(), torch.zeros(tokens, hidden).double()
    for token in range(tokens):
        for slot in range(topk):
            expert = int(ids[token, slot])
            gate, up = (wide[1][expert] @ wide[0][token] + bias1[expert].double()).cpu().chunk(2)
            made = act(gate) * up if act else getattr(moe, activation.lower())(gate, up)
            right[token, slot] = made
            scaled = (made.to(DEVICE) * (between[token, slot] if kind != "No" else 1.0)).double()
            total[token] += (weights[token, slot] * (wide[3][expert] @ scaled + bias2[expert].double())).cpu()
    torch.testing.assert_close(first.double().cpu(), right, rtol=1e-4, atol=1e-4)
    second = moe.torch_moe_stage2(first, w1, w2, weights, ids, torch.float32, quant, given[3], given[2], bias2)
    torch.testing.assert_close(second.double().cpu(), total, rtol=1e-3, atol=1e-2)


def test_experts_in_two_steps_bad_input() -> None:
    moe, enum = ours("fused_moe"), ours("ops.enum")
    x, w1, w2 = torch.randn(2, 4), torch.randn(3, 4, 4), torch.randn(3, 4, 2)
    ids, weights = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1)
    with pytest.raises(ValueError, match="quant_type: was per_1x32, must be No, per_Tensor"):
        moe.torch_moe_stage1(x, w1, w2, weights, ids, quant_type=enum.QuantType.per_1x32, a1_scale=x, w1_scale=x)
    with pytest.raises(ValueError, match="quant_type: was per_Token, must be No where a factor is not given"):
        moe.torch_moe_stage2(x, w1, w2, weights, ids, quant_type=enum.QuantType.per_Token)
    with pytest.raises(ValueError, match="activation: was No, must be Silu or Gelu, or with a gate Swiglu or Situv2"):
        moe.torch_moe_stage1(x, w1, w2, weights, ids, activation=enum.ActivationType.No)
    halved = moe.torch_moe_stage1(x, w1, w2, weights * 2, ids, torch.float32, doweight=True, swiglu_limit=0.1)
    assert halved.abs().max() < 0.03  # silu is at least -.28
