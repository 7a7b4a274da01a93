"""build: what listing, generating and building cost, in CPU seconds of the whole process tree, against the reach.

Everything happens in a copy of the tree in a temporary directory, so that cold is cold. CPU time is user + system of
all processes (wait4), which other work on the machine disturbs little; short steps are the least of several runs. The
last column is figure / reach: at most 1 is reached.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = (
    "SConstruct",
    "SConscript",
    "VERSION",
    "build_support",
    "codegen",
    "include",
    "kernels",
    "python",
    "receipts",
    "tests",
)
REPEATS = 7


class Bench:
    def __init__(self, tree: pathlib.Path) -> None:
        self.tree = tree

    def cpu(self, command: Sequence[str]) -> tuple[float, str]:
        """CPU seconds of a command and all its children, and what it printed. It must succeed."""
        path = os.pathsep.join([str(self.tree / "python"), str(self.tree)])
        variables = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
        variables.pop("SCONSFLAGS", None)
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(command, cwd=self.tree, stdout=out, stderr=out, env=variables)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            said = out.read()
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{said[-2000:]}")
        return usage.ru_utime + usage.ru_stime, said

    def scons(self, *arguments: str) -> tuple[float, str]:
        return self.cpu([sys.executable, "-m", "SCons", "-Q", *arguments])

    def listing(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "codegen", "list", *arguments]

    def count(self, *arguments: str) -> int:
        return len(self.cpu(self.listing(*arguments))[1].splitlines())

    def least(self, command: Sequence[str]) -> float:
        return min(self.cpu(command)[0] for _ in range(REPEATS))

    def cold(self, *arguments: str) -> float:
        shutil.rmtree(self.tree / "build", ignore_errors=True)
        return self.scons(*arguments)[0]

    def no_op(self, *arguments: str) -> float:
        found = []
        for _ in range(REPEATS):
            seconds, said = self.scons(*arguments)
            if "is up to date" not in said:
                raise SystemExit(f"scons {' '.join(arguments)} has nothing to do, and did:\n{said}")
            found.append(seconds)
        return min(found)

    def generated(self) -> dict[str, tuple[int, int]]:
        files = [path for path in (self.tree / "build").glob("*/gen/**/*") if path.is_file()]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def report(what: str, figure: float, reach: float | None, unit: str = "s CPU") -> None:
    ratio = f"{reach:8g} {figure / reach:8.2f}" if reach else ""
    print(f"{what:<66} {figure:9.3f} {unit:<6}{ratio}", flush=True)


def main(argv: list[str]) -> int:
    from . import stock  # it uses Bench

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


def copy_tree(to: pathlib.Path) -> pathlib.Path:
    """The sources of the build in a directory of their own, nothing built."""
    to.mkdir()
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, to / name)
    return to


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
