# SPDX-License-Identifier: MIT
"""Behaviour of a library on a GPU, beside arithmetic: streams, graphs, threads, workspaces, pools of a KV cache.

What is refused is the host's to find (tests/cuda/host_side.py); CuPy's arrays have tools/gpu/frameworks.py. Autograd's
ways to a backward are tests that run on a GPU, too: backward_torch, torch_operators and flash_attn of suite.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import tilekiln as tk
import torch

from tools.gpu.cases import report


def tensors(seqlen: int = 512, hdim: int = 64, batch: int = 2, nhead: int = 4) -> list[torch.Tensor]:
    return [torch.randn(batch, seqlen, nhead, hdim, device="cuda").bfloat16() for _ in range(3)]


def equal(a: torch.Tensor, b: torch.Tensor) -> str | None:
    return None if torch.equal(a.view(torch.uint8), b.view(torch.uint8)) else f"differ by {(a - b).abs().max()}"


def all_equal(some: Iterable[torch.Tensor | None], others: Iterable[torch.Tensor | None]) -> str | None:
    """As equal, of the first that differ; results that a call does not make are None."""
    pairs = [(a, b) for a, b in zip(some, others, strict=False) if a is not None and b is not None]
    return next((text for a, b in pairs if (text := equal(a, b))), None)


def starts_of(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def replayed(
    call: Callable[[], Any],
    made: Sequence[torch.Tensor],
    changes: Iterable[Callable[[], Any]],
    again: Callable[[], Iterable[torch.Tensor | None]],
    written: Sequence[torch.Tensor] = (),
) -> str | None:
    """A captured call, replayed after each change of what it reads, makes what it makes `again`.

    made: its results, poisoned before each replay. written: further arrays that it changes in place.
    """
    call()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        call()
    for number, change in enumerate(changes):
        change()
        for one in made:
            one.fill_(float("nan"))
        captured.replay()
        kept = [one.clone() for one in (*made, *written)]
        if wrong := all_equal(kept, again()):
            return f"replay {number}: {wrong}"
    return None


def refill(old: Iterable[torch.Tensor], fresh: Callable[[], Iterable[torch.Tensor]]) -> None:
    for one, new in zip(old, fresh(), strict=True):
        one.copy_(new)


def graph(library: tk.Library) -> str | None:
    q, k, v = tensors()
    out, twice = torch.empty_like(q), torch.empty_like(q)

    def call() -> None:
        library.fmha_fwd(q, k, v, out=out, causal=True)
        library.fmha_fwd(out, k, v, out=twice)

    def again() -> list[torch.Tensor]:
        once = library.fmha_fwd(q, k, v, causal=True)
        return [once, library.fmha_fwd(once, k, v)]

    return replayed(call, [out, twice], [partial(refill, (q, k, v), tensors)] * 3, again)


def wrong_starts(library: tk.Library) -> str | None:
    """Starts on the device that mean nothing stay within the arrays: run under memcheck too."""
    q, k = (torch.randn(rows, 4, 64, device="cuda", dtype=torch.bfloat16) for rows in (300, 200))
    numbers_ = (0, 100, 300), (0, -7, 2**30), (2**31 - 1, 5, 2**31 - 1), (290, 2**30, -(2**31)), (0, 300, 1 << 20)
    for numbers in numbers_:
        starts = starts_of(*numbers)
        out = library.fmha_fwd(q, k, k, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=300, max_seqlen_k=200)
        torch.cuda.synchronize()
    del out
    return None


def packed_graph(library: tk.Library) -> str | None:
    """Replays read the index arrays anew."""
    q = torch.randn(300, 2, 128, device="cuda").bfloat16()
    starts, out = starts_of(0, 100, 300), torch.empty_like(q)
    call = partial(library.fmha_fwd, q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=True)
    changes = [partial(starts.copy_, starts_of(0, middle, 300)) for middle in (100, 7, 0, 300)]
    captured = partial(call, out=out, max_seqlen_q=300, max_seqlen_k=300)
    return replayed(captured, [out], changes, lambda: [call()])


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
    starts, lengths = starts_of(0, 2000, 4000), starts_of(500, 2000)
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
    starts, lengths = starts_of(0, 20, 40), starts_of(5, 20)
    out = library.fmha_fwd(q, q, q, seqstart_q=starts, seqstart_k=starts, seqlen_q=lengths, seqlen_k=lengths)
    if out.device != q.device:
        return f"out is on {out.device}"
    return None if bool((out[5:20] == 0).all()) and bool((out[20:] != 0).any()) else "padding is not zero"


def host_and_device(library: tk.Library) -> str | None:
    q, k, v = (x.cpu() for x in tensors())
    on_host = library.fmha_fwd(q, k, v)
    on_device = library.fmha_fwd(q.cuda(), k.cuda(), v.cuda())
    apart = float((on_host.float() - on_device.cpu().float()).abs().max())
    return f"CPU and GPU differ by {apart}" if apart > 0.02 else None


def long_rows(library: tk.Library) -> str | None:
    """Arrays of more than 2^32 bytes: the last sequence is computed as alone."""
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        return None
    q = torch.randn(20, 8192, 128, 128, device="cuda", dtype=torch.bfloat16)
    out = library.fmha_fwd(q, q[..., :1, :].expand(-1, -1, 1, -1), q[..., :1, :].expand(-1, -1, 1, -1))
    alone = q[-1:].clone()
    return equal(out[-1:], library.fmha_fwd(alone, alone[:, :, :1], alone[:, :, :1]))


def saved(library: tk.Library, *shape: int, **more: Any) -> dict[str, torch.Tensor]:
    """Arguments of a backward, from a forward of random tensors."""
    q, k, v = tensors(*shape)
    out, lse = library.fmha_fwd(q, k, v, return_lse=True, **more)
    return {"dout": torch.randn_like(out), "q": q, "k": k, "v": v, "out": out, "lse": lse}


def backward_graph(library: tk.Library) -> str | None:
    given = saved(library, 500, 64, 2, 4, causal=True)
    places = {f"d{name}": torch.empty_like(given[name]) for name in "qkv"}
    call = partial(library.fmha_bwd, **given, causal=True)
    change = partial(refill, given.values(), lambda: saved(library, 500, 64, 2, 4, causal=True).values())
    return replayed(partial(call, **places), [*places.values()], [change] * 3, call)


def backward_packed_graph(library: tk.Library) -> str | None:
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


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def growing_graph(library: tk.Library) -> str | None:
    """A captured step of generation, append and attention; replays read lengths and tables anew."""
    q, k, v = random(2, 1, 8, 128), random(64, 16, 2, 128), random(64, 16, 2, 128)
    knew, vnew, lengths = random(2, 1, 2, 128), random(2, 1, 2, 128), starts_of(100, 7)
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


def wrong_numbers_of_caches(library: tk.Library) -> str | None:
    """Lengths, starts and pages that mean nothing stay within the arrays; to be run under memcheck."""
    q, k, v, knew = random(8, 1, 8, 128), random(64, 16, 2, 128), random(64, 16, 2, 128), random(8, 1, 2, 128)
    packed, starts = random(300, 8, 128), starts_of(0, -7, 2**30, 5)
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
        arguments: dict[str, Any] = {"cu_seqlens_q": starts_of(0, rows), "seqlen_k": starts_of(keys), "causal": True}
        arguments |= {"max_seqlen_q": rows, "max_seqlen_k": keys}
        far = library.fmha_batch_prefill(q[:rows], k, v, block_table=pages.int()[None], **arguments)
        own = torch.arange(need, device="cuda").int()[None]
        near = library.fmha_batch_prefill(q[:rows], k[pages], v[pages], block_table=own, **arguments)
        if not torch.equal(far, near):
            return f"{rows} queries differ"
    return None


CHECKS: dict[str, dict[str, Callable[[tk.Library], str | None]]] = {
    "behaviour": {
        "a CUDA graph replays calls": graph,
        "a CUDA graph of packed calls": packed_graph,
        "wrong starts on the device": wrong_starts,
        "the framework's current stream": side_stream,
        "a stream given by its handle": own_stream_object,
        "results of a call whose stream is given": results_in_a_given_stream,
        "six threads on streams of their own": threads,
        "rows that no sequence has read as zero": untouched_rows_are_zero,
        "host and device in one library": host_and_device,
        "arrays beyond 4 GB": long_rows,
        "backward: a CUDA graph": backward_graph,
        "backward: a CUDA graph of packed calls": backward_packed_graph,
        "backward: six streams of two priorities at once": at_once,
        "backward: a workspace of the caller's": workspaces,
        "backward: a launcher that prepares in stream order": launcher,
    },
    "cache": {
        "a CUDA graph of appends and attention": growing_graph,
        "index arrays full of wrong numbers": wrong_numbers_of_caches,
        "pools beyond 2 GB": beyond_2_gb,
    },
}


def run(library: tk.Library, of: str) -> int:
    """Of CHECKS, how many are wrong."""
    return sum(report(name, lambda check=check: check(library)) for name, check in CHECKS[of].items())
