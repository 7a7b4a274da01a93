"""Decode's timings: the bytes of K and V over the time, beside a copy on the device (bytes read and written)."""

from __future__ import annotations

from pathlib import Path

import torch

from tools.gpu.bench import interleaved
from tools.gpu.decode import Decode

# batch, nhead_q, nhead_k, seqlen_k, page, splits
CASES = (
    (64, 32, 8, 8192, 16, 1),
    (64, 32, 8, 8192, 64, 1),
    (64, 32, 8, 8192, 1, 1),
    (8, 32, 8, 32768, 64, 2),
    (1, 32, 8, 131072, 64, 16),
)


def run(out: Path, chosen: set[str], rounds: int) -> None:
    if "fmha_decode_d128-bf16" not in chosen:
        return
    kernel, hdim = Decode(out / "fmha_decode_d128-bf16.cubin"), 128
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    for batch, nhead_q, nhead_k, seqlen, page, splits in CASES:
        for vectorized in (False, True) if page >= 8 else (False,):
            pages = batch * seqlen // page
            shape = (2, pages, page, nhead_k, hdim)
            cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            k, v = cache[0], cache[1]
            if vectorized:  # random data: a view is as good as a rearranged cache
                k = k.view(pages, nhead_k, hdim // 8, page, 8)
                v = v.view(pages, nhead_k, page // 8, hdim, 8)
            table = torch.randperm(pages, device="cuda").int().view(batch, -1)
            q = torch.randn(batch, nhead_q, hdim, device="cuda", dtype=torch.bfloat16)
            lengths = torch.full((batch,), seqlen, dtype=torch.int32, device="cuda")
            made, lse = torch.empty_like(q), torch.empty(batch, nhead_q, device="cuda")
            program = kernel.prepare(q, k, v, made, lse, table, splits=splits, seqlen_k=lengths)
            took = interleaved({"copy": lambda: target.copy_(source), "decode": program}, rounds)
            copy, ours = 2 * source.numel() / took["copy"] / 1e9, 2 * cache.numel() / took["decode"] / 1e9
            layout = "vectorized" if vectorized else "linear"
            shown = f"decode b{batch} h{nhead_q}/{nhead_k} keys {seqlen} page {page} splits {splits} {layout}"
            print(f"{shown:66} {ours:5.2f} TB/s, copy {copy:5.2f}, ratio {ours / copy:4.2f}", flush=True)
            del cache, k, v
