# SPDX-License-Identifier: MIT
"""aiter.fused_moe: the experts of a mixture, their sorting, and their formulas in fp32.

hidden_states, out (tokens, hidden), w1 (experts, 2 inter, hidden), the gate's rows first, or (experts, inter, hidden)
without a factor, w2 (experts, hidden, inter), all fp32, fp16 or bf16 of one dtype; topk_weight, fp32, topk_ids, int32,
(tokens, topk). expert_mask, int32 (all experts): 0 for those that are elsewhere; w1 and w2 then hold the others.
Weights are as models have them, rows in order; quantised ones go packed to tilekiln.experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from .. import _absent
from .._modules import errors_as_upstream
from ._rows import off
from ._run import run
from ._shapes import fused_moe_fake
from .ops.enum import ActivationType, QuantType
from .ops.moe_op import topk_softmax
from .ops.moe_sorting import moe_sorting_fwd

__all__ = [
    "fused_moe",
    "fused_moe_",
    "fused_moe_fake",
    "fused_topk",
    "get_inter_dim",
    "get_padded_M",
    "get_topk_valid_mask",
    "moe_sorting",
    "nextPow2",
    "situv2",
    "swiglu",
    "torch_moe",
    "torch_moe_act",
    "torch_moe_stage1",
    "torch_moe_stage2",
]

__getattr__ = _absent.sentences(__name__)

_WORDS = {ActivationType.Silu: "silu", ActivationType.Gelu: "gelu", ActivationType.Swiglu: "clamped_swiglu"}
_named = errors_as_upstream(
    x="hidden_states", gate_up="w1", down="w2", topk_weights="topk_weight", gate_up_bias="bias1", down_bias="bias2",
    local_tokens="num_local_tokens", limit="swiglu_limit",
)  # fmt: skip
_PACKED = "weights are packed once, tilekiln.PackedExperts(...), and given to tilekiln.experts"


@errors_as_upstream(
    experts="num_experts", unit="block_size", local_tokens="num_local_tokens", local_expert_mask="expert_mask"
)
def moe_sorting(
    topk_ids: Tensor, topk_weights: Tensor, num_experts: int, model_dim: int, moebuf_dtype: torch.dtype,
    block_size: int = 32, expert_mask: Tensor | None = None, num_local_tokens: Tensor | None = None,
    dispatch_policy: int = 0, return_local_topk_ids: bool = False, accumulate: bool = True, flat: bool = False,
    output_aux: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids, moe_buf) of `moe_sorting_fwd`.

    moe_buf (tokens, model_dim) of zeros; with accumulate False and no mask it is empty.
    """
    for name, value in (("return_local_topk_ids", return_local_topk_ids), ("flat", flat), ("output_aux", output_aux)):
        off(name, value, "it is for kernels of other hardware")
    tokens, topk = topk_ids.shape
    length, device = topk_ids.numel() + num_experts * block_size - topk, topk_ids.device

    def room(count: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(count, dtype=dtype, device=device)

    ids, weights, count = room(length), room(length, torch.float32), room(2)
    experts = room(-(-length // block_size))
    shape = (tokens, model_dim) if accumulate or expert_mask is not None else (0, 0)
    buffer = torch.empty(shape, dtype=moebuf_dtype, device=device)
    moe_sorting_fwd(
        topk_ids, topk_weights, ids, weights, experts, count, buffer, num_experts, block_size, expert_mask,
        num_local_tokens,
    )  # fmt: skip
    return ids, weights, experts, count, buffer


def get_topk_valid_mask(topk_ids: Tensor, expert_mask: Tensor | None = None) -> Tensor:
    """(tokens, topk): what expert_mask says of each expert; without one int32 ones."""
    if expert_mask is None:
        return torch.ones(topk_ids.shape, dtype=torch.int32, device=topk_ids.device)
    made: Tensor = expert_mask[topk_ids]
    return made


def get_inter_dim(w1_shape: tuple[int, int, int], w2_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """(experts, hidden, inter) of the shapes of w1 and w2; an element of w1 may hold several numbers of a row."""
    experts, hidden, inter = w2_shape
    return experts, hidden, inter * (hidden // w1_shape[-1])


def nextPow2(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 if n <= 1 else 1 << (n - 1).bit_length()


def get_padded_M(M: int) -> int:
    """The number of tokens for which upstream tunes: a power of two up to 32768, then that, from 131072 on 131072."""
    return nextPow2(M) if M < 32768 else 131072 if M >= 131072 else 32768


def _experts(
    x: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor, activation: int, others: dict[str, Any]
) -> Tensor:
    """The operator fused_moe, with those of `others` that are not None."""
    word = _WORDS.get(ActivationType(activation))
    if word is None:
        names = ", ".join(one.name for one in _WORDS)
        raise ArgumentError(f"activation: was {ActivationType(activation).name}, must be one of {names}")
    given = {name: value for name, value in others.items() if value is not None}
    arrays = (x, topk_ids, topk_weight, w1, w2)
    made: Tensor = run("fused_moe", arrays, {**given, "activation": word})
    return made


@_named
def fused_moe(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
    expert_mask: Tensor | None = None, activation: int = ActivationType.Silu, quant_type: int = QuantType.No,
    doweight_stage1: bool = False, w1_scale: Tensor | None = None, w2_scale: Tensor | None = None,
    a1_scale: Tensor | None = None, a2_scale: Tensor | None = None, block_size_M: int | None = None,
    num_local_tokens: Tensor | None = None, moe_sorting_dispatch_policy: int = 0, dtype: torch.dtype | None = None,
    hidden_pad: int = 0, intermediate_pad: int = 0, bias1: Tensor | None = None, bias2: Tensor | None = None,
    splitk: int = 0, swiglu_limit: float | None = None, beta: float | None = None, linear_beta: float | None = None,
    gate_mode: str = "separated", shared_w1: Tensor | None = None, shared_w2: Tensor | None = None,
    shared_w1_scale: Tensor | None = None, shared_w2_scale: Tensor | None = None, shared_expert_id: int = -1,
    stage2_scatter: Any = None,
) -> Tensor:  # fmt: skip
    """The sum over a token's slots of topk_weight w2[e] (act(gate of w1[e] x) (up of w1[e] x)), like hidden_states.

    activation: Silu, Gelu, or Swiglu, which is gpt-oss's (up + 1) gate sigmoid(1.702 gate), both held by swiglu_limit,
    7 unless given. bias1 (experts, 2 inter), bias2 (experts, hidden). dtype: of the result. block_size_M, splitk,
    dispatch policy and pads, whose numbers are 0, change nothing. What has no kernel is refused by its name.
    """
    if QuantType(quant_type) != QuantType.No:
        raise ArgumentError(f"quant_type: was {QuantType(quant_type).name}, must be No: {_PACKED}")
    for name, value in (
        ("w1_scale", w1_scale), ("w2_scale", w2_scale), ("a1_scale", a1_scale), ("a2_scale", a2_scale),
    ):  # fmt: skip
        off(name, value, f"of quantised weights, and {_PACKED}")
    off("doweight_stage1", doweight_stage1, "weights go to the sum")
    for name, value in (("shared_w1", shared_w1), ("shared_w2", shared_w2), ("stage2_scatter", stage2_scatter)):
        off(name, value, "shared experts are rows of w1 and w2")
    off("beta", beta, "of Situv2, which has no kernel")
    off("linear_beta", linear_beta, "of Situv2, which has no kernel")
    if gate_mode != "separated":
        raise ArgumentError(f"gate_mode: was {gate_mode!r}, must be 'separated': the rows of the gate, then the others")
    others: dict[str, Any] = {
        "expert_mask": expert_mask, "local_tokens": num_local_tokens,
        "gate_up_bias": None if bias1 is None else bias1.float(), "down_bias": None if bias2 is None else bias2.float(),
    }  # fmt: skip
    if activation == ActivationType.Swiglu and swiglu_limit is not None:
        others["limit"] = float(swiglu_limit)
    elif swiglu_limit:
        raise ArgumentError(f"swiglu_limit: was {swiglu_limit}, must be absent without ActivationType.Swiglu")
    made = _experts(hidden_states, w1, w2, topk_weight, topk_ids, activation, others)
    return made if dtype is None else made.to(dtype)


@_named
def fused_moe_(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
    expert_mask: Tensor | None = None, activation: int = 0, quant_type: int = 0, doweight_stage1: bool = False,
    w1_scale: Tensor | None = None, w2_scale: Tensor | None = None, a1_scale: Tensor | None = None,
    a2_scale: Tensor | None = None, block_size_M: int = -1, num_local_tokens: Tensor | None = None,
    moe_sorting_dispatch_policy: int = 0, dtype: torch.dtype | None = None, hidden_pad: int = 0,
    intermediate_pad: int = 0, bias1: Tensor | None = None, bias2: Tensor | None = None,
    swiglu_limit: float | None = None, beta: float | None = None, linear_beta: float | None = None,
    gate_mode: str = "separated", ep_arena_handle: int = 0, ep_combine_input_offset: int = 0,
    ep_slot_stride_bytes: int = 0, ep_max_tokens_per_rank: int = 0, ep_world_size: int = 0,
    ep_source_token_map: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`fused_moe`; tokens of other processes (ep_...) are refused."""
    for name, value in (("ep_arena_handle", ep_arena_handle), ("ep_world_size", ep_world_size)):
        off(name, value, "tokens are exchanged by torch.distributed before")
    made: Tensor = fused_moe(
        hidden_states, w1, w2, topk_weight, topk_ids, expert_mask, activation, quant_type, doweight_stage1, w1_scale,
        w2_scale, a1_scale, a2_scale, None, num_local_tokens, moe_sorting_dispatch_policy, dtype, hidden_pad,
        intermediate_pad, bias1, bias2, 0, swiglu_limit, beta, linear_beta, gate_mode,
    )  # fmt: skip
    return made


def torch_moe_act(act_input: Tensor, torch_act: Callable[[Tensor], Tensor], inter_dim: int) -> Tensor:
    """torch_act of act_input (.., inter_dim), or of its first half times the other where there are two."""
    if act_input.shape[-1] == inter_dim:
        return torch_act(act_input)
    gate, up = act_input.split([inter_dim, inter_dim], dim=-1)
    made: Tensor = torch_act(gate) * up
    return made


@_named
def torch_moe(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
    fc1_scale: Tensor | None = None, fc2_scale: Tensor | None = None, fc1_smooth_scale: Tensor | None = None,
    fc2_smooth_scale: Tensor | None = None, expert_mask: Tensor | None = None, activation: int = ActivationType.Silu,
) -> Tensor:  # fmt: skip
    """`fused_moe` in fp32, rounded once to the dtype of hidden_states, for comparison.

    fc1_scale, fc2_scale: a factor of each row of quantised w1 and w2; fc1_smooth_scale (experts, hidden) and
    fc2_smooth_scale (experts, inter): of each column.
    """

    def wide(weight: Tensor, scale: Tensor | None, smooth: Tensor | None) -> Tensor:
        made = weight.float()
        if scale is not None:
            made = made * scale.view(made.shape[0], made.shape[1], 1)
        return made if smooth is None else made * smooth.view(made.shape[0], 1, -1)

    weights = wide(w1, fc1_scale, fc1_smooth_scale), wide(w2, fc2_scale, fc2_smooth_scale)
    others = {"expert_mask": expert_mask}
    made = _experts(hidden_states.float(), *weights, topk_weight.float(), topk_ids.int(), activation, others)
    return made.to(hidden_states.dtype)


def _factored(x: Tensor, scale: Tensor | None, quant_type: int, of_weight: bool) -> Tensor:
    """fp32 of rows (tokens, .., k), or of weights (experts, n, k), with their factors."""
    kind, wide = QuantType(quant_type), x.float()
    if kind is QuantType.No:
        return wide
    if scale is None:
        raise ArgumentError(f"quant_type: was {kind.name}, must be No where a factor is not given")
    if kind in (QuantType.per_Token, QuantType.per_Tensor):
        return wide * (scale.float().reshape(len(x), *[-1] * (x.dim() > 2), 1) if scale.numel() > 1 else scale.float())
    if kind not in (QuantType.per_128x128, QuantType.per_1x128):
        known = "No, per_Tensor, per_Token, per_1x128 or per_128x128"
        raise ArgumentError(f"quant_type: was {kind.name}, must be {known}")
    if not of_weight:
        return wide * scale.float().reshape(*x.shape[:-1], -1).repeat_interleave(128, -1)
    blocks = scale.float().view(len(x), x.shape[1] // 128, x.shape[2] // 128)
    return wide * blocks.repeat_interleave(128, 1).repeat_interleave(128, 2)


def _by_expert(rows: Tensor, weight: Tensor, topk_ids: Tensor, bias: Tensor | None, factor: Tensor | None) -> Tensor:
    """(tokens, topk, n): rows (tokens, topk, k) times the experts' (n, k), by factor (tokens, topk), and the bias."""
    out = rows.new_zeros(*topk_ids.shape, weight.shape[1])
    for expert in range(len(weight)):
        mine = topk_ids == expert
        made = rows[mine] @ weight[expert].t()
        made = made if factor is None else made * factor[mine][:, None].float()
        out[mine] = made if bias is None else made + bias[expert].float().view(1, -1)
    return out


@_named
def torch_moe_stage1(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
    dtype: torch.dtype = torch.float16, activation: int = ActivationType.Silu, quant_type: int = QuantType.No,
    a1_scale: Tensor | None = None, w1_scale: Tensor | None = None, w1_bias: Tensor | None = None,
    doweight: bool = False, swiglu_limit: float | None = None, situ_beta: float = 4.0, situ_linear_beta: float = 25.0,
) -> Tensor:  # fmt: skip
    """(tokens, topk, inter): the first product of each token's experts and the activation, in fp32, for comparison.

    Factors as of `fused_moe`'s quant_type: of each row, tensor or block of 128; w1_bias (experts, 2 inter); doweight:
    products by topk_weight. swiglu_limit: bound of gate and up; of Swiglu 7 where it is None.
    """
    inter = get_inter_dim(w1.shape, w2.shape)[2]  # type: ignore[arg-type]
    rows = _factored(hidden_states, a1_scale, quant_type, False)[:, None].expand(-1, topk_ids.shape[1], -1)
    weight = _factored(w1, w1_scale, quant_type, True)
    out = _by_expert(rows, weight, topk_ids, w1_bias, topk_weight if doweight else None)
    kind = ActivationType(activation)
    if w1.shape[1] == 2 * inter and kind in (ActivationType.Swiglu, ActivationType.Situv2):
        gate, up = out.split(inter, -1)
        gated = swiglu(gate, up, limit=swiglu_limit) if kind is ActivationType.Swiglu else None
        return (situv2(gate, up, situ_beta, situ_linear_beta) if gated is None else gated).to(dtype)
    plain: dict[ActivationType, Any] = {
        ActivationType.Silu: torch.nn.functional.silu,
        ActivationType.Gelu: torch.nn.functional.gelu,
    }
    if kind not in plain:
        raise ArgumentError(f"activation: was {kind.name}, must be Silu or Gelu, or with a gate Swiglu or Situv2")
    if swiglu_limit and w1.shape[1] == 2 * inter:
        gate, up = out.split(inter, -1)
        out = torch.cat([gate.clamp(max=swiglu_limit), up.clamp(-swiglu_limit, swiglu_limit)], -1)
    return torch_moe_act(out, plain[kind], inter).to(dtype)


@_named
def torch_moe_stage2(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weights: Tensor, topk_ids: Tensor,
    dtype: torch.dtype = torch.float16, quant_type: int = QuantType.No, w2_scale: Tensor | None = None,
    a2_scale: Tensor | None = None, w2_bias: Tensor | None = None, doweight: bool = True,
) -> Tensor:  # fmt: skip
    """(tokens, hidden): the second product of torch_moe_stage1's (tokens, topk, inter), summed over a token's experts.

    w2_bias (experts, hidden); doweight: each by topk_weights, its bias too.
    """
    rows = _factored(hidden_states.view(*topk_ids.shape, -1), a2_scale, quant_type, False)
    out = _by_expert(rows, _factored(w2, w2_scale, quant_type, True), topk_ids, w2_bias, None)
    out = out * topk_weights[..., None].float() if doweight else out
    return out.sum(1).to(dtype)


def swiglu(x_glu: Tensor, x_linear: Tensor, alpha: float = 1.702, limit: float | None = 7.0) -> Tensor:
    """(u + 1) g sigmoid(alpha g), g = min(x_glu, limit) and u = x_linear within -limit and limit; None is 7."""
    most = 7.0 if limit is None else limit
    gate, up = x_glu.clamp(max=most), x_linear.clamp(-most, most)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def situv2(gate: Tensor, up: Tensor, beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:
    """beta tanh(gate / beta) sigmoid(gate) linear_beta tanh(up / linear_beta)."""
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear_beta * torch.tanh(up / linear_beta))


@errors_as_upstream(x="gating_output", weights="topk_weights", indices="topk_ids")
def fused_topk(
    hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool, topk_ids: Tensor | None = None,
    topk_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(topk_weights, topk_ids) of `topk_softmax`, written where given; hidden_states says how many tokens there are."""
    tokens = hidden_states.shape[0]
    if gating_output.shape[0] != tokens:
        raise ArgumentError(f"gating_output: had {gating_output.shape[0]} rows, must have {tokens} as hidden_states")
    if topk_ids is None:
        topk_ids = torch.empty(tokens, topk, dtype=torch.int32, device=gating_output.device)
    if topk_weights is None:
        topk_weights = torch.empty(tokens, topk, dtype=torch.float32, device=gating_output.device)
    topk_softmax(topk_weights, topk_ids, topk_ids.new_empty(0), gating_output, renormalize)
    return topk_weights, topk_ids
