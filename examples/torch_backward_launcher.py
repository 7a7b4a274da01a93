# SPDX-License-Identifier: MIT
"""Gradients of attention by a launcher: its workspace is taken for the largest shapes, and prepared in stream order.

On a GPU prepare and run are enqueued on PyTorch's stream, and further runs are one CUDA graph, which is captured after
the prepare; PyTorch's allocator owns the workspace. On the CPU a stream is a queue with a worker. With pinned memory of
the caller's own, in C++: devices/backward_launcher.cpp. The GPU's half has not been run on a GPU yet.
"""

from __future__ import annotations

from typing import Any

import tilekiln as tk
import torch

ROWS, KEYS, HEADS, HEADS_K, DIM = 100, 130, 4, 2, 64


def gradients(device: str) -> tuple[torch.Tensor, ...]:
    """dq, dk and dv of three sequences, whose starts the host never reads on a GPU."""
    gpu = device == "cuda"
    torch.manual_seed(1)
    q, dout = (torch.randn(ROWS, HEADS, DIM).bfloat16().to(device) for _ in range(2))
    k, v = (torch.randn(KEYS, HEADS_K, DIM).bfloat16().to(device) for _ in range(2))
    starts: dict[str, Any] = {
        "seqstart_q": torch.tensor([0, 40, 47, 100], dtype=torch.int32, device=device),
        "seqstart_k": torch.tensor([0, 50, 90, 130], dtype=torch.int32, device=device),
    }
    most = {"max_seqlen_q": 53, "max_seqlen_k": 50} if gpu else {}
    out, lse = tk.attention(q, k, v, return_lse=True, **starts, **most)

    launcher = tk.BackwardLauncher(
        dtype="bf16", hdim_q=DIM, hdim_v=DIM, nhead_q=HEADS, nhead_k=HEADS_K, batch=3, seqlen_q=ROWS, seqlen_k=50,
        mode="group", deterministic=True, max_seqlen_q=53, device=(2, 0) if gpu else (1, 0),
    )  # fmt: skip
    workspace = torch.empty(launcher.workspace_size, dtype=torch.uint8, device=device)
    made = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}

    def stream() -> tk.Stream:
        return tk.Stream(device=(2, 0), native=torch.cuda.current_stream().cuda_stream) if gpu else tk.Stream()

    def run(on: tk.Stream) -> None:
        named = {**made, **starts, **most, "workspace": workspace, "deterministic": True}
        launcher.run(dout, q, k, v, out, lse, stream=on, **named)

    with stream() as first:
        launcher.prepare(workspace, *starts.values(), stream=first)  # returns at once
        run(first)
        first.synchronize()
    if gpu:  # the same starts: one prepare does for all runs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), stream() as captured:
            run(captured)
        for one in made.values():
            one.zero_()
        graph.replay()
        torch.cuda.synchronize()
    expected = tk.attention_backward(dout, q, k, v, out, lse, deterministic=True, **starts, **most)
    assert all(torch.equal(one, right) for one, right in zip(made.values(), expected, strict=True))
    return tuple(made.values())


if __name__ == "__main__":
    where = "cuda" if torch.cuda.is_available() else "cpu"
    print(where, *(f"{one.float().norm():.3f}" for one in gradients(where)))
