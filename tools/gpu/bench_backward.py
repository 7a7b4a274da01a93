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
            features(Backward(out / f"{name}.cubin"), hdim, rounds)


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


def features(kernel: Backward, hdim: int, rounds: int) -> None:
    """Every feature at seqlen 8192 without a mask, as the time over that of the plain call."""
    shape = (2, 2048 // hdim, 8192, hdim)
    batch, nhead, seqlen = shape[:3]
    q, k, v, dout, dq, dk, dv = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(7))
    flash = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False)
    tensors = (dout, q, k, v, flash[0], flash[1], dq, dk, dv)  # out and lse of the plain call: times do not ask
    slopes = torch.rand(nhead, device="cuda") * 0.1
    bias = torch.randn(1, 1, seqlen, seqlen, device="cuda", dtype=torch.bfloat16)
    dbias = torch.empty(batch, nhead, seqlen, seqlen, device="cuda", dtype=torch.bfloat16)
    starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * seqlen
    flat = [t.transpose(0, 1).reshape(nhead, batch * seqlen, *t.shape[3:]) for t in tensors]
    flat[5] = flat[5].reshape(nhead, -1).contiguous()
    lengths = {"max_seqlen_q": seqlen, "max_seqlen_k": seqlen}
    programs = {
        "plain": kernel.prepare(*tensors),
        "soft cap": kernel.prepare(*tensors, softcap=30.0),
        "alibi": kernel.prepare(*tensors, alibi_slopes=slopes),
        "bias": kernel.prepare(*tensors, bias=bias),
        "bias and dbias": kernel.prepare(*tensors, bias=bias, dbias=dbias),
        "dropout": kernel.prepare(*tensors, dropout_p=0.1, rng=(1, 2)),
        "packed": kernel.prepare(*flat, seqstart_q=starts, seqstart_k=starts, **lengths),
        "window 1024": kernel.prepare(*tensors, window=(1024, 0)),
    }
    took = interleaved(programs, rounds)
    pairs = sum(min(i, 1024) + 1 for i in range(seqlen)) / seqlen**2
    shares = {name: time / took["plain"] for name, time in took.items()}
    shares["window 1024, per visible pair"] = shares.pop("window 1024") / pairs
    print(
        f"bwd d{hdim} 8k, times plain:", ", ".join(f"{name} {share:.2f}" for name, share in shares.items()), flush=True
    )
