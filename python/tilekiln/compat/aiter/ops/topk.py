# SPDX-License-Identifier: MIT
"""aiter.ops.topk: the experts of each token by scores of their logits, with a correction of the choice and groups.

gating_output (tokens, experts), fp32, fp16 or bf16; topk_weights, fp32, and topk_indices or topk_ids, int32, (tokens,
topk), are written. An expert is chosen by its score + correction (experts), a weight is its score; need_renorm: the
weights of a token are divided by their sum; then all are multiplied by routed_scaling_factor. With num_expert_group
groups of experts, those of the topk_group best groups are chosen from: with a correction by the sum of a group's two
highest, else by its highest. Experts of other groups are never chosen.

top_k_per_row_...: of long rows, by PyTorch's topk.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ...._core.native import ArgumentError
from ... import _absent
from ..._modules import errors_as_upstream
from .._routing import route
from .._rows import off
from .._shapes import gen_moe_fused_gate_fake_tensor

__all__ = [
    "biased_grouped_topk",
    "biased_grouped_topk_hip",
    "biased_grouped_topk_torch",
    "gen_moe_fused_gate_fake_tensor",
    "get_topk_mb_workspace",
    "get_topk_scratch_workspace",
    "grouped_topk",
    "grouped_topk_torch",
    "moe_fused_gate",
    "top_k_per_row_decode",
    "top_k_per_row_decode_fast",
    "top_k_per_row_prefill",
    "top_k_per_row_prefill_fast",
    "topk_gating",
    "topk_gating_fwd",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(
    x="gating_output", bias="correction_bias", weights="topk_weights", indices="topk_ids", groups="num_expert_group",
    topk_groups="topk_group", topk="topk_ids",
)  # fmt: skip


@errors_as_upstream(x="gating_output", bias="correction_bias", weights="topk_weights", indices="topk_indices")
def topk_gating_fwd(
    topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor, correction_bias: Tensor, need_renorm: bool,
    routed_scaling_factor: float = 1.0, score_func: str = "sqrtsoftplus",
) -> None:  # fmt: skip
    """Experts by softmax, sigmoid or sqrtsoftplus; a correction of no elements is none."""
    places, topk = (topk_weights, topk_indices), topk_weights.shape[-1]
    route(gating_output, correction_bias, places, topk, score_func, need_renorm, routed_scaling_factor)


@errors_as_upstream(x="gating_output", bias="correction_bias", weights="topk_weights", indices="topk_indices")
def topk_gating(
    topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor, correction_bias: Tensor | None = None,
    need_renorm: bool = True, routed_scaling_factor: float = 1.0, score_func: str = "sqrtsoftplus",
) -> None:  # fmt: skip
    """Experts by softmax, sigmoid or sqrtsoftplus."""
    places, topk = (topk_weights, topk_indices), topk_weights.shape[-1]
    route(gating_output, correction_bias, places, topk, score_func, need_renorm, routed_scaling_factor)


@_named
def biased_grouped_topk_hip(
    gating_output: Tensor, correction_bias: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_expert_group: int,
    topk_grp: int, need_renorm: bool, routed_scaling_factor: float = 1.0,
) -> None:  # fmt: skip
    """Experts by sigmoid, as DeepSeek-V3 has them."""
    route(
        gating_output, correction_bias, (topk_weights, topk_ids), topk_ids.shape[-1], "sigmoid", need_renorm,
        routed_scaling_factor, num_expert_group, topk_grp,
    )  # fmt: skip


@_named
def biased_grouped_topk(
    gating_output: Tensor, correction_bias: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_expert_group: int,
    topk_group: int, need_renorm: bool, routed_scaling_factor: float = 1.0,
) -> None:  # fmt: skip
    """`biased_grouped_topk_hip`."""
    biased_grouped_topk_hip(
        gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm,
        routed_scaling_factor,
    )  # fmt: skip


@_named
def grouped_topk(
    gating_output: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_expert_group: int, topk_group: int,
    need_renorm: bool, is_softmax: bool = True, routed_scaling_factor: float = 1.0,
) -> None:  # fmt: skip
    """Experts by softmax, as DeepSeek-V2 has them, or by sigmoid."""
    route(
        gating_output, None, (topk_weights, topk_ids), topk_ids.shape[-1], "softmax" if is_softmax else "sigmoid",
        need_renorm, routed_scaling_factor, num_expert_group, topk_group, "largest",
    )  # fmt: skip


@errors_as_upstream(x="input", weights="topk_weights", indices="topk_ids", groups="num_expert_group")
def moe_fused_gate(
    input: Tensor, bias: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_expert_group: int, topk_group: int,
    topk: int, n_share_experts_fusion: int, routed_scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(topk_weights, topk_ids), written: `biased_grouped_topk` with renormalisation."""
    off(
        "n_share_experts_fusion", n_share_experts_fusion, "append shared experts, or call tilekiln.topk_gating(shared=)"
    )
    if topk != topk_ids.shape[-1]:
        raise ArgumentError(f"topk: was {topk}, must be {topk_ids.shape[-1]}, the columns of topk_ids")
    biased_grouped_topk_hip(
        input, bias, topk_weights, topk_ids, num_expert_group, topk_group, True, routed_scaling_factor
    )
    return topk_weights, topk_ids


