# SPDX-License-Identifier: MIT
"""dispatcher: what a choice among flash's kernels costs in C++ and in Python, and registries as JSON.

Thread time, the least of rounds. reach: the bar, for 10,000 kernels.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="tools/bench dispatcher", description=__doc__).parse_args(argv)
    from codegen.schema.tree import tree

    build = f"build/{tree().native().name.removeprefix('cpu-')}-release"
    program, library = f"{build}/bin/bench_dispatcher", f"{build}/lib/libtilekiln_flash.so"
    command = [sys.executable, "-m", "SCons", "-Q", "receipt=flash", "target=native", program, library]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([program, library], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{'receipt flash':<36} {'cost':>12}  reach")
    for line in done.stdout.splitlines():
        what, cost, reach = line.split("|")
        print(f"{what:<36} {cost:>12}  {reach}".rstrip())
    print()
    for what, cost, bar in python_costs(f"{ROOT}/{library}"):
        print(f"{what:<36} {cost:>12}  {bar}".rstrip())
    return done.returncode


def python_costs(path: str) -> list[tuple[str, str, str]]:
    """The same of tilekiln.dispatcher: what, its cost, the bar."""
    script = "import time, tilekiln; begin = time.thread_time()\nimport tilekiln.dispatcher as d\n"
    script += "d.Dispatcher, d.Registry, d.ProblemBuilder, d.Key, d.FunctionInstance\nprint(time.thread_time() - begin)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as compiled:  # as an installed package is
        environment["PYTHONPYCACHEPREFIX"] = compiled
        command = [sys.executable, "-c", script]
        imports = [
            float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout) for _ in range(6)
        ]
    sys.path.insert(0, str(ROOT / "python"))
    import tilekiln
    from tilekiln.dispatcher import Dispatcher, ProblemBuilder, Registry

    def problem(seqlen_q: int) -> object:
        builder = ProblemBuilder().api_family("fwd").data_type("bf16").dims(60, 64, 2, seqlen_q, 128).nheads(8, 8)
        return builder.mask_type("top_left").lse(True).build()

    def least(rounds: int, work: Callable[[], object]) -> float:
        times = []
        for _ in range(rounds):
            begin = time.thread_time()
            work()
            times.append(time.thread_time() - begin)
        return min(times)

    registry = Registry("bench")
    of, library = Dispatcher(registry), tilekiln.load(path)
    add = least(1, lambda: of.add_library(library))
    of.select(problem(1))
    build = least(20, lambda: [problem(i) for i in range(1000)])
    choose = least(20, lambda: [of.select(problem(i)) for i in range(1000)])
    again = least(20, lambda: [of.select(problem(64)) for i in range(1000)])
    write = least(3, registry.to_json)
    return [
        ("Python: import", f"{1e3 * min(imports):.1f} ms", "<= 10 ms"),
        ("add the kernels of a library", f"{1e3 * add:.0f} ms", ""),
        ("build a problem", f"{1e3 * build:.2f} us", ""),
        ("build a problem and choose", f"{1e3 * choose:.2f} us", "<= 5 us"),
        ("the same problem again and again", f"{1e3 * again:.2f} us", ""),
        ("export as JSON", f"{1e3 * write:.0f} ms", "<= 100 ms of 10,000"),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
