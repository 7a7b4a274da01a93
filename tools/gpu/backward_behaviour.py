# SPDX-License-Identifier: MIT
"""Behaviour of a library's backward on a GPU, beside arithmetic: graphs, streams, workspaces, autograd, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilekiln as tk
import tilekiln.compat.flash_attn
import tilekiln.torch
import torch

from tools.gpu.behaviour import equal, in_six_threads, tensors
from tools.gpu.cases import report

LIMIT = 0.02  # of bf16 gradients beside float32's, as a share of their norm


def saved(library: tk.Library, *shape: int, **more: Any) -> dict[str, torch.Tensor]:
    """Arguments of a backward, from a forward of random tensors."""
    q, k, v = tensors(*shape)
    out, lse = library.fmha_fwd(q, k, v, return_lse=True, **more)
    return {"dout": torch.randn_like(out), "q": q, "k": k, "v": v, "out": out, "lse": lse}


def graph(library: tk.Library) -> str | None:
    given = saved(library, 500, 64, 2, 4, causal=True)
    made = [torch.empty_like(given[name]) for name in "qkv"]
    places = dict(zip(("dq", "dk", "dv"), made, strict=True))
    library.fmha_bwd(**given, **places, causal=True)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        library.fmha_bwd(**given, **places, causal=True)
    for _ in range(3):
        fresh = saved(library, 500, 64, 2, 4, causal=True)
        for name, old in given.items():
            old.copy_(fresh[name])
        for one in made:
            one.fill_(float("nan"))
        captured.replay()
        for one, expected in zip(made, library.fmha_bwd(**fresh, causal=True), strict=False):
            if wrong := equal(one, expected):
                return wrong
    return None


def packed_graph(library: tk.Library) -> str | None:
    """Replays read the index arrays anew."""
    q = torch.randn(300, 2, 128, device="cuda").bfloat16()
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    arguments: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "causal": True}
    longest = {"max_seqlen_q": 300, "max_seqlen_k": 300}
    out, lse = library.fmha_fwd(q, q, q, return_lse=True, **arguments, **longest)
    dout, places = torch.randn_like(out), {name: torch.empty_like(q) for name in ("dq", "dk", "dv")}
    library.fmha_bwd(dout, q, q, q, out, lse, **places, **arguments, **longest)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        library.fmha_fwd(q, q, q, out=out, lse=lse, **arguments, **longest)
        library.fmha_bwd(dout, q, q, q, out, lse, **places, **arguments, **longest)
    for middle in (100, 7, 0, 300):
        starts.copy_(torch.tensor([0, middle, 300], dtype=torch.int32))
        for one in places.values():
            one.fill_(float("nan"))
        captured.replay()
        expected = library.fmha_bwd(dout, q, q, q, out, lse, **arguments, **longest)
        for one, other in zip(places.values(), expected, strict=False):
            if wrong := equal(one, other):
                return wrong
    return None


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
            return next(
                (text for a, b in zip(first, again, strict=True) if a is not None and (text := equal(a, b))), None
            )

    return in_six_threads(calls)


def workspaces(library: tk.Library) -> str | None:
    given = saved(library, 700, 128, 2, 3)
    expected = library.fmha_bwd(**given)
    places = {name: torch.empty_like(given[name[1]]) for name in ("dq", "dk", "dv")}
    size = library.fmha_bwd_workspace_size(**given, **places)
    workspace = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
    library.fmha_bwd(**given, **places, workspace=workspace)
    for made, other in zip(places.values(), expected, strict=False):
        if wrong := equal(made, other):
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
    right = torch.tensor([0, 400, 900], dtype=torch.int32, device="cuda")
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
            made.run(
                dout,
                q,
                q,
                q,
                out,
                lse,
                **arrays,
                seqstart_q=starts,
                seqstart_k=starts,
                workspace=workspace,
                stream=stream,
            )
    if side.query():
        return "it waited for its stream"
    del made
    stream.synchronize()
    for one, other in zip(arrays.values(), expected, strict=False):
        if wrong := equal(one, other):
            return wrong
    again = tk.BackwardLauncher(library=library, dtype="bf16", mode="group", device=(2, 0), max_seqlen_q=500, **shape)
    starts.copy_(torch.tensor([0, 950, 900], dtype=torch.int32))
    torch.cuda.synchronize()
    again.prepare(workspace, starts, starts, stream=stream)
    try:
        stream.synchronize()
        return "wrong starts were prepared from"
    except tk.ArgumentError as error:
        return None if "seqstart_q: must not decrease" in str(error) else str(error)


def apart(made: Any, expected: Any) -> str | None:
    """Text on the first gradient too far from float32's; None where none is."""
    for one, other in zip(made, expected, strict=True):
        share = float((one.float() - other).norm() / other.norm())
        if not share < LIMIT:
            return f"a gradient is {share:.3f} of its norm away"
    return None


