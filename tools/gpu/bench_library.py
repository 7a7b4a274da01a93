# SPDX-License-Identifier: MIT
"""A library beside cuDNN and PyTorch's flash: the whole call of Python, back to back in the current stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilekiln as tk
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.gpu.bench_forward import peer
from tools.gpu.timing import interleaved, line

SEQLENS = (1024, 2048, 4096, 8192, 16384)


def run(library: tk.Library, hdims: list[int], rounds: int) -> None:
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    took = interleaved({"matmul": lambda: square @ square}, rounds)["matmul"]
    line("matmul 8k bf16, TFLOP/s", [2 * 8192**3 / took / 1e9])
    for hdim in hdims:
        for causal in (False, True):
            table: dict[str, list[float]] = {}
            for seqlen in SEQLENS:
                batch, nhead = 16384 // seqlen, 2048 // hdim
                q, k, v, out = (
                    torch.randn(batch, nhead, seqlen, hdim, device="cuda", dtype=torch.bfloat16) for _ in range(4)
                )
                lse = torch.empty(batch, nhead, seqlen, device="cuda")

                def call(
                    q: Any = q, k: Any = k, v: Any = v, out: Any = out, lse: Any = lse, causal: bool = causal
                ) -> None:
                    library.fmha_fwd(q, k, v, out=out, lse=lse, causal=causal, layout="bhsd")

                programs: dict[str, Callable[[], object]] = {
                    "cuDNN": peer(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
                    "Tilekiln": call,
                }
                flops = 4 * batch * nhead * seqlen**2 * hdim * (0.5 if causal else 1.0)
                for name, time in interleaved(programs, rounds).items():
                    table.setdefault(name, []).append(flops / time / 1e9)
            for name, values in table.items():
                line(f"library fwd d{hdim} {'causal' if causal else 'full'} {name}", values)
            ratios = [ours / theirs for ours, theirs in zip(table["Tilekiln"], table["cuDNN"], strict=True)]
            print(f"{'  Tilekiln / cuDNN':44}", *(f"{ratio:6.2f}" for ratio in ratios), flush=True)


def run_backward(library: tk.Library, hdims: list[int], rounds: int) -> None:
    """The backward. TFLOP/s by 10 batch nhead seqlen^2 hdim, half of it if causal."""
    nn = torch.nn.functional
    for hdim in hdims:
        for causal in (False, True):
            table: dict[str, list[float]] = {}
            for seqlen in SEQLENS:
                shape = (16384 // seqlen, 2048 // hdim, seqlen, hdim)
                q, k, v, dout, dq, dk, dv = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(7))
                leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
                peers = {}
                for name, backend in (
                    ("cuDNN", SDPBackend.CUDNN_ATTENTION),
                    ("torch flash", SDPBackend.FLASH_ATTENTION),
                ):
                    with sdpa_kernel(backend):
                        made = nn.scaled_dot_product_attention(*leaves, is_causal=causal)
                    try:
                        torch.autograd.grad(made, leaves, dout, retain_graph=True)
                    except RuntimeError as error:  # it has no backward of this head dim
                        print(f"{name}, backward of d{hdim}: {error}", flush=True)
                        continue
                    peers[name] = made
                mask: dict[str, Any] = {"causal": causal, "layout": "bhsd"}
                out, lse = library.fmha_fwd(q, k, v, return_lse=True, **mask)
                given = {"dq": dq, "dk": dk, "dv": dv, "deterministic": True, **mask}
                size = library.fmha_bwd_workspace_size(dout, q, k, v, out, lse, **given)
                given["workspace"] = torch.empty(size, dtype=torch.uint8, device="cuda")

                def call(arrays: Any = (dout, q, k, v, out, lse), given: Any = given) -> None:
                    library.fmha_bwd(*arrays, **given)

                programs: dict[str, Callable[[], object]] = {"Tilekiln": call}
                for name, theirs in peers.items():
                    programs[name] = lambda theirs=theirs, leaves=leaves, dout=dout: torch.autograd.grad(
                        theirs, leaves, dout, retain_graph=True
                    )
                flops = 10 * shape[0] * shape[1] * seqlen**2 * hdim * (0.5 if causal else 1.0)
                for name, time in interleaved(programs, rounds).items():
                    table.setdefault(name, []).append(flops / time / 1e9)
            for name, values in table.items():
                line(f"library bwd d{hdim} {'causal' if causal else 'full'} {name}", values)
            if "cuDNN" in table:
                ratios = [ours / theirs for ours, theirs in zip(table["Tilekiln"], table["cuDNN"], strict=True)]
                print(f"{'  Tilekiln / cuDNN':44}", *(f"{ratio:6.3f}" for ratio in ratios), flush=True)