@_named
def biased_grouped_topk_torch(
    gating_output: Tensor, correction_bias: Tensor, topk: int, renormalize: bool, num_expert_group: int = 0,
    topk_group: int = 0, return_score: bool = False,
) -> Any:  # fmt: skip
    """(weights, ids) of `biased_grouped_topk`, and with return_score sigmoid(gating_output) in fp32."""
    made = route(gating_output, correction_bias, None, topk, "sigmoid", renormalize, 1.0, num_expert_group, topk_group)
    return (*made, gating_output.float().sigmoid()) if return_score else made


@_named
def grouped_topk_torch(
    gating_output: Tensor, topk: int, renormalize: bool, num_expert_group: int = 0, topk_group: int = 0,
    scoring_func: str = "softmax",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(weights, ids) of `grouped_topk`."""
    return route(
        gating_output, None, None, topk, scoring_func, renormalize, 1.0, num_expert_group, topk_group, "largest"
    )


def _of_ranges(logits: Tensor, starts: Tensor, ends: Tensor, indices: Tensor, values: Tensor | None, k: int) -> None:
    """The k largest of logits[row, starts[row] : ends[row]]: their columns past starts, -1 where there are fewer."""
    column = torch.arange(logits.shape[1], device=logits.device)
    outside = (column < starts[:, None]) | (column >= ends[:, None])
    most = min(k, logits.shape[1])
    best, place = logits.masked_fill(outside, -torch.inf).topk(most, -1)
    none = outside.gather(1, place)
    indices[:, most:] = -1
    indices[:, :most] = (place - starts[:, None]).masked_fill(none, -1).to(indices.dtype)
    if values is not None:
        values[:, :most] = best
        values[:, most:] = -torch.inf


@errors_as_upstream()
def top_k_per_row_prefill(
    logits: Tensor, rowStarts: Tensor, rowEnds: Tensor, indices: Tensor, values: Tensor | None, numRows: int,
    stride0: int, stride1: int, k: int = 2048, stable: bool = False,
) -> None:  # fmt: skip
    """indices, int32 (rows, k): columns of the k largest of logits[row, rowStarts[row] : rowEnds[row]], past rowStarts.

    The largest first, -1 where a row has fewer; values, if given: what stands there. stride0 and stride1 are those of
    logits, which is a tensor that has them. stable: of equal logits the ones further left.
    """
    if stable:
        order = logits[:numRows].sort(dim=-1, descending=True, stable=True).indices
        column = torch.arange(order.shape[1], device=order.device)
        rank = torch.empty_like(order).scatter_(1, order, column.expand_as(order))
        _of_ranges(-rank.double(), rowStarts[:numRows], rowEnds[:numRows], indices[:numRows], None, k)
        if values is not None:
            chosen = indices[:numRows].long()
            there = logits[:numRows].gather(1, (chosen + rowStarts[:numRows, None]).clamp(min=0))
            values[:numRows] = there.masked_fill(chosen < 0, -torch.inf)
        return
    _of_ranges(
        logits[:numRows], rowStarts[:numRows], rowEnds[:numRows], indices[:numRows],
        None if values is None else values[:numRows], k,
    )  # fmt: skip


@errors_as_upstream()
def top_k_per_row_prefill_fast(
    logits: Tensor, rowStarts: Tensor, rowEnds: Tensor, indices: Tensor, values: Tensor | None, numRows: int,
    stride0: int, stride1: int,
) -> None:  # fmt: skip
    """`top_k_per_row_prefill` of 2048."""
    top_k_per_row_prefill(logits, rowStarts, rowEnds, indices, values, numRows, stride0, stride1)


@errors_as_upstream()
def top_k_per_row_decode(
    logits: Tensor, next_n: int, seqLens: Tensor, indices: Tensor, numRows: int, stride0: int, stride1: int,
    k: int = 2048, stable: bool = False,
) -> None:  # fmt: skip
    """`top_k_per_row_prefill` of next_n rows a sequence: row j of n sees its first seqLens - n + 1 + j logits."""
    row = torch.arange(numRows, device=logits.device)
    ends = seqLens[row // next_n] - next_n + row % next_n + 1
    top_k_per_row_prefill(logits, torch.zeros_like(ends), ends, indices, None, numRows, stride0, stride1, k, stable)


@errors_as_upstream()
def top_k_per_row_decode_fast(
    logits: Tensor, next_n: int, seqLens: Tensor, indices: Tensor, numRows: int, stride0: int, stride1: int
) -> None:
    """`top_k_per_row_decode` of 2048."""
    top_k_per_row_decode(logits, next_n, seqLens, indices, numRows, stride0, stride1)


@functools.lru_cache(maxsize=1024)
def get_topk_mb_workspace(device: torch.device, size: int) -> Tensor:
    """Zeros, uint8 (size), the same tensor for the same arguments; no function here needs scratch memory."""
    return torch.zeros(size, dtype=torch.uint8, device=device)


def get_topk_scratch_workspace(device: torch.device, size: int) -> Tensor:
    """As get_topk_mb_workspace, a new tensor whose contents are anything."""
    return torch.empty(size, dtype=torch.uint8, device=device)
