# SPDX-License-Identifier: MIT
"""aiter.ops.moe_sorting: the tokens of each expert one after the other, padded to whole units."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._modules import errors_as_upstream
from .._run import run

__all__ = ["moe_sorting_fwd"]


@errors_as_upstream(
    out="moe_buf", experts="num_experts", unit="unit_size", expert_mask="local_expert_mask",
    local_tokens="num_local_tokens", total_tokens_post_pad="num_valid_ids",
)  # fmt: skip
def moe_sorting_fwd(
    topk_ids: Tensor, topk_weights: Tensor, sorted_token_ids: Tensor, sorted_weights: Tensor, sorted_expert_ids: Tensor,
    num_valid_ids: Tensor, moe_buf: Tensor, num_experts: int, unit_size: int, local_expert_mask: Tensor | None = None,
    num_local_tokens: Tensor | None = None, dispatch_policy: int = 0,
) -> None:  # fmt: skip
    """Writes all from sorted_token_ids to num_valid_ids, and 0 to moe_buf: help(tilekiln.Library.moe_sorting).

    sorted_token_ids holds token | slot << 24, padding tokens | topk << 24. An expert without tokens has no unit.
    """
    arguments: dict[str, Any] = {
        "experts": num_experts, "unit": unit_size, "sorted_token_ids": sorted_token_ids,
        "sorted_weights": sorted_weights, "sorted_expert_ids": sorted_expert_ids,
        "total_tokens_post_pad": num_valid_ids,
    }  # fmt: skip
    if moe_buf.numel():
        arguments["out"] = moe_buf
    if local_expert_mask is not None:
        arguments["expert_mask"] = local_expert_mask
    if num_local_tokens is not None:
        arguments["local_tokens"] = num_local_tokens
    run("moe_sorting", (topk_ids, topk_weights), arguments)
