# SPDX-License-Identifier: MIT
"""launch: what the seam under the backends costs a launch on the CPU, in ns of thread CPU time.

Units that do next to nothing, called directly and through the backend (kernels/backends/cpu/backend.cpp), in turn; a
figure is the median of 101 rounds of 20,000 calls. Reach: at most 10 ns more. Pin it:
taskset -c 1 tools/dev python tools/bench launch
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="tools/bench launch", description=__doc__).parse_args(argv)
    from codegen.schema.tree import tree

    program = f"build/{tree().native().name.removeprefix('cpu-')}-release/bin/flash/bench_launch"
    command = [sys.executable, "-m", "SCons", "-Q", "receipt=flash", "target=native", program]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    said = subprocess.run([program], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    print(f"{'units':>5} {'direct':>8} {'seam':>8} {'more':>8}")
    for line in said.splitlines():
        units, direct, seam = line.split("|")
        print(f"{units:>5} {direct:>8} {seam:>8} {float(seam) - float(direct):>8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
