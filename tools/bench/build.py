# SPDX-License-Identifier: MIT
"""build: what listing, generating and building cost, in CPU seconds of the whole process tree, against the reach.

Everything happens in a copy of the tree in a temporary directory, so that cold is cold. CPU time is user + system of
all processes (wait4), which other work on the machine disturbs little; short steps are the least of several runs. The
last column is figure / reach: at most 1 is reached.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile

from . import stock
from .cost import Bench, copy_tree


def report(what: str, figure: float, reach: float | None, unit: str = "s CPU") -> None:
    ratio = f"{reach:8g} {figure / reach:8.2f}" if reach else ""
    print(f"{what:<66} {figure:9.3f} {unit:<6}{ratio}", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench build", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one instruction set only: no target=all, no stock builds")
    parser.add_argument("--stock-only", action="store_true", help="only the comparison with stock builds")
    parser.add_argument(
        "--stock-where", default=stock.WHERE, help="the instances of flash that it builds (%(default)s)"
    )
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        if not options.stock_only:
            measure(Bench(copy_tree(pathlib.Path(directory) / "tree")), options.quick)
        if not options.quick:
            stock.compare(pathlib.Path(directory), options.stock_where)
    return 0


def measure(bench: Bench, quick: bool) -> None:
    print(f"{'':<66} {'figure':>9} {'':<6}{'reach':>8} {'ratio':>8}")
    forward = ["ck_default", "--family", "fmha_fwd", "--target", "native"]
    report(
        f"list {bench.count(*forward):,} signatures of ck_default, forward", bench.least(bench.listing(*forward)), 0.15
    )
    every = ["ck_default", "--target", "native"]
    report(
        f"list {bench.count(*every):,} signatures of ck_default, all families", bench.least(bench.listing(*every)), None
    )

    report("cold receipt=flash, this machine's instruction set", bench.cold("receipt=flash"), 20)
    report("no-op receipt=flash", bench.no_op("receipt=flash"), None)
    report("cold receipt=ck_default, this machine's instruction set", bench.cold("receipt=ck_default"), None)
    report("no-op receipt=ck_default", bench.no_op("receipt=ck_default"), 0.5)

    # A value more on one axis: bf16 gets head dims 40x40, which ck_default keeps.
    family = bench.tree / "kernels/attention/fmha_fwd/family.yaml"
    text = family.read_text()
    changed = text.replace("bf16: [32x32,", "bf16: [32x32, 40x40,")
    if changed == text:
        raise SystemExit(f"{family} has no list 'bf16: [32x32, ...' of head dims to add to")
    before = bench.generated()
    family.write_text(changed)
    seconds, said = bench.scons("receipt=ck_default")
    family.write_text(text)
    rows = [line for line in said.splitlines() if line.startswith("compile rows/")]
    kept = bench.generated()
    rewritten = len([path for path in before if "/rows/" in path and kept.get(path) != before[path]])
    report("head dims 40x40 more for bf16 in ck_default", seconds, None)
    report("  row units compiled that hold it", len([line for line in rows if "d40x40" in line]), None, "units")
    report("  row units compiled that do not", len([line for line in rows if "d40x40" not in line]), None, "units")
    report("  row units rewritten that were there before", rewritten, None, "units")

    bench.scons("receipt=ck_default")
    before = bench.generated()
    bench.scons("receipt=ck_default")
    after = bench.generated()
    report("second generation: files written", len(set(after.items()) ^ set(before.items())), None, "files")
    if quick:
        return

    small = bench.cold("receipt=fp32_min", "target=all")
    few, many = (bench.count(receipt, "--target", "all") for receipt in ("fp32_min", "ck_default"))
    report(f"cold receipt=fp32_min target=all ({few:,} instances, same engines)", small, None)
    whole = bench.cold("receipt=ck_default", "target=all")
    # The reach was set for the 15,808 instances of the forward and its engines; the backward's come on top.
    report(f"cold receipt=ck_default target=all ({many:,} instances)", whole, 60)
    report("  for each added instance", 1000 * (whole - small) / (many - few), 1, "ms CPU")
    report("no-op receipt=ck_default target=all", bench.no_op("receipt=ck_default", "target=all"), None)
