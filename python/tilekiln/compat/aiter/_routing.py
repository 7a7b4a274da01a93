# SPDX-License-Identifier: MIT
"""Experts of tokens by the operator topk_gating, in aiter's words."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._core.native import ArgumentError
from ._run import run

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")


def route(
    logits: Tensor, bias: Tensor | None, places: tuple[Tensor, Tensor] | None, topk: int, score: str, renormalise: bool,
    scaling: float = 1.0, groups: int = 1, topk_groups: int = 1, group_score: str = "two",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(weights, indices) of topk_gating, in `places` if given."""
    if score not in SCORES:
        raise ArgumentError(f"score_func: was {score!r}, must be one of {', '.join(SCORES)}")
    arguments: dict[str, Any] = {
        "topk": topk, "score": score, "renormalise": bool(renormalise), "scaling": float(scaling),
    }  # fmt: skip
    if bias is not None and bias.numel():
        arguments["bias"] = bias.float()
    if groups > 1:
        arguments.update(groups=groups, topk_groups=topk_groups, group_score=group_score)
    if places is not None:
        arguments["weights"], arguments["indices"] = places
    made: tuple[Tensor, Tensor] = run("topk_gating", (logits,), arguments)
    return made
