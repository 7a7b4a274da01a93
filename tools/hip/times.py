# SPDX-License-Identifier: MIT
"""The time of whole calls on a GPU, by events of its runtime. Over the executor it is that of the executor."""

from __future__ import annotations

import ctypes
from statistics import median
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference.problems import STORAGE

from tools.hip.device import ROCM, DeviceArray, ask

HEADS, BATCH, ROUNDS, CALLS = 16, 2, 5, 10


def measure(library: tk.Library, dtype: str, hdim_q: int, hdim_v: int, seqlen: int, causal: bool) -> dict[str, Any]:
    """Milliseconds of a call, the median of rounds of calls one after another, and TFLOP/s of its two products."""
    random = np.random.default_rng(0)

    def made(hdim: int) -> DeviceArray:
        values = random.standard_normal((BATCH, seqlen, HEADS, hdim), np.float32)
        return DeviceArray(values.astype(STORAGE[dtype][0]))

    q, k, v, out = made(hdim_q), made(hdim_q), made(hdim_v), made(hdim_v)
    stream = ctypes.c_void_p()
    ask("hipStreamCreate", ctypes.byref(stream))
    own = tk.Stream(device=(ROCM, 0), native=stream.value)
    first, last = ctypes.c_void_p(), ctypes.c_void_p()
    for event in (first, last):
        ask("hipEventCreate", ctypes.byref(event))
    taken = []
    for _ in range(1 + ROUNDS):  # one to warm up
        ask("hipEventRecord", first, stream)
        for _ in range(CALLS):
            library.fmha_fwd(q, k, v, out=out, causal=causal, stream=own)
        ask("hipEventRecord", last, stream)
        ask("hipEventSynchronize", last)
        milliseconds = ctypes.c_float()
        ask("hipEventElapsedTime", ctypes.byref(milliseconds), first, last)
        taken.append(milliseconds.value / CALLS)
    time = median(taken[1:])
    flops = 2 * BATCH * HEADS * seqlen * seqlen * (hdim_q + hdim_v) / (2 if causal else 1)
    return {
        "dtype": dtype,
        "hdim": f"{hdim_q}x{hdim_v}",
        "seqlen": seqlen,
        "causal": causal,
        "ms": round(time, 4),
        "TFLOP/s": round(flops / time / 1e9, 1),
    }
