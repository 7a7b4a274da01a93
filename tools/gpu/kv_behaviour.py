# SPDX-License-Identifier: MIT
"""Behaviour of calls over a KV cache on a GPU: graphs, wrong numbers, pools beyond 2 GB."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tilekiln as tk
import torch

from tools.gpu.behaviour import replayed
from tools.gpu.behaviour import starts_of as ints
from tools.gpu.cases import report


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def growing_graph(library: tk.Library) -> str | None:
    """A captured step of generation, append and attention; replays read lengths and tables anew."""
    q, k, v = random(2, 1, 8, 128), random(64, 16, 2, 128), random(64, 16, 2, 128)
    knew, vnew, lengths = random(2, 1, 2, 128), random(2, 1, 2, 128), ints(100, 7)
    table = torch.randperm(64, device="cuda").int().view(2, 32)
    arguments: dict[str, Any] = {"seqlen_k": lengths, "block_table": table, "causal": True}
    out = torch.empty_like(q)
    step = partial(library.fmha_fwd_appendkv, q, k, v, knew, vnew, out=out, **arguments)

    def change(length: int) -> None:
        lengths.fill_(length)
        table.copy_(torch.randperm(64, device="cuda").int().view(2, 32))
        knew.copy_(random(*knew.shape))

    def again() -> list[torch.Tensor]:
        step(max_seqlen_k=512)
        unread = out.clone()
        step()  # the host reads the arrays
        apart = float((out.float() - unread.float()).abs().max())
        assert apart <= 0.02, f"the arrays that the host reads give what is {apart} apart"
        return [unread, k, v]

    changes = [partial(change, length) for length in (0, 1, 15, 16, 300, 511)]
    return replayed(partial(step, max_seqlen_k=512), [out], changes, again, written=(k, v))


def wrong_numbers(library: tk.Library) -> str | None:
    """Lengths, starts and pages that mean nothing stay within the arrays; to be run under memcheck."""
    q, k, v, knew = random(8, 1, 8, 128), random(64, 16, 2, 128), random(64, 16, 2, 128), random(8, 1, 2, 128)
    packed, starts = random(300, 8, 128), ints(0, -7, 2**30, 5)
    table = torch.randint(-(2**31), 2**31 - 1, (8, 4), device="cuda", dtype=torch.int64).int()
    for length in (2**31 - 1, -5, 100000):
        lengths = torch.full((8,), length, dtype=torch.int32, device="cuda")
        library.fmha_fwd_splitkv(q, k, v, block_table=table, seqlen_k=lengths, max_seqlen_q=1, max_seqlen_k=64)
        where: dict[str, Any] = {"block_table": table[:3].contiguous(), "seqlen_k": lengths[:3].contiguous()}
        for most in (8, 300):
            library.fmha_batch_prefill(packed, k, v, cu_seqlens_q=starts, max_seqlen_q=most, max_seqlen_k=64, **where)
        library.fmha_fwd_appendkv(
            q, k, v, knew, knew, seqlen_k=lengths, block_table=table, max_seqlen_k=64, attend=False
        )
    torch.cuda.synchronize()
    return None


def beyond_2_gb(library: tk.Library) -> str | None:
    """The last pages of a pool of 5 GB, by both engines, as in a pool of their own."""
    if torch.cuda.mem_get_info()[0] < 14 << 30:
        return None
    page, keys, queries = 64, 3000, 200
    count, need = (5 << 30) // (page * 8 * 128 * 2), -(-keys // page)
    k, v = (torch.empty(count, page, 8, 128, device="cuda", dtype=torch.bfloat16).normal_() for _ in range(2))
    q = random(queries, 16, 128)
    pages = torch.arange(count - need, count, device="cuda").flip(0)
    for rows in (queries, 1):
        arguments: dict[str, Any] = {"cu_seqlens_q": ints(0, rows), "seqlen_k": ints(keys), "causal": True}
        arguments |= {"max_seqlen_q": rows, "max_seqlen_k": keys}
        far = library.fmha_batch_prefill(q[:rows], k, v, block_table=pages.int()[None], **arguments)
        own = torch.arange(need, device="cuda").int()[None]
        near = library.fmha_batch_prefill(q[:rows], k[pages], v[pages], block_table=own, **arguments)
        if not torch.equal(far, near):
            return f"{rows} queries differ"
    return None


def run(library: tk.Library) -> int:
    checks: dict[str, Callable[[tk.Library], str | None]] = {
        "a CUDA graph of appends and attention": growing_graph,
        "index arrays full of wrong numbers": wrong_numbers,
        "pools beyond 2 GB": beyond_2_gb,
    }
    return sum(report(name, lambda check=check: check(library)) for name, check in checks.items())
