# SPDX-License-Identifier: MIT
"""Rates of the machine in this very run: arithmetic and memory, of as many threads as the calls have."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

READ = 512 << 20
"""Bytes that a read loop goes over: more than caches hold, but those of the largest servers."""


class Bounds(NamedTuple):
    """flop/s by dtype and bytes/s."""

    arithmetic: dict[str, float]
    memory: float

    def seconds(self, flops: float, size: float, dtype: str) -> tuple[float, str]:
        """The least time of a call, and what bounds it."""
        by_arithmetic, by_memory = flops / self.arithmetic[dtype], size / self.memory
        return (by_memory, "memory") if by_memory >= by_arithmetic else (by_arithmetic, "arithmetic")


def cache_bytes(device: str) -> int:
    """The largest cache that a core of the CPU, or the GPU, reads through."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = [0]
    for path in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]])
    return max(sizes) or 32 << 20


def measure(device: str, threads: int) -> Bounds:
    """Half a second on a CPU."""
    return _gpu() if device == "cuda" else _cpu(threads)


def _cpu(threads: int) -> Bounds:
    import numpy as np

    from tools.bench.decode import _read, fastest_loop, read, read_speed
    from tools.bench.peak import peak

    peak("fma", 0.001), _read()  # compiled before threads want them
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:

        def at_once(call: Callable[[int], float]) -> list[float]:
            return list(pool.map(call, range(threads)))

        held = os.environ.get("TILEKILN_ISA") == "avx2"
        fma = sum(at_once(lambda _: peak("avx2" if held else "fma", 0.05)))
        bf16 = 0.0 if held else max(sum(at_once(lambda _, kind=kind: peak(kind, 0.05))) for kind in ("bf16", "tiles"))
        data = np.ones(READ, np.uint8)
        if threads == 1:
            memory = read_speed(data)
        else:
            loop, parts = fastest_loop(data, 1), np.array_split(data, threads)
            memory = 0.0
            for _ in range(3):
                begin = time.perf_counter()
                at_once(lambda index: read(loop, parts[index]) or 0.0)
                memory = max(memory, READ / (time.perf_counter() - begin))
    # fp16 is computed in fp32; bf16 dot products are at half of fp32's rate on some cores
    return Bounds({"fp32": fma, "fp16": fma, "bf16": max(fma, bf16)}, memory)


def _gpu() -> Bounds:
    def best(call: Callable[[], object], rounds: int = 8) -> float:
        call()
        times = []
        for _ in range(rounds):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return min(times)

    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(square)
    rate = 2 * 8192**3 / best(lambda: torch.mm(square, square, out=out))
    data = torch.ones(1 << 30, device="cuda", dtype=torch.uint8)
    to = torch.empty_like(data)
    return Bounds(dict.fromkeys(("fp32", "fp16", "bf16"), rate), 2 * data.numel() / best(lambda: to.copy_(data)))
