# SPDX-License-Identifier: MIT
"""threads: what a second thread costs and brings, in processor time, on (batch, seqlen, nhead, hdim) shapes.

cost: processor time of the process on two threads over that on one (reach: at most 1.03). gain: that of one thread over
the busiest of the two (reach: at least 1.9), which is the speed-up when nothing else runs. Medians of 9 rounds in which
both take turns. Other work on the machine lowers the gain: units are claimed as threads come free, so a thread that is
kept off its core does less.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="tools/bench threads", description=__doc__).parse_args(argv)
    from codegen.schema.tree import tree

    program = f"build/{tree().native().name.removeprefix('cpu-')}-release/bin/flash/bench_threads"
    command = [sys.executable, "-m", "SCons", "-Q", "receipt=flash", "target=native", program]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen([program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    print(f"{'two threads':<40} {'cost':>8} {'gain':>8}")
    for line in process.stdout:
        shape, cost, gain = line.strip().split("|")
        print(f"{shape:<40} {cost:>8} {gain:>8}", flush=True)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
