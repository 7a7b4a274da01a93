# SPDX-License-Identifier: MIT
"""scale: plans of 1,000 to 50,000 instances with a fake compiler: CPU time of listing, generating and no-op builds.

A copy of the tree gets as many head dims as it takes; every one brings 256 instances and one unit. The compiler, ld
and objcopy are a program that writes a few bytes, so only the generator and SCons are measured. CPU seconds, user +
system of the whole process tree; the last column is microseconds for each instance: a level curve is a linear cost.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from .cost import Bench, copy_tree

PER_HEAD_DIM = 256  # instances of fmha_fwd in bf16 that one pair of head dims brings
FAKE = r"""
#include <stdio.h>
#include <string.h>
int main(int count, char** words) {
  const char* out = 0;
  for (int i = 1; i < count; ++i) {
    if (!strcmp(words[i], "--version")) return puts("g++ (fake) 12.2.0"), 0;
    if (!strcmp(words[i], "-o") && i + 1 < count) out = words[i + 1];
  }
  if (!out) out = words[count - 1]; /* objcopy */
  FILE* file = fopen(out, "w");
  if (!file) return 1;
  fputs(words[count - 1], file);
  return fclose(file) != 0;
}
"""
RECEIPT = """receipt: scale
number: 9999
about: A plan of any size, to measure the line with.
families:
  fmha_fwd:
    keep: dtype=bf16
"""


def widen(tree: pathlib.Path, count: int) -> int:
    """Gives the tree a receipt `scale` of about `count` instances a target; how many it is."""
    dims = max(1, round(count / PER_HEAD_DIM))
    family = tree / "kernels/attention/fmha_fwd/family.yaml"
    lines = family.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith("      bf16: ["))
    lines[at] = f"      bf16: [{', '.join(f'{1 + d}x{1 + d}' for d in range(dims))}]\n"
    family.write_text("".join(lines))
    # Only this receipt: the others name head dims that are gone.
    for path in (tree / "receipts").glob("*.yaml"):
        path.unlink()
    (tree / "receipts/scale.yaml").write_text(RECEIPT)
    return dims * PER_HEAD_DIM


def fake_tools(directory: pathlib.Path) -> dict[str, str]:
    """Variables under which g++, ld and objcopy are the fake."""
    directory.mkdir()
    source = directory / "fake.c"
    source.write_text(FAKE)
    subprocess.run(["cc", "-O1", "-o", str(directory / "g++"), str(source)], check=True)
    for name in ("ld", "objcopy"):
        (directory / name).symlink_to("g++")
    return {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench scale", description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[1_000, 10_000, 50_000], help="instances (%(default)s)")
    options = parser.parse_args(argv)
    steps = ("list", "generate", "again", "cold build", "no-op build")
    print(f"{'instances':>10} {'units':>6} " + " ".join(f"{step + ', s':>15}{'us each':>9}" for step in steps))
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update(fake_tools(pathlib.Path(directory) / "bin"))
        for count in options.counts:
            tree = copy_tree(pathlib.Path(directory) / f"tree{count}")
            made = widen(tree, count)
            found = measure(Bench(tree), made)
            units = len(list((tree / "build").glob("*/gen/rows/**/*.cpp")))
            cells = " ".join(f"{seconds:15.3f}{1e6 * seconds / made:9.1f}" for seconds in found)
            print(f"{made:10,} {units:6,} {cells}", flush=True)
    return 0


def measure(bench: Bench, count: int) -> tuple[float, float, float, float, float]:
    listing = bench.listing("scale")
    if bench.count("scale") != count:
        raise SystemExit(f"receipt scale lists {bench.count('scale'):,} instances, and {count:,} were asked for")
    generate = [sys.executable, "-c", GENERATE]
    return (
        bench.least(listing),
        bench.cpu(generate)[0],
        bench.least(generate),
        bench.cold("receipt=scale"),
        bench.no_op("receipt=scale"),
    )


GENERATE = """
from codegen.emit.inputs import prepare
info = {"version": "0", "mode": "release", "cxx": "g++", "cxx_version": "12", "flags": ""}
prepare(["scale"], ["native"], "", "generated", info)
"""
