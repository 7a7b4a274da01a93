# SPDX-License-Identifier: MIT
"""decode: attention over KV caches: share of a plain read loop, ratios to torch SDPA, what pages, fp8 and threads do.

One sequence, head dim 128, one pinned thread; thread CPU time, measured in turns (A, B, A) in one process; figures are
medians of ratios. torch gets the same keys, (1, nhead, seqlen, hdim); without torch its column is nan.

    tools/dev --with torch python tools/bench decode [--kv 4096,16384] [--rounds 11] [cache pages fp8 chunk threads]

cache: one query. read / ours: time of the fastest of several loops (read.cpp) that only read k and v, over ours: of one
cache again and again (a small one then stays in the L3), and, as in a model where each layer has its cache, of several
in turn that the L3 cannot hold together. pages: time over a contiguous cache's in the same order of dimensions.
fp8: time of a bf16 query over an fp8 cache, over that of a bf16 cache. chunk: 512 queries on 4096 keys, time over the
plain forward's. threads: CPU time of the busier of two threads, over that of one thread alone; beside it the
same of the fastest read loop, each thread reading half: two threads share the way to memory.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import itertools
import math
import os
import pathlib
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from tilekiln._core.dtypes import NAMES, NUMPY

from .peak import compiled

HDIM = 128
HEADS = ((32, 32), (32, 8))  # queries, keys
PARTS = ("cache", "pages", "fp8", "chunk", "threads")
DTYPES = ("fp32", "bf16", "fp16")
BEYOND_L3 = 192 << 20
"""Bytes of caches taken in turn: several times the L3 of a core's neighbourhood."""

Call = Callable[[], object]


@functools.cache
def _read() -> Any:
    library = ctypes.CDLL(str(compiled(pathlib.Path(__file__).with_name("read.cpp"), "-march=native")))
    library.tilekiln_read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    library.tilekiln_read.restype = ctypes.c_uint64
    return library


def read(loop: int, *arrays: Any) -> None:
    """Read every byte of the arrays once, by one of the loops of read.cpp."""
    for array in arrays:
        _read().tilekiln_read(loop, array.ctypes.data, array.nbytes)


def fastest_loop(array: Any, rounds: int = 3) -> int:
    """The loop of read.cpp that reads an array soonest."""
    loops = range(_read().tilekiln_read_loops())
    return min(loops, key=lambda loop: min(timed(functools.partial(read, loop, array)) for _ in range(rounds)))


def read_speed(array: Any, rounds: int = 3) -> float:
    """Bytes a second at which the fastest loop reads an array."""
    loops = range(_read().tilekiln_read_loops())
    return float(
        array.nbytes / min(timed(functools.partial(read, loop, array)) for _ in range(rounds) for loop in loops)
    )


def share_of_limit(calls: list[Call], caches: list[tuple[Any, ...]], rounds: int) -> tuple[float, float]:
    """Median of time(reading a cache) / time(its call), by the fastest loop; and the median time of a call.

    Every measurement takes the cache whose turn it is, so each has been away for as long as all of them take.
    """
    turn = itertools.cycle(range(len(calls)))
    loops = range(_read().tilekiln_read_loops())
    for call in calls:
        call()
    before, shares, times, reads = (
        timed(calls[next(turn)]),
        {loop: [] for loop in loops},
        [],
        {loop: [] for loop in loops},
    )
    for _ in range(rounds):
        between = [timed(functools.partial(read, loop, *caches[next(turn)])) for loop in loops]
        after = timed(calls[next(turn)])
        for loop in loops:
            reads[loop].append(between[loop])
            shares[loop].append(between[loop] / ((before + after) / 2))
        times.append(after)
        before = after
    fastest = min(loops, key=lambda loop: statistics.median(reads[loop]))
    return statistics.median(shares[fastest]), statistics.median(times)


def timed(call: Call) -> float:
    """Thread CPU time of one call, in seconds."""
    begin = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begin) / 1e9


def ratio(ours: Call, other: Call, rounds: int) -> tuple[float, float]:
    """Median of time(ours) / time(other), in turns; and the median time of ours."""
    ours(), other()
    before, ratios, times = timed(ours), [], []
    for _ in range(rounds):
        between = timed(other)
        after = timed(ours)
        ratios.append((before + after) / 2 / between)
        times.append(after)
        before = after
    return statistics.median(ratios), statistics.median(times)


def storage(dtype: str) -> Any:
    return NUMPY[dtype]


def normal(dtype: str, *shape: int) -> Any:
    import numpy as np

    return aligned(np.random.default_rng(0).standard_normal(shape, np.float32).astype(storage(dtype)))


def aligned(array: Any) -> Any:
    """A copy that begins at a cache line, as those of tk.KVCache and of torch do."""
    from tilekiln._core.memory import aligned_zeros

    copy = aligned_zeros(array.shape, array.dtype)
    copy[...] = array
    return copy


