# SPDX-License-Identifier: MIT
"""jit: what kernels cost that are built when they are asked for, and found in the store by another process.

CPU seconds of the build and all that it starts, in a store of its own; engines and host objects are there from one
kernel before. The second process: thread time, of looking in the store and of tilekiln.jit. reach: the bar.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence

KERNELS = [
    f"fmha_fwd dtype={dtype} hdim_q={hdim} hdim_v={hdim} mode=batch mask={mask} bias={bias} lse={lse} dropout=no "
    "softcap=no skip_min_seqlen_q=no sink=no qscale=none"
    for dtype, hdim, mask, bias, lse in itertools.product(
        ("fp32", "fp16", "bf16"), (64, 128), ("none", "window"), ("none", "alibi"), ("no", "yes")
    )
]
FIND = """
import sys, time
import tilekiln as tk
from tilekiln.api import _jit_key, just_in_time, operators
store, text, taken = just_in_time.place(), sys.argv[1], []
for _ in range(5):
    start = time.thread_time()
    path = just_in_time._found(store, _jit_key.recipe(store, just_in_time._sources()), text)
    taken.append(time.thread_time() - start)
start = time.thread_time()
tk.jit(text)
print(taken[0], min(taken), time.thread_time() - start)
"""


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(argv: Sequence[str]) -> int:
    """A line for each cost."""
    argparse.ArgumentParser(prog="tools/bench jit", description=__doc__).parse_args(argv)
    import tilekiln as tk

    with tempfile.TemporaryDirectory() as store:
        os.environ["TILEKILN_JIT"] = store
        begin = _cpu()
        tk.jit("fmha_fwd dtype=fp32 hdim_q=48 hdim_v=48 mode=batch mask=none bias=none lse=no dropout=no sink=no")
        first, begin = _cpu() - begin, _cpu()
        tk.jit(KERNELS)  # type: ignore[arg-type]
        many = _cpu() - begin
        done = subprocess.run([sys.executable, "-c", FIND, KERNELS[0]], capture_output=True, text=True, check=True)
        once, least, opened = (float(word) * 1e3 for word in done.stdout.split())
    rows = [
        ("the first kernel, with what the tree lacks", f"{first:.1f} s", ""),
        (f"{len(KERNELS)} attention kernels more", f"{many:.1f} s", "< 10 s"),
        ("found by a second process", f"{once:.2f} ms", "< 5 ms"),
        ("and again there", f"{least:.2f} ms", ""),
        ("found and opened there", f"{opened:.1f} ms", ""),
    ]
    print(f"{'kernels when they are asked for':<46} {'cost':>9}  reach")
    for what, cost, reach in rows:
        print(f"{what:<46} {cost:>9}  {reach}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
