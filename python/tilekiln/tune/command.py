# SPDX-License-Identifier: MIT
"""The command `tilekiln tune RECEIPT --shapes FILE | --trace LOG`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..cli.command_line import count

EPILOG = """--shapes: lines as `tilekiln bench` takes them, an operator and its words, # for comments:

  fmha_fwd_splitkv batch=1 seqlen_q=1 seqlen_k=1024,8192 nhead_q=32 nhead_k=8 dtype=bf16

--trace: a log that TILEKILN_LOG=calls TILEKILN_LOG_FILE=FILE has written in a program of yours.

The table is JSON, a problem a line. library.tune(tilekiln.tune.read(FILE, library)) makes every call go by it.
"""


def add(commands: Any) -> None:
    """The command to those of `tilekiln`."""
    parser = commands.add_parser(
        "tune",
        help="measure which kernel, split and thread count is the fastest for the shapes of a workload",
        description="Measures every way a library has to answer the calls of a workload, in turn with its own choice, "
        "until a winner is certain, and writes a table for this library and this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("receipt", help="the library, by the name of its receipt or its path")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--shapes", metavar="FILE", help="the calls, a line each")
    source.add_argument("--trace", metavar="LOG", help="the calls, as TILEKILN_LOG=calls wrote them")
    parser.add_argument("--threads", default="1", help="of a call; several with commas are candidates [%(default)s]")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda", "hip"),
        default="cpu",
        help="where calls run; a GPU's events time [%(default)s]",
    )
    parser.add_argument("--rounds", type=count, default=60, help="at most, of a shape [%(default)s]")
    parser.add_argument("--out", metavar="FILE", help="the table; what it holds already stays [RECEIPT.tuned.json]")
    parser.add_argument(
        "--pin", action="store_true", help="put the table beside the library, where tilekiln.load takes it"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="measure on the workers of this Dask, tcp://HOST:PORT")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """2 where what was given is wrong."""
    from .._core.native import ArgumentError, NoKernelError
    from ..api.library import load
    from . import shapes
    from .table import beside, merged, write

    try:
        threads = tuple(dict.fromkeys(_threads(given.threads)))
        library = load(given.receipt)
        if given.pin and given.out:
            raise ArgumentError("--pin: was given with --out, must be without: it says where the table goes")
        _check_device(given, threads)
        out = str(beside(library)) if given.pin else given.out or f"{library.receipt}.tuned.json"
        _check_place(out, given.pin)
        left = 0
        if given.trace:
            calls, left = shapes.from_trace(given.trace)
            listed = [call for call in calls if given.device != "cpu" or _answered(library, call)]
        else:
            listed = shapes.from_file(given.shapes)
        before = _before(out)
        tables = _measured(given, library, listed, threads)
        write(out, merged([*before, *tables]))
    except (ArgumentError, NoKernelError, OSError) as error:
        print(f"tilekiln tune: {error}", file=sys.stderr)
        return 2
    faster = [winner for table in tables for winner in table.winners.values() if winner.ratio < 1]
    measured = sum(len(table.winners) for table in tables)
    print(f"{out}: {measured} problems, {len(faster)} of them faster than untuned")
    if left:
        print(f"{left} calls of the log were left out: it has not the values of their index arrays")
    return 0


def _answered(library: Any, call: Any) -> bool:
    """Whether a library has kernels for a call of a log, which may have been another library's."""
    from .._core.native import NoKernelError

    try:
        getattr(library, f"{call.operator}_find")(**call.arguments(library))
    except (AttributeError, NoKernelError):
        print(f"{call}: library {library.receipt} has no kernel", flush=True)
        return False
    return True


def _threads(text: str) -> list[int]:
    from .._core.native import ArgumentError

    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ArgumentError(f"--threads: was {text!r}, must be numbers of 1 or more, with commas between them")
    return list(map(int, words))


def _check_device(given: argparse.Namespace, threads: tuple[int, ...]) -> None:
    """Refuses what is of processors alone beside --device."""
    from .._core.native import ArgumentError

    if given.device == "cpu":
        return
    if given.pin:
        raise ArgumentError("--pin: was given with --device, must be without: loading asks no GPU")
    if given.scheduler:
        raise ArgumentError("--scheduler: was given with --device, must be without: workers ask no GPU")
    if threads != (1,):
        raise ArgumentError(f"--threads: was {given.threads} with --device, must be 1: a GPU's call is one launch")


def _check_place(out: str, pin: bool) -> None:
    """Refuses a place where the table cannot be written, before anything is measured."""
    import os

    from .._core.native import ArgumentError

    folder = os.path.dirname(os.path.abspath(out))
    if os.access(folder, os.W_OK | os.X_OK):
        return
    how = "is not there" if not os.path.isdir(folder) else "cannot be written"
    if pin:
        raise ArgumentError(
            f"--pin: the library lies in {folder}, which {how}: write the table to a file of yours, --out FILE, and "
            "take it by library.tune(tilekiln.tune.read(FILE, library))"
        )
    raise ArgumentError(f"--out: was {out}, must be a file in a folder that can be written: {folder} {how}")


def _before(path: str) -> list[Any]:
    import os

    from .table import read_all

    return read_all(path) if os.path.exists(path) else []


def _measured(given: argparse.Namespace, library: Any, listed: list[Any], threads: tuple[int, ...]) -> list[Any]:
    if given.scheduler:
        from .farm import measured

        return measured(given.scheduler, library, listed, threads, given.rounds, print)
    from .measure import tune
    from .table import Table, library_key, machine_of

    winners = {}
    for shape in listed:
        winner = tune(library, shape, threads, given.rounds, lambda text: print(text, flush=True), given.device)
        winners[winner.key] = winner
    return [Table(library.receipt, library_key(library), machine_of(given.device), winners)]
