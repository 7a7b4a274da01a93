# SPDX-License-Identifier: MIT
"""dispatch: what finding a kernel costs: a lookup among 10,000 instances, and all of a call but its work.

Builds a receipt for all targets (ck_default: 15,808 instances) and a program inside it. Figures are thread CPU time,
the median of 101 runs over problems in random order; the last column is figure / reach: at most 1 is reached. Pin it:
taskset -c 1 tools/dev python tools/bench dispatch
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench dispatch", description=__doc__)
    parser.add_argument("--receipt", default="ck_default")
    receipt = parser.parse_args(argv).receipt
    program = f"build/all-release/bin/{receipt}/bench_dispatch"
    subprocess.run(
        [sys.executable, "-m", "SCons", "-Q", f"receipt={receipt}", "target=all", program],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lines = subprocess.run([program], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    print(f"{'ns of thread CPU time':<62} {'figure':>8} {'reach':>8} {'ratio':>8}")
    for line in lines:
        what, figure, reach = line.split("|")
        if float(figure) < 0:
            raise SystemExit(f"{what}: the call failed")
        print(f"{what:<62} {float(figure):8.1f} {float(reach):8.0f} {float(figure) / float(reach):8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
