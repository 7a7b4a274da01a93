"""The backward's timings, all three launches. FLOPs are 10 batch nhead seqlen^2 hdim, half of it if causal."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.gpu.backward import Backward
from tools.gpu.bench import interleaved, line

SEQLENS = (1024, 2048, 4096, 8192, 16384)


def run(out: Path, chosen: set[str], rounds: int) -> None:
    for hdim in (64, 128):
        name = f"fmha_bwd_d{hdim}-bf16"
        if name in chosen:
            for causal in (False, True):
                against_peers(Backward(out / f"{name}.cubin"), hdim, causal, rounds)


def against_peers(kernel: Backward, hdim: int, causal: bool, rounds: int) -> None:
    table: dict[str, list[float]] = {}
    for seqlen in SEQLENS:
        shape = (max(1, 16384 // seqlen), 2048 // hdim, seqlen, hdim)
        q, k, v, dout, dq, dk, dv = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(7))
        flash = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            theirs = nn.scaled_dot_product_attention(*leaves, is_causal=causal)
        programs = {
            "cuDNN": partial(torch.autograd.grad, theirs, leaves, dout, retain_graph=True),
            "Tilekiln": kernel.prepare(
                dout, q, k, v, flash[0], flash[1], dq, dk, dv, causal=causal, mask_origin="top_left"
            ),
        }
        flops = 10 * shape[0] * shape[1] * seqlen**2 * hdim * (0.5 if causal else 1.0)
        for name, took in interleaved(programs, rounds).items():
            table.setdefault(name, []).append(flops / took / 1e9)
    for name, values in table.items():
        line(f"bwd d{hdim} {'causal' if causal else 'full'} {name}", values)
    ratios = [ours / peer for ours, peer in zip(table["Tilekiln"], table["cuDNN"], strict=True)]
    print(f"{'  Tilekiln / cuDNN':44}", *(f"{ratio:6.2f}" for ratio in ratios), flush=True)
