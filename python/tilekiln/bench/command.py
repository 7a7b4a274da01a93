# SPDX-License-Identifier: MIT
"""The command `tilekiln bench OPERATOR [size=N] [axis=VALUE] ...`."""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cli.command_line import count

if TYPE_CHECKING:
    from ..api.library import Library
    from .settings import Settings

EPILOG = """Words after the operator: a size (rows=1024), an axis (dtype=bf16 add=add_store), an argument (epsilon=1e-3,
causal=yes, axes=0x2x1x3), an optional array (bias=yes) ARRAY.stride=N, elements between its rows, or
ARRAY.order=column. Several values with commas are so many lines: columns=1024,4096 dtype=fp32,bf16 are four.
`tilekiln bench OPERATOR --words` lists what may be said.

  tilekiln bench rmsnorm2d rows=1024 columns=4096 dtype=bf16 add=add_store
  tilekiln bench gemm m=16,64 n=4096 k=4096 dtype=bf16 activation=silu --csv gemm.csv
  tilekiln bench permute shape=8x64x32x128 axes=0x2x1x3 dtype=fp32 --threads 2
"""
COLUMNS = ("operator", "call", "instance", "threads", "microseconds", "least", "gb_per_s", "error_of_bound")


class Outcome(NamedTuple):
    """One line of the report. error: the largest over its bound, None where it was not asked for."""

    said: str
    instance: str
    median: float
    least: float
    bytes: int
    error: float | None
    operations: float | None  # None where nothing counts them


