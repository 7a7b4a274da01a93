# SPDX-License-Identifier: MIT
"""Attention over sequences that several processes hold together.

Of a group of W processes each holds its part of the sequence, by a placement: contiguous, zigzag or striped. Each gets
its part of out, and in the backward of dq, dk and dv. torch.distributed carries them: gloo between CPUs, NCCL between
NVIDIA GPUs.

    x = shard(x, placement="zigzag")                     # tokens, labels, positions, hidden states
    out = attention(q, k, v, causal=True, placement="zigzag")

* `ring_attention` sends keys and values on, from neighbour to neighbour, while those that are here are computed.
* `gather_attention` gathers them, some heads at a time, and attends in few large calls.
* `head_exchange_attention` gives each process whole sequences of some heads; `ring_attention(heads=U)` goes between
  groups of U that do so.
* `attention` chooses one of them by a measured model, which `plan` tells.
* `decode_attention` attends over a cache that all hold; `context_parallel` has models do all this unchanged.
"""

from __future__ import annotations

from .attend import attention, gather_attention, head_exchange_attention, plan, ring_attention
from .compute import merge
from .context import context_parallel
from .decode import decode_attention
from .placement import positions, shard, shard_cu_seqlens, unshard

__all__ = [
    "attention",
    "context_parallel",
    "decode_attention",
    "gather_attention",
    "head_exchange_attention",
    "merge",
    "plan",
    "positions",
    "ring_attention",
    "shard",
    "shard_cu_seqlens",
    "unshard",
]
