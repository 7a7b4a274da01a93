# SPDX-License-Identifier: MIT
"""bars: one table of norms, moves, reductions and routing beside what each is asked to reach.

Times as `tools/bench norm` and `tools/bench tensor` do, one core, then two threads, then one row over its bytes. Stops
after --seconds and keeps in --file what it has; called again it goes on, so that each part has a quiet machine.
--show prints the table of what is there: PyTorch's eager time over ours, torch.compile's where one is asked, and in
brackets our share of a copy's rate. A number short of what is asked ends with an exclamation mark.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import tilekiln as tk
import torch

from . import norm, tensor

SIZES = ("1x4096", "64x8192", "1024x4096", "8192x4096")
IN_CACHES = ("64x4096", "64x8192", "512x4096", "1024x4096")
ONE_ROW = 1.5  # microseconds that a row of 4,096 may cost over its bytes
Measurement = Callable[[tk.Library], dict[str, Any]]


def _norm_case(operator: str, dtype: str, size: str) -> Callable[[tk.Library, int], norm.Case]:
    def make(library: tk.Library, threads: int) -> norm.Case:
        rows, columns = (int(part) for part in size.split("x"))
        torch.manual_seed(0)
        x, gamma = torch.randn(rows, columns), torch.randn(columns)
        return norm.CASES[operator](library, x.to(norm.DTYPES[dtype]), gamma.to(norm.DTYPES[dtype]), threads)

    return make


def _tensor_case(name: str, dtype: str) -> Callable[[tk.Library, int], norm.Case]:
    known, make = tensor.CASES[name]
    return lambda library, threads: (torch.manual_seed(0), make(library, known[dtype], threads))[1]


def _one_core(make: Callable[[tk.Library, int], norm.Case], compiled: bool, bar: norm.Bar) -> Measurement:
    def measured(library: tk.Library) -> dict[str, Any]:
        case = make(library, 1)
        of = norm.measure(case, compiled, 25 if norm.in_caches(case) else 7, bar)
        return {"rate": of.rate, "reached": of.reached, "asked": of.asked}

    return measured


def _threads(make: Callable[[tk.Library, int], norm.Case], bar: float) -> Measurement:
    def measured(library: tk.Library) -> dict[str, Any]:
        one, two = make(library, 1), make(library, 2)
        ratios, _ = norm.scaling(one, two, 25)
        asked = {"gain": bar} if norm.in_caches(one) else {}
        return {"reached": {"gain": statistics.median(ratios), "best": max(ratios)}, "asked": asked}

    return measured


def _over_bytes(operator: str, dtype: str) -> Measurement:
    """Microseconds of one row less those that its bytes take at the rate of many rows."""

    def measured(library: tk.Library) -> dict[str, Any]:
        spent = []
        for rows in (1, 64):
            call = _norm_case(operator, dtype, f"{rows}x4096")(library, 1).ours
            call()
            times = [norm._once(call, time.thread_time, 0.01) for _ in range(9)]
            spent.append(statistics.median(times) / rows * 1e6)
        return {"reached": {"over": spent[0] - spent[1]}, "asked": {"over": ONE_ROW}}

    return measured


def cells() -> Iterator[tuple[str, str, str, int, Measurement]]:
    """Section, row, column, threads and measurement of every number."""
    for dtype, bars in norm.BARS.items():
        for operator, bar in bars.items():
            for size in SIZES:
                make = _norm_case(operator, dtype, size)
                yield "Norms", f"{operator} {dtype}", size, 1, _one_core(make, bar.compile > 0, bar)
    for name, (dtypes, _) in tensor.CASES.items():
        for dtype in dtypes:
            measured = _one_core(_tensor_case(name, dtype), False, tensor.bar(name, dtype))
            yield "Moves, reductions, routing", name, dtype, 1, measured
    for operator in ("rmsnorm2d", "layernorm2d", "add_rms_rdquant", "smoothquant", "softmax", "silu_and_mul"):
        for dtype in ("bf16", "fp32"):
            for size in IN_CACHES:
                make = _norm_case(operator, dtype, size)
                yield "Two threads", f"{operator} {dtype}", size, 2, _threads(make, norm.TWO_THREADS)
            yield "One row", operator, dtype, 1, _over_bytes(operator, dtype)
    for name in ("transpose 1024x1024", "permute 0213 8x64x32x128", "img2col 3x3 8x28x28x64", "sum 0 of 1024x4096"):
        for dtype in ("fp32", "bf16"):
            measured = _threads(_tensor_case(name, dtype), norm.TWO_THREADS)
            yield "Two threads, moves", name, dtype, 2, measured


def _asked(asked: dict[str, float]) -> str:
    text = " / ".join(f"{asked[name]:g}" for name in ("eager", "compile", "gain", "over") if name in asked)
    return text + (f" ({asked['copy']:g})" if "copy" in asked else "")


def said(found: dict[str, Any], compiled: bool) -> str:
    """A cell of the table."""
    reached, asked = found["reached"], found["asked"]

    def one(name: str) -> str:
        least, value = asked.get(name), reached[name]
        short = least is not None and (value > least if name == "over" else value < least)
        return f"{value:.2g}" if value >= 10 and not short else f"{value:.2f}" + ("!" if short else "")

    text = " / ".join(one(name) for name in ("eager", "compile", "gain", "over") if name in reached)
    return text + (f" ({one('copy')})" if "copy" in asked or (compiled and "copy" in reached) else "")


def table(found: dict[str, dict[str, Any]]) -> str:
    """Of the measurements by "section|row|column"."""
    sections: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for key, one in found.items():
        section, row, column = key.split("|")
        sections.setdefault(section, {}).setdefault(row, {})[column] = one
    lines: list[str] = []
    for section, rows in sections.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        lines += ["", f"| {section} | asked | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 2)]
        for name, row in rows.items():
            asked = list(dict.fromkeys(_asked(one["asked"]) for one in row.values() if one["asked"]))
            asked = [max(asked, key=len)] if section == "Norms" and asked else asked
            cells = [said(row[column], section == "Norms") if column in row else "" for column in columns]
            lines.append(f"| {name} | {'; '.join(asked)} | " + " | ".join(cells) + " |")
    return "\n".join(lines[1:])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench bars", description=__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="[%(default)s]")
    parser.add_argument("--file", type=pathlib.Path, default=pathlib.Path("build/bars.json"), help="[%(default)s]")
    parser.add_argument("--only", default="", help="cells whose section, row or column hold one of these words [all]")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    given = parser.parse_args(argv)
    found = json.loads(given.file.read_text()) if given.file.exists() else {}
    known = {"|".join(cell[:3]): cell[3:] for cell in cells()}
    chosen = [key for key in known if any(word in key for word in given.only.split(","))]
    if not chosen:
        parser.error(f"--only: was {given.only!r}, must be in one of {', '.join(known)}")
    left = [] if given.show else [key for key in chosen if given.again or key not in found]
    end = time.monotonic() + given.seconds
    if left:
        cores = os.sched_getaffinity(0)
        library = norm.start(1)
        while left and time.monotonic() < end:
            threads, measured = known[left[0]]
            os.sched_setaffinity(0, cores if threads > 1 else {max(cores)})
            found[left[0]] = measured(library)
            left.pop(0)
        given.file.parent.mkdir(parents=True, exist_ok=True)
        given.file.write_text(json.dumps(found, indent=1))
    print(table({key: found[key] for key in known if key in found}))
    if left:
        print(f"\n{len(left)} of {len(chosen)} are left: call it again")
    return 0