def autograd(library: tk.Library) -> str | None:
    """Each function of attention with a gradient, against PyTorch's own float32."""
    nn = torch.nn.functional
    leaves = [x.detach().requires_grad_() for x in tensors(300, 64, 2, 4)]
    exact = [x.detach().float().requires_grad_() for x in leaves]
    weight = torch.randn_like(leaves[0])

    def whole(q: Any, k: Any, v: Any, **more: Any) -> Any:
        return nn.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), **more).transpose(1, 2)

    expected = torch.autograd.grad(whole(*exact, is_causal=True), exact, weight.float())
    flat = [x.detach().reshape(600, 4, 64).requires_grad_() for x in leaves]
    starts = torch.tensor([0, 300, 600], dtype=torch.int32, device="cuda")
    package = tilekiln.compat.flash_attn
    programs: dict[str, Callable[[], Any]] = {
        "tilekiln.attention": lambda: torch.autograd.grad(tk.attention(*leaves, causal=True), leaves, weight),
        "flash_attn_func": lambda: torch.autograd.grad(package.flash_attn_func(*leaves, causal=True), leaves, weight),
        "flash_attn_varlen_func": lambda: [
            x.reshape(2, 300, 4, 64)
            for x in torch.autograd.grad(
                package.flash_attn_varlen_func(*flat, starts, starts, 300, 300, causal=True),
                flat,
                weight.reshape(600, 4, 64),
            )
        ],
        "sdpa": lambda: torch.autograd.grad(
            tilekiln.torch.sdpa(*(x.transpose(1, 2) for x in leaves), is_causal=True).transpose(1, 2), leaves, weight
        ),
        "torch.ops": lambda: torch.autograd.grad(
            torch.ops.tilekiln.fmha_fwd(*leaves, return_lse=True, causal=True)[0], leaves, weight
        ),
        "torch.compile": lambda: torch.autograd.grad(
            torch.compile(lambda *x: tk.attention(*x, causal=True) * 1.0, fullgraph=True)(*leaves), leaves, weight
        ),
        "an expanded gradient": lambda: torch.autograd.grad(
            tk.attention(*leaves, causal=True).sum() * 0 + (tk.attention(*leaves, causal=True) * weight).sum(), leaves
        ),
    }
    for name, program in programs.items():
        if wrong := apart(program(), expected):
            return f"{name}: {wrong}"
    dropped = []
    for _ in range(2):
        torch.manual_seed(5)
        dropped.append(torch.autograd.grad(package.flash_attn_func(*leaves, dropout_p=0.2), leaves, weight))
    return next((text for a, b in zip(*dropped, strict=True) if (text := equal(a, b))), None)


def run(library: tk.Library) -> int:
    checks: dict[str, Callable[[tk.Library], str | None]] = {
        "backward: a CUDA graph": graph,
        "backward: a CUDA graph of packed calls": packed_graph,
        "backward: six streams of two priorities at once": at_once,
        "backward: a workspace of the caller's": workspaces,
        "backward: a launcher that prepares in stream order": launcher,
        "backward: autograd": autograd,
    }
    return sum(report(name, lambda check=check: check(library)) for name, check in checks.items())