def torchs(dtype: str, q: Any, k: Any, v: Any) -> Call | None:
    """torch SDPA on the same memory, heads first; None without torch."""
    if not importlib.util.find_spec("torch"):
        return None
    import torch

    torch.set_num_threads(1)
    kind = getattr(torch, NAMES[dtype])
    tensors = [torch.from_numpy(array.view(f"i{array.itemsize}")).view(kind) for array in (q, k, v)]
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(*tensors, enable_gqa=q.shape[1] != k.shape[1])


def cache(library: Any, arguments: argparse.Namespace) -> None:
    """One query over a contiguous cache, against reading it and against torch."""
    print("one query             heads     kv layout       ms   GB/s   read / ours   in turn   torch / ours")
    for dtype in DTYPES:
        for nhead_q, nhead_k in HEADS:
            for kv in arguments.kv:
                for layout in ("bhsd", "bshd"):
                    q = normal(dtype, 1, nhead_q, 1, HDIM)
                    k, v = (normal(dtype, 1, nhead_k, kv, HDIM) for _ in "kv")
                    other = torchs(dtype, q, k, v) if layout == "bhsd" else None
                    if layout == "bshd":
                        q, k, v = (array.reshape(1, -1, array.shape[1], HDIM) for array in (q, k, v))
                    several = math.ceil(BEYOND_L3 / (k.nbytes + v.nbytes))
                    caches = [(k, v), *((aligned(k), aligned(v)) for _ in range(several - 1))]
                    calls = [
                        functools.partial(
                            library.fmha_fwd_splitkv, q, *cache, layout=layout, num_splits=1, num_threads=1
                        )
                        for cache in caches
                    ]
                    share, seconds = share_of_limit(calls[:1], caches[:1], arguments.rounds)
                    in_turn, _ = share_of_limit(calls, caches, arguments.rounds)
                    gain = 1 / ratio(calls[0], other, arguments.rounds)[0] if other else math.nan
                    speed = (k.nbytes + v.nbytes) / seconds / 1e9
                    print(
                        f"{dtype:18} {f'{nhead_q}/{nhead_k}':>8} {kv:6} {layout:>6} {seconds * 1e3:8.3f} {speed:6.1f}"
                        f" {share:13.3f} {in_turn:9.3f} {gain:14.2f}",
                        flush=True,
                    )