def add(commands: Any) -> None:
    """The command to those of `tilekiln`."""
    parser = commands.add_parser(
        "bench",
        help="time any operator, on arrays made from its declaration, its answer checked",
        description="Times an operator on arrays made from its declaration and checks the answer with the float64 "
        "reference. With one thread, its processor time; with several, wall time. GB/s: arrays in and results, once. "
        "TFLOP/s, of products and attention: what the mask leaves.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("operator", nargs="?", help="such as rmsnorm2d; without one, lists them")
    parser.add_argument("words", nargs="*", metavar="WORD=VALUE", help="sizes, axes, arguments")
    parser.add_argument("--words", action="store_true", dest="list_words", help="list what may be said, and end")
    parser.add_argument("--receipt", help="the library, by the name of its receipt or its path [one that has it]")
    parser.add_argument("--no-check", action="store_true", help="without the reference, which is slow for large sizes")
    parser.add_argument("--repeat", type=count, default=20, help="samples, of 5 ms or one call each [%(default)s]")
    parser.add_argument("--warmup", type=int, default=2, help="calls before [%(default)s]")
    parser.add_argument("--threads", type=count, default=1, help="[%(default)s]")
    parser.add_argument(
        "--device", choices=("cpu", "cuda", "hip"), default="cpu", help="wall time on a GPU [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the numbers in the arrays [%(default)s]")
    parser.add_argument("--csv", metavar="FILE", help="write the lines there too; - is standard output, alone")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """1 where an answer is wrong, 2 where the call is."""
    from .._core.native import ArgumentError, NoKernelError
    from .._generated.tables import OPERATORS
    from ..api.library import load
    from .declaration import CALLS
    from .settings import Settings

    if given.operator is None:
        print("tilekiln bench OPERATOR, one of:\n  " + "\n  ".join(sorted(CALLS)))
        return 0
    try:
        if given.list_words:
            print(_words(given.operator))
            return 0
        calls = [Settings(given.operator, words) for words in combined(given.words)]
        library = load(given.receipt or OPERATORS[given.operator].receipt)
        if not hasattr(library, given.operator):
            raise NoKernelError(
                f"library {library.receipt} has no {given.operator}; it has {', '.join(library.operators)}"
            )
        return _report(library, calls, given)
    except (ArgumentError, NoKernelError) as error:
        print(f"tilekiln bench: {error}", file=sys.stderr)
        return 2


def combined(words: list[str]) -> Iterator[dict[str, str]]:
    """Every combination of the values between commas."""
    from .._core.native import ArgumentError

    choices: dict[str, list[str]] = {}
    for word in words:
        name, equal, values = word.partition("=")
        if not equal or not name or not values:
            raise ArgumentError(f"{word!r}: must be a word and its value, such as rows=1024")
        if name in choices:
            raise ArgumentError(f"{name}: was given twice, must be given once; several values have commas between them")
        choices[name] = values.split(",")
    for chosen in itertools.product(*choices.values()):
        yield dict(zip(choices, chosen, strict=True))


def _words(operator: str) -> str:
    """Words that `tilekiln bench OPERATOR` takes, with the sizes that it uses by default."""
    from .settings import Settings

    settings = Settings(operator, {})
    lines = ["sizes:", *(f"  {word}={settings.lengths[letter]}" for word, letter in settings.letters.items())]
    if settings.shape:
        lines.append(f"  shape={'x'.join(map(str, settings.shape))}")
    lines += ["axes:", *(f"  {axis}={','.join(settings.call.axis_choices(axis))}" for axis in settings.axes)]
    numbers = [name for name in settings.call.numbers if name not in settings.call.axes]
    lines += ["arguments:", *(f"  {name}={_kind(settings.call.numbers[name])}" for name in numbers)]
    lines += ["optional arrays:", *(f"  {name}=yes" for name in settings.optional)] if settings.optional else []
    return "\n".join(lines)


def _kind(kind: Any) -> str:
    if isinstance(kind, tuple):
        return ",".join(kind)
    words = {"flag": "yes,no", "dims": "0x2x1", "int32": "1x1", "uint64": "1x0", "instance": "NAME", "int": "N"}
    return words.get(kind, "X")


def _report(library: Library, calls: list[Settings], given: argparse.Namespace) -> int:
    alone = given.csv == "-"
    wrong = 0
    with contextlib.ExitStack() as open_files:
        file = sys.stdout if alone else None
        if given.csv and not alone:
            file = open_files.enter_context(open(given.csv, "w", newline="", encoding="utf-8"))
        writer = csv.writer(file) if file else None
        if writer:
            writer.writerow(COLUMNS)
        for settings in calls:
            times = Times(given.repeat, given.warmup, given.threads, given.device)
            one = measure(library, settings, times, given.seed, not given.no_check)
            rate = one.bytes / one.median / 1e9
            if writer:
                error = "" if one.error is None else f"{one.error:.4g}"
                writer.writerow((settings.operator, one.said, one.instance, given.threads, f"{one.median * 1e6:.3f}",
                                 f"{one.least * 1e6:.3f}", f"{rate:.3f}", error))  # fmt: skip
            if not alone:
                print(_line(one, rate), flush=True)
            wrong += one.error is not None and not one.error <= 1
    return 1 if wrong else 0


def _line(one: Outcome, rate: float) -> str:
    speed = f"{rate:.1f} GB/s"
    if one.operations is not None:
        speed = f"{one.operations / one.median / 1e12:.3f} TFLOP/s, {speed}"
    text = f"{one.said}: {one.median * 1e6:.1f} us, least {one.least * 1e6:.1f}; {speed}; {one.instance}"
    if one.error is None:
        return f"{text}; not checked"
    return f"{text}; {'right' if one.error <= 1 else 'WRONG'}, {one.error:.2f} of the largest error allowed"


class Times(NamedTuple):
    """Samples, calls before, threads of a call and device of a measurement."""

    repeat: int
    warmup: int
    threads: int
    device: str = "cpu"


def measure(library: Library, settings: Settings, times: Times, seed: int, check: bool) -> Outcome:
    """Computes a call once, checks it, and times it with its results given."""
    from .._generated.tables import OPERATORS
    from ..reference import tolerance
    from . import answers, problems
    from .device import Device
    from .operations import operations

    operator, threads = settings.operator, times.threads
    device = None if times.device == "cpu" else Device(times.device)
    place = device.called if device else None
    made = problems.arrays(settings, seed, library, place)
    given = problems.whole(settings, made) | {"num_threads": threads}
    before = {name: array.copy() for name, array in made.items()} if check else {}
    function: Callable[..., Any] = getattr(library, operator)
    find = getattr(library, f"{operator}_find")
    found = (place(find) if place else find)(**given)
    returned = (place(function) if place else function)(**given)
    results = _by_name(settings, given, returned)
    error = None
    if check:
        asked = {name: value for name, value in given.items() if name not in made and value is not None}
        written = {
            name: made[name] for name, one in settings.call.arrays.items() if one.kind == "written" and name in made
        }
        with tolerance.judged_by(_bounds(settings, times.device)):
            error = answers.answer(operator, {**asked, **before}, {**results, **written}, settings.weight)
    flags = {one.asked_by for one in settings.call.arrays.values() if one.asked_by} | set(settings.call.dtype_words)
    timed = {name: value for name, value in given.items() if name not in flags} | results
    function, timed = _laid(settings.laid, function, timed)
    if device:
        timed = device.moved(timed)
    clock = time.thread_time if threads == 1 else time.perf_counter
    for _ in range(times.warmup):
        function(**timed)
    samples = [
        device.sample(function, timed) if device else sample(function, timed, clock) for _ in range(times.repeat)
    ]
    main = found if isinstance(found, int) else found[OPERATORS[operator].main]
    moved = sum(array.nbytes for array in (*made.values(), *results.values()))
    dtype = settings.dtype(next(name for name, one in settings.call.arrays.items() if one.dtypes and one.required))
    extra = " ".join(f"{name}={_shown(value)}" for name, value in settings.arguments.items())
    where = f"on {device.name}" if device else ""
    said = " ".join(filter(None, (operator, f"dtype={dtype}", settings.sizes_in_words(), extra, where)))
    return Outcome(
        said, library.instance_name(main), statistics.median(samples), min(samples), moved, error, operations(settings)
    )


def _laid(
    orders: dict[str, tuple[int, ...]], function: Callable[..., Any], timed: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The call over arrays that have other orders in memory. Kernels read rows of v: each call turns it first."""
    import numpy as np

    views = {
        name: np.ascontiguousarray(timed[name].transpose(order)).transpose(np.argsort(order))
        for name, order in orders.items()
    }
    timed = timed | views
    if "v" not in views:
        return function, timed
    return lambda v, **others: function(v=np.ascontiguousarray(v), **others), timed


def _bounds(settings: Settings, device: str) -> Any:
    """Of the answers of attention, by dtype."""
    from ..reference import of_gpus, tolerance

    if device == "cpu":
        return tolerance.TOLERANCE
    of = settings.lengths
    terms = max(of.get(one, 1) for one in ("Sq", "Sk", "Tq", "Tk")) * of.get("H", 1) // of.get("Hk", 1)
    return of_gpus.tolerances(device, settings.operator, float(settings.arguments.get("softcap", 0.0)), terms)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _by_name(settings: Settings, given: dict[str, Any], returned: Any) -> dict[str, Any]:
    """The results of a call: those that are always made, and those that were asked for, in their order."""
    from .._generated.tables import OPERATORS

    table = OPERATORS[settings.operator]
    asked = [
        one.name for one, made in zip(table.results, table.asked(given), strict=True) if made and not one.torch_alone
    ]
    values = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(asked, values, strict=True)) if asked else {}


def sample(function: Callable[..., Any], timed: dict[str, Any], clock: Callable[[], float]) -> float:
    """Seconds of a call, over as many as take 5 ms."""
    calls, start = 0, clock()
    while True:
        function(**timed)
        calls += 1
        spent = clock() - start
        if spent >= 0.005:
            return spent / calls
