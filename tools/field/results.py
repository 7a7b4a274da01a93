# SPDX-License-Identifier: MIT
"""Results as JSON that merges, as a table on the screen, and as the heat map docs/measurements/field.md."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import pathlib
import subprocess
from collections.abc import Iterable
from typing import Any

from .measure import Figures
from .rows import SIZES, Cell

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHADES = ((1.3, "🟩"), (0.98, "🟢"), (0.85, "🟧"), (0.0, "🟥"))
"""Colours of cells, each with the least ratio that has it."""


def commit() -> str:
    """The tree's commit, with + where files differ from it; empty outside of a checkout."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def merge(file: pathlib.Path, machine: str, about: str, threads: int, found: dict[str, Figures], at: str) -> None:
    """Put figures into a file; those of other cells, threads and machines keep their date and commit."""
    whole = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"machines": {}}
    entry = whole["machines"].setdefault(machine, {"about": {}, "cells": {}})
    entry["about"][str(threads)] = about
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for key, one in found.items():
        kept: dict[str, Any] = {"date": today, "commit": at, "best": one.best, "passes": _rounded(one.passes)}
        kept |= {"us": _rounded([one.ours * 1e6])[0], "share": _rounded([one.share])[0], "bound": one.bound}
        kept["all_us"] = {name: _rounded([value * 1e6])[0] for name, value in one.all.items()}
        kept["failed"], kept["tied"] = one.failed, one.tied
        kept |= {"refused": one.refused} if one.refused else {}
        kept |= {"left_out": one.left_out} if one.left_out else {}
        entry["cells"][f"{key} | {threads}"] = kept
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_suffix(".part")
    made.write_text(_text(whole), encoding="utf-8")
    made.replace(file)


def _text(whole: dict[str, Any]) -> str:
    """The file's JSON, a line a model of each machine: diffs show which of them a run changed."""
    machines = []
    for machine, entry in sorted(whole["machines"].items()):
        models = itertools.groupby(sorted(entry["cells"].items()), lambda item: item[0].split()[0])
        cells = ["   " + ", ".join(f"{_json(key)}: {_json(cell)}" for key, cell in group) for _, group in models]
        head = f'  {_json(machine)}: {{"about": {_json(entry["about"])}, "cells": {{'
        machines.append("\n".join([head, ",\n".join(cells), "  }}"]))
    return "\n".join(['{"machines": {', ",\n".join(machines), "}}"]) + "\n"


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in values]


def line(cell: Cell, figures: Figures) -> str:
    """A row of the table on the screen."""
    if figures.refused:
        return f"{cell.key:38} refused: {figures.refused}"
    passes = " ".join(f"{value:5.2f}" for value in figures.passes) or "no peer"
    state = "  BEHIND" if figures.failed else "  tie" if figures.tied and figures.ratio < 1 else ""
    share = f"{figures.share:4.0%} of {figures.bound}"
    return f"{cell.key:38} {_time(figures.ours)} {figures.best:20} {_time(figures.peer)} {passes:11} {share}{state}"


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return f"{'-':>9}"
    return f"{seconds * 1e6:6.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:6.1f} ms"


def means(found: list[tuple[Cell, Figures]]) -> str:
    """Geometric means of the ratios by phase and dtype."""
    groups: dict[str, list[float]] = {}
    for cell, figures in found:
        if figures.passes:
            groups.setdefault(f"{cell.phase} {cell.dtype}", []).append(figures.ratio)
    return "geometric means: " + ", ".join(f"{name} {_mean(v):.2f} ({len(v)})" for name, v in groups.items())


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _of_phases(cells: dict[str, Any], known: dict[str, Cell], dtype: str, threads: str) -> Iterable[str]:
    """Geometric means of one column of the page, a phase each."""
    for phase in SIZES:
        keys = [key for key, one in known.items() if (one.phase, one.dtype) == (phase, dtype)]
        found = [max(cells.get(f"{key} | {threads}", {}).get("passes") or [0.0]) for key in keys]
        ratios = [ratio for ratio in found if ratio]
        yield f" {_mean(ratios):.2f} |" if ratios else " |"


def heat_map(file: pathlib.Path, known: dict[str, Cell]) -> str:
    """The page of a file of results: rows by machines, the best peer's time over ours."""
    whole = json.loads(file.read_text(encoding="utf-8"))["machines"]
    columns: list[tuple[str, str, str]] = []
    for machine, entry in sorted(whole.items()):
        kinds = {tuple(key.split(" | ")[1:]) for key in entry["cells"]}
        columns += [(machine, dtype, threads) for dtype, threads in sorted(kinds)]
    names = list(dict.fromkeys(cell.name for cell in known.values()))
    lines = [
        "# The field table",
        "",
        "The best peer's time over Tilekiln's, by the call that users make. `tools/bench field` and `tools/gpu field`",
        "time the rows of `tools/field.yaml` and fill the JSON file beside this page; `--page` makes the page of it.",
        "",
        ", ".join(f"{shade} {least} and more" for least, shade in SHADES[:-1]) + ","
        f" {SHADES[-1][1]} less, or refused; = both sides at 92 % of memory's rate and more.",
        "",
    ]
    for index, (machine, dtype, threads) in enumerate(columns):
        cells = [c for key, c in whole[machine]["cells"].items() if key.endswith(f" | {dtype} | {threads}")]
        when = sorted({f"{c['date']} ({c['commit']})" for c in cells})
        behind = sum(c["failed"] for c in cells)
        count = f"{len(cells)} cells, {behind} behind"
        lines.append(f"* **{chr(65 + index)}** {machine}, {dtype}, {_threads(threads)}: {count}; {', '.join(when)}; "
                     f"{whole[machine]['about'][threads]}")  # fmt: skip
    lines += ["", f"| geometric means | {' | '.join(SIZES)} |", "|---|" + "---|" * len(SIZES)]
    for machine, dtype, threads in columns:
        means = "".join(_of_phases(whole[machine]["cells"], known, dtype, threads))
        lines.append(f"| {machine}, {dtype}, {_threads(threads)} |{means}")
    lines += ["", "| row | " + " | ".join(chr(65 + i) for i in range(len(columns))) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for name in names:
        cells = [whole[m]["cells"].get(f"{name} | {d} | {t}") for m, d, t in columns]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(_shaded(one) for one in cells) + " |")
    lines += ["", "## Behind", "", "| column | rows, ratio, best peer |", "|---|---|"]
    for index, (machine, dtype, threads) in enumerate(columns):
        ours = sorted((k, c) for k, c in whole[machine]["cells"].items() if k.endswith(f" | {dtype} | {threads}"))
        behind_ones = "; ".join(f"{key.partition(' | ')[0]} {_behind(one)}" for key, one in ours if one["failed"])
        lines += [f"| {chr(65 + index)} | {behind_ones} |"] if behind_ones else []
    return "\n".join(lines) + "\n"


def _behind(one: dict[str, Any]) -> str:
    return "refused" if "refused" in one else f"{max(one['passes']):.2f} {one['best']}"


def _threads(threads: str) -> str:
    return {"0": "whole device", "1": "one thread"}.get(threads, f"{threads} threads")


def _shaded(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    if "refused" in one:
        return "🟥 refused"
    if not one["passes"]:
        return "no peer"
    ratio = max(one["passes"])
    if one["tied"] and ratio < 1:
        return f"🟢 {ratio:.2f} ="
    return f"{next(shade for least, shade in SHADES if ratio >= least)} {ratio:.2f}"