def paged(k: Any, v: Any, page_size: int) -> dict[str, Any]:
    """Scattered pages of the same keys, (1, kv, nhead, hdim)."""
    import numpy as np
    from tilekiln._core.memory import aligned_zeros

    kv = k.shape[1]
    order = np.random.default_rng(1).permutation(kv // page_size).astype(np.int32)
    pools = []
    for array in (k, v):
        pool = aligned_zeros((len(order), page_size, *array.shape[2:]), array.dtype)
        pool[order] = array.reshape(pool.shape)
        pools.append(pool)
    return {"k": pools[0], "v": pools[1], "block_table": order[None], "seqlen_k": np.array([kv], np.int32)}


def pages(library: Any, arguments: argparse.Namespace) -> None:
    """One query over pages, against a contiguous cache in the same order of dimensions."""
    print("one query over pages  heads     kv   page   paged / contiguous")
    for dtype in DTYPES:
        for nhead_q, nhead_k in HEADS:
            for kv in arguments.kv:
                q = normal(dtype, 1, 1, nhead_q, HDIM)
                k, v = (normal(dtype, 1, kv, nhead_k, HDIM) for _ in "kv")
                plain = functools.partial(library.fmha_fwd_splitkv, q, k, v, num_splits=1, num_threads=1)
                for page_size in (16, 256):
                    where = paged(k, v, page_size)
                    run = functools.partial(library.fmha_fwd_splitkv, q, **where, num_splits=1, num_threads=1)
                    share, _ = ratio(run, plain, arguments.rounds)
                    print(f"{dtype:18} {f'{nhead_q}/{nhead_k}':>8} {kv:6} {page_size:6} {share:20.3f}", flush=True)


def fp8(library: Any, arguments: argparse.Namespace) -> None:
    """One bf16 query over pages of fp8, against pages of bf16."""
    import numpy as np

    print("bf16 query            heads     kv   page   fp8 cache / bf16 cache")
    one = np.ones(1, np.float32)
    for nhead_q, nhead_k in HEADS:
        for kv in arguments.kv:
            q, cu = normal("bf16", 1, nhead_q, HDIM), np.array([0, 1], np.int32)
            for page_size in (16, 256):
                calls = []
                for dtype in ("fp8", "bf16"):
                    where = paged(*(normal(dtype, 1, kv, nhead_k, HDIM) for _ in "kv"), page_size)
                    if dtype == "fp8":
                        where |= {"k_descale": one, "v_descale": one}
                    calls.append(
                        functools.partial(library.fmha_batch_prefill, q, **where, cu_seqlens_q=cu, num_threads=1)
                    )
                share, _ = ratio(*calls, arguments.rounds)
                print(f"{'':18} {f'{nhead_q}/{nhead_k}':>8} {kv:6} {page_size:6} {share:24.3f}", flush=True)


def chunk(library: Any, arguments: argparse.Namespace) -> None:
    """512 queries on 4096 keys."""
    print("512 on 4096, causal   heads   cache   ours / plain forward")
    for dtype in DTYPES:
        for nhead_q, nhead_k in HEADS:
            q = normal(dtype, 1, 512, nhead_q, HDIM)
            k, v = (normal(dtype, 1, 4096, nhead_k, HDIM) for _ in "kv")
            plain = functools.partial(library.fmha_fwd, q, k, v, causal=True, num_threads=1)
            calls = {
                "contiguous": functools.partial(library.fmha_fwd_splitkv, q, k, v, num_splits=1),
                "page 16": functools.partial(library.fmha_fwd_pagedkv, q, **paged(k, v, 16)),
                "page 256": functools.partial(library.fmha_fwd_pagedkv, q, **paged(k, v, 256)),
            }
            for name, call in calls.items():
                run = functools.partial(call, causal=True, num_threads=1)
                share, _ = ratio(run, plain, arguments.rounds)
                print(f"{dtype:18} {f'{nhead_q}/{nhead_k}':>8} {name:>11} {share:16.3f}", flush=True)


def used(call: Call) -> tuple[float, float]:
    """CPU time of this thread and of all others."""
    own, process = time.thread_time_ns(), time.process_time_ns()
    call()
    own = time.thread_time_ns() - own
    return own / 1e9, (time.process_time_ns() - process - own) / 1e9


def read_by_two(loop: int, cores: list[int], *arrays: Any) -> float:
    """CPU time of the busier of two threads, on a core each, that read half of each array at once."""
    start, times = threading.Barrier(2), []

    def half(which: int) -> None:
        os.sched_setaffinity(0, {cores[which]})
        parts = [array.reshape(-1)[which * array.size // 2 :][: array.size // 2] for array in arrays]
        start.wait()
        # The first time one of them may still be alone.
        times.append([timed(functools.partial(read, loop, *parts)) for _ in range(4)][2])

    helpers = [threading.Thread(target=half, args=(which,)) for which in range(2)]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    return max(times)


def limit_of_two(cores: list[int], arrays: tuple[Any, ...], rounds: int) -> float:
    """Median of read_by_two over the time of one thread that reads all, by the loop that is fastest alone."""
    loops = range(_read().tilekiln_read_loops())
    alone = {loop: [timed(functools.partial(read, loop, *arrays)) for _ in range(3)] for loop in loops}
    fastest = min(loops, key=lambda loop: statistics.median(alone[loop]))
    return statistics.median(
        read_by_two(fastest, cores, *arrays) / timed(functools.partial(read, fastest, *arrays)) for _ in range(rounds)
    )


def threads(library: Any, arguments: argparse.Namespace) -> None:
    """One sequence on two threads."""
    os.sched_setaffinity(0, arguments.cores)
    print("two threads           heads     kv   splits   busier of two / one thread   reading alone")
    for dtype in DTYPES:
        for nhead_q, nhead_k in HEADS:
            for kv in arguments.kv:
                q = normal(dtype, 1, 1, nhead_q, HDIM)
                k, v = (normal(dtype, 1, kv, nhead_k, HDIM) for _ in "kv")
                run = functools.partial(library.fmha_fwd_splitkv, q, k, v)
                splits = library.fmha_fwd_splitkv_num_splits(q, k, v, num_threads=2)
                run(num_threads=2)
                ratios = []
                for _ in range(arguments.rounds):
                    one = sum(used(functools.partial(run, num_threads=1)))
                    ratios.append(max(used(functools.partial(run, num_threads=2))) / one)
                print(
                    f"{dtype:18} {f'{nhead_q}/{nhead_k}':>8} {kv:6} {splits:8} {statistics.median(ratios):28.3f}"
                    f" {limit_of_two(sorted(arguments.cores), (k, v), arguments.rounds):15.3f}",
                    flush=True,
                )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench decode", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all when none is given")
    parser.add_argument("--kv", default="4096,16384", help="keys, separated by commas")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args(argv)
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; there are: {', '.join(PARTS)}")
    arguments.kv = [int(word) for word in arguments.kv.split(",")]
    import tilekiln as tk

    arguments.cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(arguments.cores)})
    library = tk.load("flash")
    parts = {"cache": cache, "pages": pages, "fp8": fp8, "chunk": chunk, "threads": threads}
    for part in arguments.parts or PARTS:
        parts[part](library, arguments)
        print()
    os.sched_setaffinity(0, arguments.cores)
    return 0
