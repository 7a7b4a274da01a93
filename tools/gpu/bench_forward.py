# SPDX-License-Identifier: MIT
"""The forward's timings. FLOPs are 4 batch nhead seqlen^2 hdim, half of it if causal.

batch seqlen = 16384 and nhead hdim = 2048, as in FlashAttention-3's own benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.gpu.forward import Forward
from tools.gpu.timing import interleaved, line

SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)


def peer(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Callable[[], Any]:
    def run() -> Any:
        with sdpa_kernel(backend):
            return nn.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def run(out: Path, chosen: set[str], rounds: int) -> None:
    for hdim in (64, 128, 192, 256):
        name = f"fmha_fwd_d{hdim}-bf16"
        if name in chosen:
            against_peers(Forward(out / f"{name}.cubin"), hdim, rounds)
            features(Forward(out / f"{name}.cubin"), hdim, rounds)


def inputs(hdim: int, seqlen: int) -> list[torch.Tensor]:
    """q, k, v, out."""
    shape = (max(1, 16384 // seqlen), 2048 // hdim, seqlen, hdim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def against_peers(kernel: Forward, hdim: int, rounds: int) -> None:
    for causal in (False, True):
        table: dict[str, list[float]] = {}
        for seqlen in SEQLENS:
            q, k, v, made = inputs(hdim, seqlen)
            lse = torch.empty(q.shape[:3], device="cuda")
            programs = {
                "cuDNN": peer(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
                "Tilekiln": kernel.prepare(q, k, v, made, lse, causal=causal, mask_origin="top_left"),
            }
            if seqlen == 8192:
                programs["PyTorch flash, 8k alone"] = peer(SDPBackend.FLASH_ATTENTION, q, k, v, causal)
            flops = 4 * q.shape[0] * q.shape[1] * seqlen**2 * hdim * (0.5 if causal else 1.0)
            for name, took in interleaved(programs, rounds).items():
                table.setdefault(name, []).append(flops / took / 1e9)
        for name, values in table.items():
            line(f"fwd d{hdim} {'causal' if causal else 'full'} {name}", values)
        ratios = [ours / theirs for ours, theirs in zip(table["Tilekiln"], table["cuDNN"], strict=True)]
        print(f"{'  Tilekiln / cuDNN':44}", *(f"{ratio:6.2f}" for ratio in ratios), flush=True)


def features(kernel: Forward, hdim: int, rounds: int) -> None:
    """Every feature at seqlen 8192 without a mask, as the time over that of the plain call."""
    q, k, v, made = inputs(hdim, 8192)
    batch, nhead, seqlen = q.shape[:3]
    lse = torch.empty(q.shape[:3], device="cuda")
    slopes = torch.rand(nhead, device="cuda") * 0.1
    bias = torch.randn(1, 1, seqlen, seqlen, device="cuda", dtype=torch.bfloat16)
    starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * seqlen
    packed = [t.transpose(0, 1).reshape(nhead, batch * seqlen, hdim) for t in (q, k, v, made)]
    lengths = {"max_seqlen_q": seqlen, "max_seqlen_k": seqlen}
    programs = {
        "plain": kernel.prepare(q, k, v, made, lse),
        "soft cap": kernel.prepare(q, k, v, made, lse, softcap=30.0),
        "alibi": kernel.prepare(q, k, v, made, lse, alibi_slopes=slopes),
        "bias": kernel.prepare(q, k, v, made, lse, bias=bias),
        "dropout": kernel.prepare(q, k, v, made, lse, dropout_p=0.1, rng=(1, 2)),
        "packed": kernel.prepare(*packed, lse.view(nhead, -1), seqstart_q=starts, seqstart_k=starts, **lengths),
        "window 1024": kernel.prepare(q, k, v, made, lse, window=(1024, 0)),
    }
    took = interleaved(programs, rounds)
    pairs = sum(min(i, 1024) + 1 for i in range(seqlen)) / seqlen**2
    shares = {name: time / took["plain"] for name, time in took.items()}
    shares["window 1024, per visible pair"] = shares.pop("window 1024") / pairs
    print(
        f"fwd d{hdim} 8k, times plain:", ", ".join(f"{name} {share:.2f}" for name, share in shares.items()), flush=True
    )
