# SPDX-License-Identifier: MIT
"""mla: absorbed MLA decode over a latent cache: share of what arithmetic or memory allows, ratio to PyTorch's products.

One sequence, 576 elements a row, one pinned thread; thread CPU time, measured in turns (A, B, A) in one process;
figures are medians of ratios. peak: multiplications and additions over those of this core's peak (fma for fp32 and
fp16, the dot product of bf16 where there is one), measured before and after each call. read: time of the fastest plain
loop over the same cache, over ours. limit: the larger of the two, so 1 is all that the core allows. torch: its time
over ours, of softmax(q cache^T) cache[.., :512] in the same dtype (fp8: of a bf16 cache).

    tools/dev --with torch python tools/bench mla [--keys 8192] [--heads 16,32,128] [--queries 1] [--rounds 9]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
from typing import Any

from tilekiln._core.dtypes import NAMES

from .decode import Call, fastest_loop, normal, ratio, read, timed
from .peak import peak

ROW, VALUE = 576, 512


def torchs(dtype: str, q: Any, cache: Any) -> Call | None:
    """PyTorch's products over the same memory; None without PyTorch."""
    if not importlib.util.find_spec("torch"):
        return None
    import torch

    torch.set_num_threads(1)
    kind = getattr(torch, NAMES[dtype])
    rows, keys = (torch.from_numpy(array.view(f"i{array.itemsize}")).view(kind) for array in (q, cache))
    rows = rows.reshape(1, -1, ROW)

    def run() -> Any:
        weights = torch.softmax((rows @ keys.transpose(1, 2) * ROW**-0.5).float(), -1).to(kind)
        return weights @ keys[..., :VALUE]

    return run


def share_of_peak(call: Call, kind: str, operations: float, rounds: int) -> float:
    """Median share of the peak that was measured before and after a call."""
    shares = []
    before = peak(kind, 0.02)
    for _ in range(rounds):
        seconds = timed(call)
        after = peak(kind, 0.02)
        shares.append(operations / seconds / ((before + after) / 2))
        before = after
    return statistics.median(shares)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench mla", description=__doc__.partition("\n")[0])
    numbers = lambda text: [int(one) for one in text.split(",")]  # noqa: E731
    parser.add_argument("--keys", type=numbers, default=[8192])
    parser.add_argument("--heads", type=numbers, default=[16, 32, 128])
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["fp32", "fp16", "bf16", "fp8"])
    parser.add_argument("--library")
    arguments = parser.parse_args(argv)
    import tilekiln as tk
    from tilekiln.reference import mla

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    library = tk.load(arguments.library or "flash")
    print("dtype  heads   keys        ms   peak   read  limit   torch / ours")
    for dtype in arguments.dtypes:
        for heads in arguments.heads:
            for keys in arguments.keys:
                element = "bf16" if dtype == "fp8" else dtype
                q, plain = normal(element, 1, arguments.queries, heads, ROW), normal(element, 1, keys, ROW)
                cache = mla.packed(plain) if dtype == "fp8" else plain
                call = functools.partial(library.fmha_mla_decode, q, cache, softmax_scale=ROW**-0.5, num_threads=1)
                call()
                kind = "bf16" if element == "bf16" and peak("bf16", 0.01) > 0 else "fma"
                operations = 2.0 * arguments.queries * heads * keys * (ROW + VALUE)
                share = share_of_peak(call, kind, operations, arguments.rounds)
                loop = fastest_loop(cache)
                slower, seconds = ratio(call, functools.partial(read, loop, cache), arguments.rounds)
                other = torchs(element, q, plain)
                gain = 1 / ratio(call, other, arguments.rounds)[0] if other else float("nan")
                print(
                    f"{dtype:5} {heads:6} {keys:6} {seconds * 1e3:9.3f} {share:6.2f} {1 / slower:6.2f} "
                    f"{max(share, 1 / slower):6.2f} {gain:14.2f}",
                    flush=True,
                )
    return 0
