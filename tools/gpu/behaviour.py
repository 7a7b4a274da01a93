# SPDX-License-Identifier: MIT
"""Behaviour of a library on a GPU, beside arithmetic: streams, graphs, threads, other exporters, refusals, times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import tilekiln as tk
import torch

from tools.gpu.cases import report

HDIMS = (32, 64, 96, 128, 192, 256)


def held(library: tk.Library) -> list[int]:
    """The head dims of HDIMS for which a library has the forward in bf16."""
    names = [one.name for one in library.instances("family=fmha_fwd dtype=bf16")]
    return [hdim for hdim in HDIMS if any(f"_d{hdim}x{hdim}_" in name for name in names)]


def tensors(seqlen: int = 512, hdim: int = 64, batch: int = 2, nhead: int = 4) -> list[torch.Tensor]:
    return [torch.randn(batch, seqlen, nhead, hdim, device="cuda").bfloat16() for _ in range(3)]


def equal(a: torch.Tensor, b: torch.Tensor) -> str | None:
    return None if torch.equal(a.view(torch.uint8), b.view(torch.uint8)) else f"differ by {(a - b).abs().max()}"


def first_uses(library: tk.Library) -> None:
    """Host time of each kernel's first call, then of its second. To be the first calls of a process."""
    calls = []
    for hdim in held(library):
        q, k, v = tensors(64, hdim, 1, 1)
        out = torch.empty_like(q)
        torch.cuda.synchronize()
        took = []
        for _ in range(2):
            begun = time.perf_counter()
            library.fmha_fwd(q, k, v, out=out)
            took.append((time.perf_counter() - begun) * 1e6)
            torch.cuda.synchronize()
        calls.append(f"d{hdim} {took[0]:.0f}/{took[1]:.0f}")
    print("first/second call, us:", ", ".join(calls), "(the first of all also finds the driver)", flush=True)


def call_times(library: tk.Library) -> None:
    q, k, v = tensors(64, 64, 1, 1)
    out = torch.empty_like(q)
    lse = torch.empty(1, 1, 64, device="cuda")
    nn = torch.nn.functional
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    programs: dict[str, Callable[[], Any]] = {
        "library, out given": lambda: library.fmha_fwd(q, k, v, out=out),
        "library, causal, lse, both given": lambda: library.fmha_fwd(q, k, v, out=out, lse=lse, causal=True),
        "library, out made": lambda: library.fmha_fwd(q, k, v),
        "torch sdpa": lambda: nn.scaled_dot_product_attention(*heads),
    }
    for name, program in programs.items():
        rounds = []
        for _ in range(21):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(100):
                program()
            rounds.append((time.perf_counter() - begun) * 1e4)
        torch.cuda.synchronize()
        print(f"host time of a call, {name}: {sorted(rounds)[10]:.2f} us", flush=True)


def graph(library: tk.Library) -> str | None:
    q, k, v = tensors()
    out = library.fmha_fwd(q, k, v, causal=True)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        library.fmha_fwd(q, k, v, out=out, causal=True)
        library.fmha_fwd(out, k, v, out=(twice := torch.empty_like(out)))
    for _ in range(3):
        fresh = tensors()
        for old, new in zip((q, k, v), fresh, strict=True):
            old.copy_(new)
        out.fill_(float("nan"))
        twice.fill_(float("nan"))
        captured.replay()
        once = library.fmha_fwd(*fresh, causal=True)
        wrong = equal(out, once) or equal(twice, library.fmha_fwd(once, *fresh[1:]))
        if wrong:
            return wrong
    return None


def wrong_starts(library: tk.Library) -> str | None:
    """Starts on the device that mean nothing stay within the arrays: run under memcheck too."""
    q, k = (torch.randn(rows, 4, 64, device="cuda", dtype=torch.bfloat16) for rows in (300, 200))
    for numbers in (
        (0, 100, 300),
        (0, -7, 2**30),
        (2**31 - 1, 5, 2**31 - 1),
        (290, 2**30, -(2**31)),
        (0, 300, 1 << 20),
    ):
        starts = torch.tensor(numbers, dtype=torch.int32, device="cuda")
        out = library.fmha_fwd(q, k, k, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=300, max_seqlen_k=200)
        torch.cuda.synchronize()
    del out
    return None


