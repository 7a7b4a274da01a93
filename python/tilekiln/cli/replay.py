# SPDX-License-Identifier: MIT
"""The command `tilekiln replay FILE ...`: calls whose inputs TILEKILN_DUMP wrote, run again, compared and timed."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core import dtypes
from .command_line import count

if TYPE_CHECKING:
    from ..api.library import Library

_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floats that JSON has no number for, by their text."""


class Dump(NamedTuple):
    """One call, as TILEKILN_DUMP wrote it.

    library: its receipt. arguments: what is no array and was said. inputs: the arrays that the call reads, with the
    strides that they had. outputs: the others, of the same shapes and strides, without their values.
    """

    operator: str
    library: str
    arguments: dict[str, Any]
    inputs: dict[str, Any]
    outputs: dict[str, Any]


def read(file: str | Path) -> Dump:
    """Reads one file of the folder TILEKILN_DUMP. OSError, or ArgumentError where it is another kind of file."""
    from .._core.native import ArgumentError
    from .._generated.tables import OPERATORS

    data = Path(file).read_bytes()
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        words = header["__metadata__"]
        arguments, lies = json.loads(words["arguments"]), json.loads(words["arrays"])
        operator, library = words["operator"], words["library"]
    except (ValueError, KeyError, TypeError):
        raise ArgumentError(f"{file}: was no call, must be a file that TILEKILN_DUMP wrote") from None
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    in_place = OPERATORS[operator].written if operator in OPERATORS else {}
    for name, lie in lies.items():
        if lie["input"] and (name in in_place or not lie["written"]):
            first, last = (8 + length + at for at in header[name]["data_offsets"])
            inputs[name] = _array(lie, data[first:last])
        else:
            outputs[name] = _array(lie, None)
    return Dump(operator, library, {name: _value(value) for name, value in arguments.items()}, inputs, outputs)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


def _array(lie: dict[str, Any], data: bytes | None) -> Any:
    """An array as it lay; its memory is of its own."""
    import numpy as np

    dtype = dtypes.NUMPY[lie["dtype"]]
    reach = [(length - 1) * stride for length, stride in zip(lie["shape"], lie["stride"], strict=True)]
    size = 0 if 0 in lie["shape"] else 1 + sum(map(abs, reach))
    memory = np.zeros(size, dtype) if data is None else np.frombuffer(bytearray(data), dtype)
    steps = [stride * dtype.itemsize for stride in lie["stride"]]
    return np.lib.stride_tricks.as_strided(memory[lie["first"] :], lie["shape"], steps)


def add(commands: Any) -> None:
    """The command to those of `tilekiln`."""
    parser = commands.add_parser(
        "replay",
        help="run calls again whose inputs TILEKILN_DUMP wrote, compare with the reference, time them",
        description="Runs calls again whose inputs TILEKILN_DUMP=FOLDER wrote, compares the results with the float64 "
        "reference and times them. Exit status: 1 where an answer is wrong, 2 where a call is refused.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="such as fmha_fwd-4711-1.safetensors")
    parser.add_argument("--library", help="by the name of its receipt or its path [the one of that name]")
    parser.add_argument("--no-check", action="store_true", help="without the reference, which is slow for large sizes")
    parser.add_argument(
        "--repeat", type=int, default=20, help="samples, of 5 ms or one call each; 0: none [%(default)s]"
    )
    parser.add_argument("--threads", type=count, help="in place of the call's own")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """1 where an answer is wrong, 2 where a file or a call is refused."""
    from .._core.native import ArgumentError, NoKernelError
    from ..api.library import load

    status = 0
    for file in given.files:
        try:
            dump = read(file)
            library = load(given.library or dump.library)
            status = max(status, _replay(file, dump, library, given))
        except (OSError, ArgumentError, NoKernelError) as error:
            print(f"tilekiln replay: {file}: {error}", file=sys.stderr)
            status = 2
    return status


def _replay(file: str, dump: Dump, library: Library, given: argparse.Namespace) -> int:
    from .._core.native import NoKernelError
    from ..bench.answers import answer
    from ..bench.command import sample

    if not hasattr(library, dump.operator):
        raise NoKernelError(f"library {library.receipt} has no {dump.operator}; it has {', '.join(library.operators)}")
    arguments = {**dump.arguments, **({} if given.threads is None else {"num_threads": given.threads})}
    before = {} if given.no_check else {name: array.copy() for name, array in dump.inputs.items()}
    whole = {**_positional(dump), **dump.inputs, **dump.outputs, **arguments}
    found = getattr(library, f"{dump.operator}_find")(**whole)
    function = getattr(library, dump.operator)
    function(**whole)
    print(f"{file}: {dump.operator}({', '.join(f'{name}={_shown(value)}' for name, value in whole.items())})")
    for number in found if isinstance(found, tuple) else (found,):
        if number >= 0:
            print(f"  {library.instance_name(number)}")
    status = 0
    if before and not dump.operator.startswith("flatmm"):
        error = answer(dump.operator, {**arguments, **before}, {**dump.inputs, **dump.outputs})
        status = 0 if error <= 1 else 1
        print(f"  {'right' if error <= 1 else 'WRONG'}, {error:.2f} of the largest error allowed")
    else:
        print("  not compared" + ("" if given.no_check else ": its weight is packed"))
    if given.repeat:
        clock = time.thread_time if whole.get("num_threads") == 1 else time.perf_counter
        times = [sample(function, whole, clock) for _ in range(given.repeat)]
        print(f"  {statistics.median(times) * 1e6:.1f} us, least {min(times) * 1e6:.1f}")
    return status


def _positional(dump: Dump) -> dict[str, None]:
    """Arrays that a call names, were it only to say that there is none."""
    from .._generated.tables import OPERATORS

    return dict.fromkeys(OPERATORS[dump.operator].optional) if dump.operator in OPERATORS else {}


def _shown(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return repr(value)
