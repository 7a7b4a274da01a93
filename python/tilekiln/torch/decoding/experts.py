# SPDX-License-Identifier: MIT
"""Mixtures of experts in decoder layers on a GPU: by `fused_moe`, over their own weights.

Their router chooses by one operator, where that has its rule, as that of CPUs does (`..routers`), but hands on what
`fused_moe` takes. The module around them, and shared experts, compute as their class does.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ...api.operators import _call
from ..fused_layers import FUSED, agree, give_back
from ..routers import chosen, fuse_router, is_router
from .rows import is_plain

ROWS = 5


def experts_of(mlp: Any) -> Any:
    """The experts of a mixture: a module with gate_up_proj (experts, 2 inter, hidden) and down_proj; None of others."""
    for one in mlp.modules():
        weights = getattr(one, "gate_up_proj", None), getattr(one, "down_proj", None)
        if all(getattr(weight, "ndim", 0) == 3 for weight in weights):
            return one
    return None


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of experts in Transformers' form."""
    learns = torch.is_grad_enabled() and (hidden_states.requires_grad or self.down_proj.requires_grad)
    if self.training or learns or torch.compiler.is_compiling():
        made: Tensor = type(self).forward(self, hidden_states, top_k_index, top_k_weights)
        return made
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    given = rows, top_k_index.int(), top_k_weights.float(), self.gate_up_proj, self.down_proj
    out: Tensor = _call("fused_moe", given, {"activation": self.__dict__[FUSED]})
    return out.view(hidden_states.shape)


@torch.no_grad()
def fuse_experts(module: Any, activation: str, undo: list[Any]) -> None:
    """Give experts `experts_forward`; ValueError says why not, and nothing is changed."""
    weights = dict(module.named_parameters())
    experts, hidden, inter = module.down_proj.shape
    if set(weights) != {"gate_up_proj", "down_proj"} or tuple(module.gate_up_proj.shape) != (
        experts,
        2 * inter,
        hidden,
    ):
        raise ValueError("has experts with biases, or weights in another order than gate_up (experts, 2 inter, hidden)")
    if "forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks:
        raise ValueError("has experts with hooks or a forward of their own")
    random = torch.Generator("cpu").manual_seed(0)
    rows = torch.randn(ROWS, hidden, generator=random, device="cpu").to(module.down_proj)
    ids = torch.randint(0, experts, (ROWS, 1), generator=random, device="cpu")
    ids = torch.cat([ids, (ids + 1) % experts], 1).to(rows.device)[:, : min(2, experts)]
    factors = torch.rand(ids.shape, generator=random, device="cpu").to(rows)
    theirs = module(rows, ids, factors)
    undo.append(functools.partial(give_back, module))
    module.__dict__[FUSED] = activation
    module.forward = functools.partial(experts_forward, module)
    agree(theirs, module(rows, ids, factors), max(hidden, inter))


def router_forward(experts: Any, product: Any, self: Any, hidden_states: Tensor) -> Any:
    """The forward of a router: logits, fp32 weights and int32 indices, for experts with `experts_forward`."""
    weights = self.weight, experts.down_proj
    learns = torch.is_grad_enabled() and (hidden_states.requires_grad or any(one.requires_grad for one in weights))
    if self.training or learns or torch.compiler.is_compiling():
        return type(self).forward(self, hidden_states)
    return chosen(self, self.__dict__[FUSED], hidden_states, product)


@torch.no_grad()
def fuse_routers(mlp: Any, experts: Any, product: Any, undo: list[Any]) -> bool:
    """Give the router of a mixture `router_forward`, with a product for rows, weight and bias; False: it stays."""
    routers = [one for one in mlp.modules() if is_router(one) and is_plain(one)]
    for one in routers:
        undo.append(functools.partial(give_back, one))
        try:
            fuse_router(one, functools.partial(router_forward, experts, product))
        except (ValueError, LookupError):  # no rule of topk_gating's, or no library that has it
            undo.pop()
            give_back(one)
            return False
    return bool(routers)


def is_ready(mlp: Any, experts: Any) -> bool:
    """Are they where they were, with the forward that they got and no hooks?"""
    return (
        experts_of(mlp) is experts
        and getattr(experts.__dict__.get("forward"), "func", None) is experts_forward
        and not any(one._forward_hooks or one._forward_pre_hooks for one in mlp.modules())
    )