def packed_graph(library: tk.Library) -> str | None:
    """Replays read the index arrays anew."""
    q = torch.randn(300, 2, 128, device="cuda").bfloat16()
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    arguments = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "causal": True}
    longest = {"max_seqlen_q": 300, "max_seqlen_k": 300}
    out = library.fmha_fwd(q, q, q, **arguments, **longest)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        library.fmha_fwd(q, q, q, out=out, **arguments, **longest)
    for middle in (100, 7, 0, 300):
        starts.copy_(torch.tensor([0, middle, 300], dtype=torch.int32))
        out.fill_(float("nan"))
        captured.replay()
        wrong = equal(out, library.fmha_fwd(q, q, q, **arguments))
        if wrong:
            return wrong
    return None


def side_stream(library: tk.Library) -> str | None:
    expected_of = tensors()
    expected = library.fmha_fwd(*expected_of)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    big = torch.randn(8192, 8192, device="cuda").bfloat16()
    for _ in range(5):
        q, k, v = (torch.zeros_like(x) for x in expected_of)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(4):
                big @ big
            for to, what in zip((q, k, v), expected_of, strict=True):
                to.copy_(what)
            out = library.fmha_fwd(q, k, v)
            done = out.clone()
        if stream.query():
            return "the call waited for its stream"
        stream.synchronize()
        wrong = equal(done, expected)
        if wrong:
            return wrong
    return None


def own_stream_object(library: tk.Library) -> str | None:
    q, k, v = tensors()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    stream = tk.Stream(device=(2, 0), native=side.cuda_stream)
    out = library.fmha_fwd(q, k, v, stream=stream)
    stream.synchronize()
    return equal(out, library.fmha_fwd(q, k, v))


