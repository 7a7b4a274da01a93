# SPDX-License-Identifier: MIT
"""call: what one call costs past the kernel, in ns of thread CPU time: lib.fmha_fwd, tk.attention, tilekiln.torch.

The rows of tilekiln.torch (with --with torch) are past lib.fmha_fwd of the same layout: sdpa, the call that
compatibility modules stand on, the custom operator, and what autograd adds, forward alone and with backward, beside
torch's own function; then what functions of other packages add to the native call of the same.

Every case runs an empty problem (seqlen_q = 0: all checks, dispatch, no kernel), so that the figure is the overhead
itself, and a tiny one, (1, 1, 1, 16). Rounds of all cases are interleaved; a figure is the median over rounds. Pin it:
taskset -c 1 tools/dev --with torch python tools/bench call
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

CALLS, ROUNDS = 2000, 41


def _shapes(name: str) -> tuple[int, ...]:
    return (1, 0, 1, 16) if name == "empty" else (1, 1, 1, 16)


def _cases(library: Any) -> dict[str, Callable[[int], None]]:
    """Each case as a loop of n calls, so that the clock is read twice only."""
    import numpy as np
    import tilekiln as tk

    def aligned(*shape: int) -> Any:
        """To 64 bytes: where arrays happen to lie moves a tiny call by several percent."""
        room = np.ones(max(1, math.prod(shape)) + 16, np.float32)
        begin = -room.ctypes.data % 64 // 4
        return room[begin : begin + math.prod(shape)].reshape(shape)

    frameworks: dict[str, Callable[..., Any]] = {"NumPy": aligned}
    if importlib.util.find_spec("torch"):
        import torch

        frameworks["torch"] = torch.ones
    cases: dict[str, Callable[[int], None]] = {}
    for framework, ones in frameworks.items():
        for size in ("empty", "tiny"):
            q, k, v, out = (ones(*_shapes(size)), ones(1, 1, 1, 16), ones(1, 1, 1, 16), ones(*_shapes(size)))

            def given(n: int, lib: Any = library, q: Any = q, k: Any = k, v: Any = v, out: Any = out) -> None:
                for _ in range(n):
                    lib.fmha_fwd(q, k, v, out=out)

            def causal(n: int, lib: Any = library, q: Any = q, k: Any = k, v: Any = v, out: Any = out) -> None:
                for _ in range(n):
                    lib.fmha_fwd(q, k, v, out=out, causal=True, softmax_scale=0.25)

            def allocates(n: int, lib: Any = library, q: Any = q, k: Any = k, v: Any = v) -> None:
                for _ in range(n):
                    lib.fmha_fwd(q, k, v)

            def attention(n: int, q: Any = q, k: Any = k, v: Any = v, out: Any = out) -> None:
                for _ in range(n):
                    tk.attention(q, k, v, out=out)

            def finds(n: int, find: Any = library.fmha_fwd_find, q: Any = q, k: Any = k, v: Any = v) -> None:
                for _ in range(n):
                    find(q, k, v)

            cases[f"{framework} lib.fmha_fwd out= {size}"] = given
            if size == "empty":
                cases[f"{framework} lib.fmha_fwd out= causal= softmax_scale= {size}"] = causal
                cases[f"{framework} lib.fmha_fwd new out {size}"] = allocates
                cases[f"{framework} lib.fmha_fwd_find {size}"] = finds
                cases[f"{framework} lib.fmha_fwd_splitkv_find {size}"] = functools.partial(
                    finds, find=library.fmha_fwd_splitkv_find
                )
            cases[f"{framework} tk.attention out= {size}"] = attention
    return cases


def _torch_cases(library: Any) -> dict[str, Callable[[int], None]]:
    """tilekiln.torch, heads before tokens; empty problems, so that a figure is what the call costs."""
    import tilekiln.torch
    import torch

    q, k, v = torch.ones(1, 1, 0, 16), torch.ones(1, 1, 1, 16), torch.ones(1, 1, 1, 16)
    tokens_inside = torch.ones(1, 0, 2, 16).transpose(1, 2), *(torch.ones(1, 1, 2, 16).transpose(1, 2) for _ in "kv")
    leaves = [x.clone().requires_grad_() for x in (torch.ones(1, 1, 1, 16), k, v)]
    dout = torch.ones(1, 1, 1, 16)
    own, sdpa, calls = torch.nn.functional.scaled_dot_product_attention, tilekiln.torch.sdpa, tilekiln.torch.calls
    operator = torch.ops.tilekiln.fmha_fwd.default
    bodies: dict[str, Callable[[], Any]] = {
        "lib.fmha_fwd layout=bhsd empty": lambda: library.fmha_fwd(q, k, v, layout="bhsd"),
        "tilekiln.torch.sdpa empty": lambda: sdpa(q, k, v),
        "tilekiln.torch.sdpa is_causal=True scale= empty": lambda: sdpa(q, k, v, is_causal=True, scale=0.25),
        "tilekiln.torch.sdpa heads inside tokens empty": lambda: sdpa(*tokens_inside),
        "tilekiln.torch.calls.forward empty": lambda: calls.forward(q, k, v, layout="bhsd", return_lse=False),
        "torch.ops.tilekiln.fmha_fwd empty": lambda: operator(q, k, v, layout="bhsd", return_lse=False),
        "tilekiln.torch.sdpa tiny, with grad": lambda: sdpa(*leaves),
        "torch's own tiny, with grad": lambda: own(*leaves),
        "tilekiln.torch.sdpa tiny, forward and backward": lambda: torch.autograd.grad(sdpa(*leaves), leaves, dout),
        "torch's own tiny, forward and backward": lambda: torch.autograd.grad(own(*leaves), leaves, dout),
    }

    return {name: functools.partial(_loop, body) for name, body in bodies.items()}


def _compat_cases() -> dict[str, Callable[[int], None]]:
    """Functions of other packages beside the native call of the same, a tiny one: they may add 1 us."""
    import tilekiln as tk
    import torch
    from tilekiln.compat import aiter as aiter_module
    from tilekiln.compat import flash_attn
    from tilekiln.compat.flash_attn.cute import interface as flash_attn_4
    from tilekiln.compat.flash_attn_3 import flash_attn_interface as flash_attn_3

    q, k, v = (torch.randn(1, 4, 2, 64) for _ in "qkv")
    one, cache, new = (
        torch.randn(1, 1, 2, 64),
        torch.randn(2, 1, 16, 2, 64).unbind(),
        torch.randn(2, 1, 1, 2, 64).unbind(),
    )
    rows, starts, length = (
        (q[0], k[0], v[0]),
        torch.tensor([0, 4], dtype=torch.int32),
        torch.tensor([8], dtype=torch.int32),
    )
    where = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    most = {**where, "max_seqlen_q": 4, "max_seqlen_k": 4}
    modules = {
        "flash_attn": flash_attn,
        "flash_attn 3": flash_attn_3,
        "flash_attn 4": flash_attn_4,
        "aiter": aiter_module,
    }
    bodies: dict[str, Callable[[], Any]] = {"tk.attention": lambda: tk.attention(q, k, v)}
    bodies |= {f"{of}, attention": functools.partial(m.flash_attn_func, q, k, v) for of, m in modules.items()}
    bodies["tk.attention, packed sequences"] = lambda: tk.attention(*rows, **where)
    for of, module in modules.items():
        bodies[f"{of}, packed sequences"] = functools.partial(module.flash_attn_varlen_func, *rows, **most)
    bodies["tk.fmha_fwd_splitkv"] = lambda: tk.fmha_fwd_splitkv(one, *cache, seqlen_k=length)
    bodies["tk.fmha_fwd_appendkv"] = lambda: tk.fmha_fwd_appendkv(one, *cache, *new, seqlen_k=length, causal=True)
    for of in ("flash_attn", "flash_attn 3"):
        call = functools.partial(modules[of].flash_attn_with_kvcache, one, *cache, cache_seqlens=length)
        bodies[f"{of}, over a cache"] = call
        bodies[f"{of}, appended to a cache"] = functools.partial(call, *new, causal=True)
    return {name: functools.partial(_loop, body) for name, body in bodies.items()}


def _loop(body: Callable[[], Any], n: int) -> None:
    for _ in range(n):
        body()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench call", description=__doc__)
    parser.add_argument("receipt", nargs="?", default="flash")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(argv)
    import tilekiln as tk

    library = tk.load(arguments.receipt)
    cases = {"an empty Python loop": lambda n: [None for _ in range(n)], **_cases(library)}
    if importlib.util.find_spec("torch"):
        cases |= _torch_cases(library) | _compat_cases()
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(arguments.rounds):
        for name, case in cases.items():
            begin = time.thread_time_ns()
            case(CALLS)
            samples[name].append((time.thread_time_ns() - begin) / CALLS)
    print(f"{library!r}: ns of thread CPU time per call, median of {arguments.rounds} rounds of {CALLS}")
    for name, values in samples.items():
        low, high = (statistics.quantiles(values, n=10)[i] for i in (0, -1))
        print(f"  {name:58} {statistics.median(values):8.0f}   p10 {low:.0f} p90 {high:.0f}")
    return 0
