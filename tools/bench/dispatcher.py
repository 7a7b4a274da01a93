"""dispatcher: what a choice of the C++ dispatcher among flash's kernels costs, and registries as JSON.

Thread time, the least of rounds. reach: the bar, for 10,000 kernels.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="tools/bench dispatcher", description=__doc__).parse_args(argv)
    from codegen.schema.targets import native_target

    build = f"build/{native_target().removeprefix('cpu-')}-release"
    program, library = f"{build}/bin/bench_dispatcher", f"{build}/lib/libtilekiln_flash.so"
    command = [sys.executable, "-m", "SCons", "-Q", "receipt=flash", "target=native", program, library]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([program, library], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{'receipt flash':<36} {'cost':>12}  reach")
    for line in done.stdout.splitlines():
        what, cost, reach = line.split("|")
        print(f"{what:<36} {cost:>12}  {reach}".rstrip())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
