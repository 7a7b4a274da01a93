# SPDX-License-Identifier: MIT
"""The command `tilekiln trace LOG`: the lines of TILEKILN_LOG as a timeline that Chrome's trace viewers read.

Format: "Trace Event Format", JSON object form, https://ui.perfetto.dev and chrome://tracing open it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_HEAD = r"tilekiln: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d\.\d{6}) (?P<process>\d+)/(?P<thread>\d+) "
_CALL = re.compile(
    _HEAD + r"(?P<operator>\w+)\((?P<arguments>.*)\)(?P<queued> queued in)? (?P<took>[\d.]+) us(?: by (?P<by>.*))?"
)
_FAILED = re.compile(_HEAD + r"(?P<operator>\w+)\((?P<arguments>.*)\) failed: (?P<error>.*)")
_STAGE = re.compile(
    _HEAD + r"stage (?P<family>\w+): (?P<units>\d+) of (?P<all>\d+) units in (?P<took>[\d.]+) us by (?P<by>\w+)"
)
_DAY = 86400e6


def _microseconds(found: re.Match[str]) -> float:
    return 1e6 * (3600 * int(found["hour"]) + 60 * int(found["minute"]) + float(found["second"]))


def _complete(found: re.Match[str], name: str, kind: str, took: float, **arguments: Any) -> dict[str, Any]:
    """A line is written when what it tells ends."""
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": round(_microseconds(found) - took, 3),
        "dur": took,
        "pid": int(found["process"]),
        "tid": int(found["thread"]),
        "args": arguments,
    }


def event(line: str) -> dict[str, Any] | None:
    """The event of one line of a log; None for a line that tells no call and no stage."""
    if found := _STAGE.fullmatch(line):
        units = f"{found['units']} of {found['all']}"
        return _complete(found, found["family"], "stage", float(found["took"]), units=units, instance=found["by"])
    if found := _CALL.fullmatch(line):
        instances = found["by"].split(" + ") if found["by"] else []
        name = f"{found['operator']} queued" if found["queued"] else found["operator"]
        arguments = {"arguments": found["arguments"], "instances": instances}
        return _complete(found, name, "call", float(found["took"]), **arguments)
    if found := _FAILED.fullmatch(line):
        mark = _complete(found, f"{found['operator']} failed", "call", 0.0, error=found["error"])
        return {**{key: mark[key] for key in mark if key != "dur"}, "ph": "i", "s": "t"}
    return None


def events(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events of a log in the order they began, with a name for each thread. A log may pass midnight."""
    found: list[dict[str, Any]] = []
    days, last = 0.0, 0.0
    for line in lines:
        one = event(line.rstrip("\n"))
        if one is None:
            continue
        ended = one["ts"] + one.get("dur", 0.0)
        if ended + days < last - _DAY / 2:
            days += _DAY
        one["ts"] += days
        last = max(last, ended + days)
        found.append(one)
    found.sort(key=lambda one: one["ts"])
    return [*_names(found), *found]


def _names(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events that name the rows of the viewer: threads that call, and threads that only work."""
    calling = {(one["pid"], one["tid"]): False for one in found}
    for one in found:
        calling[one["pid"], one["tid"]] |= one["cat"] == "call"
    for (process, thread), calls in calling.items():
        name = "calls" if calls else "works"
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def add(commands: Any) -> None:
    """Adds the command to those of `tilekiln`."""
    about = "a log of calls and stages as a timeline for chrome://tracing or ui.perfetto.dev"
    command = commands.add_parser("trace", help=about, description=about)
    command.add_argument(
        "log", metavar="LOG", help="what TILEKILN_LOG=stages wrote to TILEKILN_LOG_FILE; - is standard input"
    )
    command.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: standard output)")
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """0; 2 where the log cannot be read or tells no call."""
    try:
        text = sys.stdin.read() if given.log == "-" else Path(given.log).read_text(errors="replace")
        found = events(text.splitlines())
        if not found:
            print(
                f"tilekiln trace: {given.log}: tells no call, must be what TILEKILN_LOG=stages or calls writes "
                "(TILEKILN_LOG_FILE names its file)",
                file=sys.stderr,
            )
            return 2
        made = json.dumps({"traceEvents": found, "displayTimeUnit": "ns"}, indent=None, separators=(",", ":"))
        if given.output is None:
            print(made)
            return 0
        Path(given.output).write_text(made + "\n")
    except OSError as error:
        print(f"tilekiln trace: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    calls = sum(one.get("cat") == "call" for one in found)
    stages = sum(one.get("cat") == "stage" for one in found)
    print(
        f"{given.output}: {calls} calls, {stages} parts of stages; open it in https://ui.perfetto.dev or chrome://tracing"
    )
    return 0