def results_in_a_given_stream(library: tk.Library) -> str | None:
    """Their memory is the stream's: neither what the current stream still writes nor what it still reads."""
    q = torch.randn(4000, 2, 64, device="cuda").bfloat16()
    starts = torch.tensor([0, 2000, 4000], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([500, 2000], dtype=torch.int32, device="cuda")
    packed = {"seqstart_q": starts, "seqstart_k": starts, "seqlen_q": lengths, "seqlen_k": lengths}
    right, other = library.fmha_fwd(q, q, q, **packed), q + 1
    side = torch.cuda.Stream()
    stream = tk.Stream(device=(2, 0), native=side.cuda_stream)
    library.fmha_fwd(q, q, q, stream=stream, **packed)
    stream.synchronize()
    for _ in range(3):
        dropped = torch.empty_like(right)
        torch.cuda.synchronize()
        torch.cuda._sleep(40_000_000)  # 20 ms of the current stream
        dropped.fill_(7)
        del dropped
        out = library.fmha_fwd(q, q, q, stream=stream, **packed)
        stream.synchronize()
        if torch.cuda.current_stream().query():
            return "the call waited for the current stream"
        torch.cuda.synchronize()
        if wrong := equal(out, right):
            return f"after what the current stream wrote: {wrong}"
        torch.cuda._sleep(40_000_000)
        read = out.clone()
        del out
        library.fmha_fwd(other, other, other, stream=stream, **packed)
        stream.synchronize()
        torch.cuda.synchronize()
        if wrong := equal(read, right):
            return f"read by the current stream: {wrong}"
    return None


def in_six_threads(calls: Callable[[int], str | None]) -> str | None:
    """The first sentence on what is wrong that calls(number) of a thread gives; None where none does."""
    wrong: list[str | None] = []

    def work(number: int) -> None:
        try:
            wrong.append(calls(number))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    every = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for one in every:
        one.start()
    for one in every:
        one.join()
    said = [text for text in wrong if text]
    return said[0] if said else None if len(wrong) == len(every) else "a thread ended early"


def threads(library: tk.Library) -> str | None:
    def calls(seed: int) -> str | None:
        with torch.cuda.stream(torch.cuda.Stream()):
            q, k, v = tensors(700, 64 if seed % 2 else 128, 1, 3)
            first = library.fmha_fwd(q, k, v, causal=True)
            for _ in range(200):
                out = library.fmha_fwd(q, k, v, causal=True)
            torch.cuda.current_stream().synchronize()
            return equal(out, first)

    return in_six_threads(calls)


def untouched_rows_are_zero(library: tk.Library) -> str | None:
    q = torch.randn(40, 2, 64, device="cuda").bfloat16()
    starts = torch.tensor([0, 20, 40], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([5, 20], dtype=torch.int32, device="cuda")
    out = library.fmha_fwd(q, q, q, seqstart_q=starts, seqstart_k=starts, seqlen_q=lengths, seqlen_k=lengths)
    if out.device != q.device:
        return f"out is on {out.device}"
    return None if bool((out[5:20] == 0).all()) and bool((out[20:] != 0).any()) else "padding is not zero"


def cupy_arrays(library: tk.Library) -> str | None:
    import cupy

    q, k, v = (x.half() for x in tensors())
    out = cupy.empty(q.shape, cupy.float16)
    given = [cupy.from_dlpack(x) for x in (q, k, v)]
    library.fmha_fwd(*given, out=out)
    cupy.cuda.Device().synchronize()
    return equal(torch.from_dlpack(out), library.fmha_fwd(q, k, v))


def host_and_device(library: tk.Library) -> str | None:
    q, k, v = (x.cpu() for x in tensors())
    on_host = library.fmha_fwd(q, k, v)
    on_device = library.fmha_fwd(q.cuda(), k.cuda(), v.cuda())
    apart = float((on_host.float() - on_device.cpu().float()).abs().max())
    if apart > 0.02:
        return f"CPU and GPU differ by {apart}"
    for arguments, said in (
        ((q.cuda(), k, v.cuda()), "k: device was cpu, must be cuda:0, the device of q"),
        ((q.cuda().float(), k.cuda().float(), v.cuda().float()), "tensor cores multiply no fp32"),
    ):
        try:
            library.fmha_fwd(*arguments)
            return f"it ran where it must say {said}"
        except (tk.ArgumentError, tk.NoKernelError) as error:
            if said not in str(error):
                return str(error)
    try:
        library.fmha_fwd(q.cuda(), k.cuda(), v.cuda(), stream=tk.Stream())
        return "a stream of the host was taken"
    except tk.ArgumentError as error:
        return None if "must be a stream of cuda:0" in str(error) else str(error)


def long_rows(library: tk.Library) -> str | None:
    """Arrays of more than 2^32 bytes: the last sequence is computed as alone."""
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        return None
    q = torch.randn(20, 8192, 128, 128, device="cuda", dtype=torch.bfloat16)
    out = library.fmha_fwd(q, q[..., :1, :].expand(-1, -1, 1, -1), q[..., :1, :].expand(-1, -1, 1, -1))
    alone = q[-1:].clone()
    return equal(out[-1:], library.fmha_fwd(alone, alone[:, :, :1], alone[:, :, :1]))


def run(library: tk.Library) -> int:
    checks: dict[str, Callable[[tk.Library], str | None]] = {
        "a CUDA graph replays calls": graph,
        "a CUDA graph of packed calls": packed_graph,
        "wrong starts on the device": wrong_starts,
        "the framework's current stream": side_stream,
        "a stream given by its handle": own_stream_object,
        "results of a call whose stream is given": results_in_a_given_stream,
        "six threads on streams of their own": threads,
        "rows that no sequence has read as zero": untouched_rows_are_zero,
        "CuPy's arrays": cupy_arrays,
        "host and device in one library, and what is refused": host_and_device,
        "arrays beyond 4 GB": long_rows,
    }
    return sum(report(name, lambda check=check: check(library)) for name, check in checks.items())
