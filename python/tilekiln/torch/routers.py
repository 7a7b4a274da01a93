# SPDX-License-Identifier: MIT
"""The routers of Transformers' mixtures of experts by `topk_gating`, for inference.

A module keeps its class, its weights and their names; its `forward` is `router_forward`, which leaves training,
recorded gradients and torch.compile to the forward of its class.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..api.operators import _call
from .fused_layers import FUSED, _theirs, agree, give_back

CORRECTION = "e_score_correction_bias"
GROUPS = ("num_group", "topk_group"), ("n_group", "topk_group")
ROWS = 24


class Routing(NamedTuple):
    """Rule by which a router chooses experts from its product."""

    wide: bool
    """Are rows and weight fp32 in it, whatever the model is?"""
    cast: bool
    """Are weights of experts of the dtype of the model? Else fp32."""
    rule: dict[str, Any]
    """Arguments of topk_gating by name, without arrays."""
    correction: str | None


def router_forward(self: Any, hidden_states: Tensor) -> Any:
    """(logits, weights, indices) of rows, as the forward of the class."""
    if _theirs(self, hidden_states):
        return type(self).forward(self, hidden_states)
    return _routed(self, self.__dict__[FUSED], hidden_states)


def _routed(self: Any, routing: Routing, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits, weights, indices = chosen(self, routing, x)
    return logits, weights.to(x.dtype) if routing.cast else weights, indices.long()


def chosen(self: Any, routing: Routing, x: Tensor, product: Any = linear) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, fp32 weights and int32 indices of rows. product: of rows, weight and bias."""
    rows, weight, bias = x.reshape(-1, x.shape[-1]), self.weight, getattr(self, "bias", None)
    if routing.wide:
        rows, weight, product = rows.float(), weight.float(), linear
    logits = product(rows, weight, bias)
    given = dict(routing.rule)
    if routing.correction:
        given["bias"] = getattr(self, routing.correction).float()
    return logits, *_call("topk_gating", (logits,), given)


def is_router(module: Any) -> bool:
    """Is it named as one, with a weight and a number of experts to choose?"""
    weight = getattr(module, "weight", None)
    return type(module).__name__.endswith("Router") and hasattr(module, "top_k") and getattr(weight, "ndim", 0) == 2


def fuse_router(module: Any, forward: Any = router_forward) -> str:
    """Give a module `router_forward`, or another; what it is now. ValueError says why not, and nothing is changed."""
    dtype, device = module.weight.dtype, module.weight.device
    random = torch.Generator().manual_seed(0)
    experts, hidden = module.weight.shape
    drawn = {
        name: torch.randn(one.shape, generator=random, device="cpu").to(device) / (hidden**0.5 if one.ndim > 1 else 1)
        for name, one in (*module.named_parameters(), *module.named_buffers())
    }
    correction = CORRECTION if CORRECTION in drawn else None
    if correction:
        drawn[correction] -= 2  # keys below 0, which some rules give to experts of other groups
    if set(drawn) - {"weight", "bias", CORRECTION}:
        raise ValueError("has other parameters than a weight, a bias and a correction of the choice")
    x = torch.randn(ROWS, hidden, generator=random, device="cpu").to(device)
    try:  # numbers that tell rules apart; those of a module may be 0
        theirs = torch.func.functional_call(module, drawn, (x,))
        logits, weights, indices = theirs
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"makes no logits, weights and indices of rows alone: {type(error).__name__}") from error
    if tuple(logits.shape) != (ROWS, experts) or weights.shape != indices.shape:
        raise ValueError("makes no logits, weights and indices of its rows")
    order = indices.argsort(-1)
    for rule in _rules(module, experts):
        mine = _routed(_Drawn(drawn), Routing(True, False, rule, correction), x)
        by_index = mine[2].argsort(-1)
        if torch.equal(mine[2].gather(1, by_index), indices.gather(1, order)):
            try:
                agree(weights.gather(1, order), mine[1].gather(1, by_index))
            except ValueError:
                continue
            break
    else:
        raise ValueError("routes by a rule that topk_gating has not")
    half = torch.bfloat16
    narrow = torch.func.functional_call(module, {name: one.to(half) for name, one in drawn.items()}, (x.to(half),))
    logits = type(module).forward(module, x.to(dtype))[0]
    module.__dict__[FUSED] = Routing(narrow[0].dtype != half, narrow[1].dtype == half, rule, correction)
    module.forward = functools.partial(forward, module)
    try:
        agree(logits, module(x.to(dtype))[0])
    except BaseException:
        give_back(module)
        raise
    return "topk_gating"


class _Drawn:
    """The numbers of a trial in place of a module's."""

    def __init__(self, numbers: dict[str, Tensor]) -> None:
        self.__dict__.update(numbers)


def _rules(module: Any, experts: int) -> Any:
    """Rules that the words of a module leave open, one of which may be its own."""
    groups = next((pair for pair in GROUPS if hasattr(module, pair[0]) and hasattr(module, pair[1])), None)
    count, among = (getattr(module, name) for name in groups) if groups else (1, 1)
    scaling = float(getattr(module, "routed_scaling_factor", 1.0) or 1.0)
    asked = getattr(module, "norm_topk_prob", None)
    for score, renormalise, of_group, factor in itertools.product(
        ("softmax", "sigmoid", "sqrtsoftplus"),
        (True, False) if asked is None else (bool(asked), not asked),
        ("two", "largest"),
        dict.fromkeys((scaling, 1.0)),
    ):
        for grouped in (True, False) if count and count > 1 else (False,):
            yield {
                "topk": int(module.top_k), "score": score, "renormalise": renormalise, "scaling": factor,
                "groups": count if grouped else 1, "topk_groups": among if grouped else 1, "group_score": of_group,
            }  # fmt: skip
