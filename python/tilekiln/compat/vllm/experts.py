# SPDX-License-Identifier: MIT
"""Experts of vLLM's mixtures by `tilekiln.experts`, whose weights are packed once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from ...api.packed_experts import PackedExperts, experts

ACTIVATIONS = {MoEActivation.SILU: "silu", MoEActivation.GELU: "gelu", MoEActivation.GELU_TANH: "gelu_tanh"}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _fits(layer: Any) -> bool:
    """Whether the experts are all here, gated, of floats, and weighted behind their products."""
    if layer.activation not in ACTIVATIONS or layer.expert_map is not None or layer.apply_router_weight_on_input:
        return False
    gate_up, down = layer.w13_weight, layer.w2_weight
    if gate_up.is_meta or gate_up.device.type != "cpu" or gate_up.dtype not in FLOATS:
        return False
    return bool(gate_up.shape[1] == 2 * down.shape[2]) and getattr(layer, "swiglu_limit", None) is None


class ExpertsMethod(UnquantizedFusedMoEMethod):
    """vLLM's own for weights as they are, over panels; what does not fit is vLLM's."""

    packed: PackedExperts | None = None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Packs w13_weight (experts, 2 inter, hidden) and w2_weight (experts, hidden, inter) and lets them go."""
        if not _fits(layer):
            super().process_weights_after_loading(layer)
            return
        biases = [None if not self.moe.has_bias else getattr(layer, name).detach() for name in ("w13_bias", "w2_bias")]
        self.packed = PackedExperts(
            layer.w13_weight.detach(), layer.w2_weight.detach(), gate_up_bias=biases[0], down_bias=biases[1]
        )
        for name in ("w13_weight", "w2_weight"):
            weight = getattr(layer, name)
            setattr(layer, name, torch.nn.Parameter(weight.new_empty(0), requires_grad=False))

    def apply(
        self, layer: Any, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, shared_experts: Any,
        shared_experts_input: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """out (tokens, hidden) of x (tokens, hidden), topk_weights, topk_ids (tokens, topk); shared experts are
        added by vLLM."""
        if self.packed is None:
            made: Tensor = super().apply(layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input)
        else:
            made = experts(x, topk_ids, topk_weights, self.packed, activation=ACTIVATIONS[layer.activation])
        return made
