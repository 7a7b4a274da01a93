# SPDX-License-Identifier: MIT
"""Decode over a cache that several processes hold: split-KV of each over its keys, merged by LSE.

out and LSE of a process travel in one gather, so that a step costs one transfer of some kilobytes; the merge is exact
and has equal bits in every process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln.torch import calls

from .agree import agree
from .placement import check_group, gather_into


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqlen_k: Tensor | None = None,
    causal: bool = False,
    newest: int | None = None,
    group: dist.ProcessGroup | None = None,
    return_lse: bool = False,
    check: bool = True,
    **arguments: Any,
) -> Any:
    """Attention of the same queries in every process over the keys of all; no gradient.

    q (batch, seqlen_q, nhead_q, hdim), the same in all; k and v (batch, keys here, nhead_k, hdim), this process's part
    of the cache: any number of keys, 0 too, in any order, as each step of generation may put its key where it likes.
    seqlen_k: int32 (batch), keys here that are there. causal: of the queries, which are the newest; their keys are the
    last ones of the process `newest` (the last rank where None) and no other's; without it all keys are seen.
    arguments: of `Library.fmha_fwd_splitkv`, softmax_scale, softcap and block_table among them.

    Returns out, of q's shape and dtype, in every process, with return_lse and lse, fp32 (batch, nhead_q, seqlen_q).
    ArgumentError in all where the queries of one have another shape or dtype, or one has no kernel; check=False leaves
    out that look at the others, for steps like the one before, and can be captured in a CUDA graph.
    """
    check_group()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    newest = world - 1 if newest is None else newest
    made: tuple[Tensor, Tensor] | None = None
    said: dict[str, Any]
    try:
        if q.dim() != 4:
            raise ArgumentError(f"q: had {q.dim()} dimensions, must have 4: (batch, seqlen_q, nhead_q, hdim)")
        if not 0 <= newest < world:
            raise ArgumentError(f"newest: was {newest}, must be at least 0 and below {world}, the processes")
        said = {"q": list(q.shape), "dtype": str(q.dtype), "hdim_v": v.shape[-1], "causal": causal, "newest": newest}
        made = _here(q, k, v, seqlen_k, causal and rank == newest, arguments)
    except (ArgumentError, NoKernelError) as refusal:
        said = {"failed": str(refusal)}
    if check or made is None:
        agree(group, "decode_attention", said)
    assert made is not None
    out, lse = made
    if world > 1:
        both = torch.cat([out.float(), lse.transpose(1, 2).unsqueeze(-1)], -1).contiguous()
        every = both.new_empty(world * len(both), *both.shape[1:])
        gather_into(every, both, group=group)
        outs, lses = every.unflatten(0, (world, -1)).split([out.shape[-1], 1], -1)
        shares = lses.softmax(0).nan_to_num_(0.0)  # of keys that no process has: 0
        if return_lse:
            lse = lses.squeeze(-1).logsumexp(0).transpose(1, 2)
        out = (outs * shares).sum(0).to(q.dtype)
    return (out, lse) if return_lse else out


def _here(
    q: Tensor, k: Tensor, v: Tensor, seqlen_k: Tensor | None, causal: bool, arguments: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """(out, lse) over the keys here."""
    if k.shape[1] == 0 and arguments.get("block_table") is None:
        nothing = torch.full((q.shape[0], q.shape[2], q.shape[1]), -torch.inf, device=q.device)
        return q.new_zeros(*q.shape[:-1], v.shape[-1]), nothing
    given = {**arguments, "return_lse": True}
    if causal:
        given["causal"] = True
    if seqlen_k is not None:
        given["seqlen_k"] = seqlen_k
    with torch.no_grad():
        made: tuple[Tensor, Tensor] = calls.splitkv(q, k, v, **given)
    return made
