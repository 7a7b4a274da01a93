# SPDX-License-Identifier: MIT
"""Behaviour of a library's backward on a GPU, beside arithmetic: graphs, streams, workspaces.

Autograd's ways to it are tests that run on a GPU, too: backward_torch, torch_operators and flash_attn of suite.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tilekiln as tk
import torch

from tools.gpu.behaviour import all_equal, in_six_threads, refill, replayed, starts_of, tensors
from tools.gpu.cases import report


def saved(library: tk.Library, *shape: int, **more: Any) -> dict[str, torch.Tensor]:
    """Arguments of a backward, from a forward of random tensors."""
    q, k, v = tensors(*shape)
    out, lse = library.fmha_fwd(q, k, v, return_lse=True, **more)
    return {"dout": torch.randn_like(out), "q": q, "k": k, "v": v, "out": out, "lse": lse}


def graph(library: tk.Library) -> str | None:
    given = saved(library, 500, 64, 2, 4, causal=True)
    places = {f"d{name}": torch.empty_like(given[name]) for name in "qkv"}
    call = partial(library.fmha_bwd, **given, causal=True)
    change = partial(refill, given.values(), lambda: saved(library, 500, 64, 2, 4, causal=True).values())
    return replayed(partial(call, **places), [*places.values()], [change] * 3, call)


def packed_graph(library: tk.Library) -> str | None:
    """Replays read the index arrays anew."""
    q, starts = torch.randn(300, 2, 128, device="cuda").bfloat16(), starts_of(0, 100, 300)
    arguments: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "causal": True}
    arguments |= {"max_seqlen_q": 300, "max_seqlen_k": 300}
    out, lse = library.fmha_fwd(q, q, q, return_lse=True, **arguments)
    dout, places = torch.randn_like(out), {name: torch.empty_like(q) for name in ("dq", "dk", "dv")}
    backward = partial(library.fmha_bwd, dout, q, q, q, out, lse, **arguments)

    def call() -> None:
        library.fmha_fwd(q, q, q, out=out, lse=lse, **arguments)
        backward(**places)

    changes = [partial(starts.copy_, starts_of(0, middle, 300)) for middle in (100, 7, 0, 300)]
    return replayed(call, [*places.values()], changes, backward)


def at_once(library: tk.Library) -> str | None:
    """Kernels whose blocks wait for each other, in streams of two priorities, beside products."""

    def calls(seed: int) -> str | None:
        with torch.cuda.stream(torch.cuda.Stream(priority=-(seed % 2))):
            given = saved(library, 1500, 64 if seed % 2 else 128, 1, 7 + seed, causal=bool(seed & 2))
            big = torch.randn(2048, 2048, device="cuda").bfloat16()
            first = library.fmha_bwd(**given, causal=bool(seed & 2))
            for _ in range(30):
                big @ big
                again = library.fmha_bwd(**given, causal=bool(seed & 2))
            torch.cuda.current_stream().synchronize()
            return all_equal(first, again)

    return in_six_threads(calls)


def workspaces(library: tk.Library) -> str | None:
    given = saved(library, 700, 128, 2, 3)
    expected = library.fmha_bwd(**given)
    places = {name: torch.empty_like(given[name[1]]) for name in ("dq", "dk", "dv")}
    size = library.fmha_bwd_workspace_size(**given, **places)
    workspace = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
    library.fmha_bwd(**given, **places, workspace=workspace)
    if wrong := all_equal(places.values(), expected):
        return wrong
    try:
        library.fmha_bwd(**given, **places, workspace=workspace[:-1])
        return "a workspace that is too small was taken"
    except tk.ArgumentError as error:
        return None if f"workspace: had {size - 1} bytes, must have {size}" in str(error) else str(error)


def launcher(library: tk.Library) -> str | None:
    """A workspace prepared in stream order, from starts that earlier work of the stream writes."""
    q = torch.randn(900, 4, 64, device="cuda").bfloat16()
    lengths = {"max_seqlen_q": 500, "max_seqlen_k": 500}
    right = starts_of(0, 400, 900)
    out, lse = library.fmha_fwd(q, q, q, return_lse=True, cu_seqlens_q=right, cu_seqlens_k=right, **lengths)
    dout, arrays = torch.randn_like(out), {name: torch.full_like(q, float("nan")) for name in ("dq", "dk", "dv")}
    expected = library.fmha_bwd(dout, q, q, q, out, lse, cu_seqlens_q=right, cu_seqlens_k=right, **lengths)
    shape = {"hdim_q": 64, "hdim_v": 64, "nhead_q": 4, "batch": 2, "seqlen_q": 900, "seqlen_k": 500}
    made = tk.BackwardLauncher(library=library, dtype="bf16", mode="group", device=(2, 0), max_seqlen_q=500, **shape)
    workspace = torch.full((made.workspace_size,), 77, dtype=torch.uint8, device="cuda")
    big, starts = torch.randn(8192, 8192, device="cuda").bfloat16(), torch.zeros_like(right)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    stream = tk.Stream(device=(2, 0), native=side.cuda_stream)
    with torch.cuda.stream(side):
        for _ in range(4):
            big @ big
        starts.copy_(right)
        made.prepare(workspace, starts, starts, stream=stream)
        for _ in range(2):  # one prepare does for all
            where = {"seqstart_q": starts, "seqstart_k": starts, "workspace": workspace, "stream": stream}
            made.run(dout, q, q, q, out, lse, **arrays, **where)
    if side.query():
        return "it waited for its stream"
    del made
    stream.synchronize()
    if wrong := all_equal(arrays.values(), expected):
        return wrong
    again = tk.BackwardLauncher(library=library, dtype="bf16", mode="group", device=(2, 0), max_seqlen_q=500, **shape)
    starts.copy_(starts_of(0, 950, 900))
    torch.cuda.synchronize()
    again.prepare(workspace, starts, starts, stream=stream)
    try:
        stream.synchronize()
        return "wrong starts were prepared from"
    except tk.ArgumentError as error:
        return None if "seqstart_q: must not decrease" in str(error) else str(error)


def run(library: tk.Library) -> int:
    checks: dict[str, Callable[[tk.Library], str | None]] = {
        "backward: a CUDA graph": graph,
        "backward: a CUDA graph of packed calls": packed_graph,
        "backward: six streams of two priorities at once": at_once,
        "backward: a workspace of the caller's": workspaces,
        "backward: a launcher that prepares in stream order": launcher,
    }
    return sum(report(name, lambda check=check: check(library)) for name, check in checks.items())
