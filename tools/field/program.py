# SPDX-License-Identifier: MIT
"""The program behind tools/bench field and tools/gpu field."""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence

from . import rows
from .rows import Cell, FieldError

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/measurements/field.json"
PAGE = ROOT / "docs/measurements/field.md"
RECEIPTS = "flash,pytorch,fp32,gemm_default,gemm_linear,norm_default,moe_default,conv"
AGAIN = "TILEKILN_FIELD_THREADS"
"""Set in the process of one count of threads: how many."""
HELD = {"avx2": {"TILEKILN_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}
HELD["avx2"] |= {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
HELD["avx2"] |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}  # which do not tell instruction sets apart
"""Variables that hold Tilekiln, PyTorch with inductor and OpenVINO to an instruction set. ONNX Runtime has none."""


def arguments(argv: Sequence[str], machine: str) -> argparse.Namespace:
    prog = "tools/bench field" if machine == "cpu" else "tools/gpu field"
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Times every row of tools/field.yaml beside the best of its peers, by the call that users make. "
        "Exit status 1 where a cell is behind.",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="rows with it in name, phase, call or dtype; a+b: both [all]",
    )
    parser.add_argument(
        "--part",
        default="1/1",
        metavar="I/N",
        help="every N-th cell from the I-th on, for runs of limited time [%(default)s]",
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="a declared peer that is not installed here"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out, which takes seconds a row")
    parser.add_argument(
        "--seconds", type=float, default=0.6, help="least time of a pass, of which a cell has one or two [%(default)s]"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=0,
        metavar="MINUTES",
        help="begin no cell after so long; what is left is said [none]",
    )
    parser.add_argument(
        "--file",
        type=pathlib.Path,
        default=FILE,
        help="JSON that results are merged into [docs/measurements/field.json]",
    )
    parser.add_argument("--no-file", action="store_true", help="print alone")
    parser.add_argument("--list", action="store_true", help="print the rows, their shapes and sources; time nothing")
    parser.add_argument(
        "--page", action="store_true", help="write docs/measurements/field.md of the JSON; time nothing"
    )
    parser.add_argument("--machine", default="", help="the machine's name in the table [what it says of itself]")
    if machine == "cpu":
        parser.add_argument("--threads", default="1", help="one or more counts, as 1,all [%(default)s]")
        parser.add_argument(
            "--isa", choices=HELD, help="hold both sides to it, all but ONNX Runtime [what the machine has]"
        )
        parser.add_argument("--no-build", action="store_true", help="time the libraries that are there")
    given = parser.parse_args(argv)
    try:
        index, _, count = given.part.partition("/")
        given.index, given.count = int(index), int(count)
        if not 1 <= given.index <= given.count:
            raise ValueError
    except ValueError:
        parser.error(f"--part: was {given.part!r}, must be I/N with I from 1 to N, as 2/3")
    given.counts = [0]
    if machine == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        try:
            given.counts = [cores if word == "all" else int(word) for word in given.threads.split(",")]
            if min(given.counts) < 1:
                raise ValueError
        except ValueError:
            parser.error(f"--threads: was {given.threads!r}, must be counts from 1 on or all, as 1,all")
    return given


def main(argv: Sequence[str], machine: str) -> int:
    given = arguments(argv, machine)
    try:
        cells = rows.chosen(machine, given.only)[given.index - 1 :: given.count]
        if given.list:
            return _list(cells)
        if given.page:
            return _page()
        _check_peers(given, machine)
    except FieldError as error:
        print(f"{'tools/bench' if machine == 'cpu' else 'tools/gpu'} field: {error}", file=sys.stderr)
        return 2
    if machine == "gpu" or AGAIN in os.environ:
        return _run(given, machine, cells, int(os.environ.get(AGAIN, "0")))
    os.environ |= HELD.get(given.isa, {})
    if not given.no_build:
        target = f"target={f'cpu-{given.isa}' if given.isa else 'native'}"
        command = [sys.executable, "-m", "SCons", "-Q", f"receipt={RECEIPTS}", target, "default", "torch"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    code = 0
    for count in dict.fromkeys(given.counts):  # a process each: libraries and peers read their threads once
        words = [sys.executable, str(ROOT / "tools/bench"), "field", *argv]
        threads = dict.fromkeys(("TILEKILN_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", AGAIN), str(count))
        code = max(code, subprocess.run(words, env=os.environ | threads, check=False).returncode)
    return code


def _check_peers(given: argparse.Namespace, machine: str) -> None:
    from . import peers

    if unknown := [name for name in given.without if name not in peers.PACKAGES[machine] or name == "torch"]:
        names = ", ".join(name for name in peers.PACKAGES[machine] if name != "torch") or "none"
        raise FieldError(f"--without: was {unknown[0]!r}, must be one of {names}")
    if missing := peers.missing(machine, given.without):
        raise FieldError(
            f"not installed: {', '.join(missing)}; tools/dev --with torch --with peers has them, --without "
            f"{missing[0]} leaves it out"
        )


def _list(cells: list[Cell]) -> int:
    for cell in cells:
        sizes = " ".join(
            f"{name}={value}" for name, value in cell.sizes.items() if name != "source" and value is not None
        )
        print(f"{cell.key:38} {cell.phase:8} {cell.call:13} {sizes}\n    {cell.source}")
    return 0


def _page() -> int:
    from . import results

    if not FILE.is_file():
        raise FieldError(f"there is no {FILE.relative_to(ROOT)}: run a table first")
    known = {cell.key: cell for machine in rows.MACHINES for cell in rows.cells(machine)}
    PAGE.write_text(results.heat_map(FILE, known), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def _machine(machine: str) -> str:
    import torch

    if machine == "gpu":
        return torch.cuda.get_device_name()
    from tilekiln._core.native import processor

    return processor("/proc/cpuinfo")


def _run(given: argparse.Namespace, machine: str, cells: list[Cell], threads: int) -> int:
    import tilekiln as tk
    import torch

    from . import bounds, measure, peers, results

    device = "cuda" if machine == "gpu" else "cpu"
    warnings.simplefilter("ignore")  # PyTorch says of each backend why it does not run; the file of results has it
    if machine == "cpu":
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        measure.pin(threads)
    torch._dynamo.config.recompile_limit = 512
    rates = bounds.measure(device, threads)
    isa = sorted({library.isa for library in tk.libraries() if library.isa})
    name = given.machine or _machine(machine) + (f", {'/'.join(isa)}" if machine == "cpu" and isa else "")
    at = results.commit()
    shown = ["bf16"] if machine == "gpu" else list(rates.arithmetic)
    speeds = ", ".join(f"{dtype} {rates.arithmetic[dtype] / 1e9:,.0f} GF/s" for dtype in shown)
    speeds += f"; memory {rates.memory / 1e9:,.1f} GB/s"
    about = f"Tilekiln {tk.__version__} ({at}), {peers.versions(machine, given.without)}"
    about += ", without torch.compile" if given.no_compile else ""
    if machine == "cpu" and given.isa:
        about += f", held to {given.isa.upper()}" + ("" if "onnxruntime" in given.without else " but for onnxruntime")
    print(f"{name}; {f'{threads} threads; ' if machine == 'cpu' else ''}{about}\n{speeds}\n")
    print(f"{'row | dtype':38} {'ours':>9} {'best peer':20} {'its time':>9} {'its / ours':11} of the bound", flush=True)
    found: list[tuple[Cell, measure.Figures]] = []
    left: list[Cell] = []
    begin, code = time.monotonic(), 0
    try:
        for index, cell in enumerate(cells):
            if given.limit and time.monotonic() - begin > 60 * given.limit:
                left = cells[index:]
                break
            if sys.stderr.isatty():
                print(f"\r[{index + 1}/{len(cells)}] {cell.key:50}", end="", file=sys.stderr, flush=True)
            with torch.set_grad_enabled(cell.phase == "train"):
                figures = measure.cell(cell, device, threads, rates, given.seconds, given.without, not given.no_compile)
            found.append((cell, figures))
            if not given.no_file:  # at once: what ends the program early keeps what was timed
                results.merge(given.file, name, f"{about}; {speeds}", threads, {cell.key: figures}, at)
            if sys.stderr.isatty():
                print("\r" + " " * 70 + "\r", end="", file=sys.stderr, flush=True)
            print(results.line(cell, figures), flush=True)
            if machine == "gpu":
                torch.cuda.empty_cache()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        code = 130
    return code or _sum_up(found, left)


def _sum_up(found: list, left: list[Cell]) -> int:  # type: ignore[type-arg]
    from . import results

    if found:
        print(f"\n{results.means(found)}")
    behind = [(cell, figures) for cell, figures in found if figures.failed]
    for cell, figures in behind:
        why = f"refused: {figures.refused}" if figures.refused else f"{figures.ratio:.2f} of {figures.best}"
        print(f"BEHIND {cell.key}: {why}")
    if left:
        print(f"{len(left)} cells were not begun: --only or --part for the rest: {left[0].key} and on")
    print(f"{len(found)} cells, {len(behind)} behind")
    return int(bool(behind))
