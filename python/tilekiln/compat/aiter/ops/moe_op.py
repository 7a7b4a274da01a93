# SPDX-License-Identifier: MIT
"""aiter.ops.moe_op: experts of tokens by softmax and sigmoid, and the sum over a token's experts."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _absent
from ..._modules import errors_as_upstream
from .._routing import route
from .._rows import off
from .._run import run

__all__ = ["moe_align_block_size", "moe_sum", "topk_sigmoid", "topk_softmax", "topk_softmax_asm"]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(x="gating_output", weights="topk_weights", indices="topk_indices", topk="topk_indices")


@_named
def topk_softmax(
    topk_weights: Tensor, topk_indices: Tensor, token_expert_indices: Tensor, gating_output: Tensor, need_renorm: bool,
    num_shared_experts: int = 0, shared_expert_scoring_func: str = "",
) -> None:  # fmt: skip
    """topk_weights, fp32, and topk_indices, int32, (tokens, topk): of softmax(gating_output), largest first.

    token_expert_indices, int32 (tokens, topk): slot tokens + token. need_renorm: weights of a token sum to 1.
    """
    off("num_shared_experts", num_shared_experts, "append shared experts, or call tilekiln.topk_gating(shared=)")
    off("shared_expert_scoring_func", shared_expert_scoring_func, "there are no shared experts")
    tokens, topk = topk_indices.shape
    arguments = {
        "topk": topk, "renormalise": bool(need_renorm), "weights": topk_weights, "indices": topk_indices,
    }  # fmt: skip
    run("topk_softmax", (gating_output,), arguments)
    if token_expert_indices.numel():
        places = torch.arange(tokens * topk, dtype=token_expert_indices.dtype, device=token_expert_indices.device)
        token_expert_indices.copy_(places.view(topk, tokens).t())


@_named
def topk_softmax_asm(
    topk_weights: Tensor, topk_indices: Tensor, token_expert_indices: Tensor, gating_output: Tensor, need_renorm: bool
) -> None:
    """`topk_softmax`."""
    topk_softmax(topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm)


@_named
def topk_sigmoid(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor) -> None:
    """The same by sigmoid, without renormalisation."""
    route(gating_output, None, (topk_weights, topk_indices), topk_indices.shape[-1], "sigmoid", False)


def moe_sum(input: Tensor, output: Tensor) -> None:
    """output (tokens, columns): the sum of input (tokens, topk, columns) over topk."""
    torch.sum(input, dim=1, out=output)


@errors_as_upstream(experts="num_experts", unit="block_size")
def moe_align_block_size(
    topk_ids: Tensor, num_experts: int, block_size: int, sorted_token_ids: Tensor, experts_ids: Tensor,
    token_nums: Tensor, num_tokens_post_pad: Tensor,
) -> None:  # fmt: skip
    """sorted_token_ids: places in topk_ids (tokens, topk), by expert, each expert's to a multiple of block_size.

    Padding is left as it was. experts_ids, token_nums: of each block its expert, and how many of its places, and of
    those of the blocks after it, are tokens; num_tokens_post_pad (1): places that are used. All int32.
    """
    topk = topk_ids.shape[-1]
    weights = torch.zeros(topk_ids.shape, dtype=torch.float32, device=topk_ids.device)
    given = {"experts": num_experts, "unit": block_size}
    packed, _, experts, total = run("moe_sorting", (topk_ids.view(-1, topk).int(), weights.view(-1, topk)), given)
    used = int(total[0])
    places = (packed[:used] & 0xFFFFFF) * topk + (packed[:used] >> 24)
    real = (packed[:used] >> 24) < topk
    sorted_token_ids[:used] = torch.where(real, places, sorted_token_ids[:used]).to(sorted_token_ids.dtype)
    blocks = used // block_size
    experts_ids[:blocks] = experts[:blocks]
    counts = torch.bincount(topk_ids.view(-1), minlength=num_experts)
    kinds = experts[:blocks].long()
    first = torch.searchsorted(kinds, kinds, right=False)
    before = torch.arange(blocks, device=kinds.device) - first
    token_nums[:blocks] = (counts[kinds] - before * block_size).to(token_nums.dtype)
    num_tokens_post_pad[0] = used
