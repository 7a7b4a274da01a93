# SPDX-License-Identifier: MIT
"""Runs cases one after the other and tells each on standard output before it runs it: a crash names its case.

Its lines: "> CASE" before, "! CASE JSON" for a mismatch. It ends when its count is reached or it is stopped.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator

import tilekiln as tk

from tests.fuzz.bad import BadCall
from tests.fuzz.calls import FAMILIES, KINDS, Call, Case, MismatchError, operators
from tests.fuzz.declared import DeclaredCall, declared
from tests.fuzz.drawn import DrawnCall, drawn
from tests.fuzz.laid import LaidCall, laid
from tests.fuzz.tensors import TensorCall

CALLS: dict[str, Callable[[tk.Library, Case], Call]] = {
    "values": lambda library, case: (Call if case.operator in FAMILIES else DrawnCall)(library, case),
    "arguments": BadCall,
    "declared": DeclaredCall,
    "laid": LaidCall,
    "tensors": TensorCall,
}


def libraries(receipts: list[str], beside: str = "") -> dict[str, tk.Library]:
    """By receipt. A name with a slash is a file. Raises what tilekiln.load raises.

    beside: a library that is opened first with its names visible to all, as one that the program is linked to.
    """
    if beside:
        ctypes.CDLL(str(tk.load(beside).path), ctypes.RTLD_GLOBAL)
    loaded = [tk.load(one) for one in receipts]
    return {library.receipt: library for library in loaded}


def cases(found: dict[str, tk.Library], operator: str, kind: str) -> Iterator[tuple[str, str, str]]:
    """Cases of one seed: of every operator of every library right calls, a declared and a laid one, of attention wrong
    ones too."""
    for receipt, library in found.items():
        turns = [(name, one) for name in operators(library) for one in (*["values"] * 3, "arguments")]
        turns += [(name, "values") for name in drawn(library)]
        turns += [(name, "declared") for name in declared(library)]
        turns += [(name, "laid") for name in laid(library)]
        turns += [(name, "tensors") for name in operators(library) if kind == "tensors"]
        yield from ((receipt, name, one) for name, one in turns if operator in ("", name) and kind in ("", one))


def some_cases(found: dict[str, tk.Library], operator: str, kind: str) -> list[tuple[str, str, str]]:
    """`cases`, of which there must be one. LookupError: what was asked for is in none of the libraries."""
    turns = list(cases(found, operator, kind))
    if turns:
        return turns
    every = [one for asked in ("", "tensors") for one in cases(found, "", asked)]
    kinds = sorted({one for _, name, one in every if operator in ("", name)})
    names = sorted({name for _, name, one in every if kind in ("", one)})
    what = f"no call of --kind {kind}" if kind else "no call"
    what += f" of --operator {operator}" if operator else ""
    other = " or ".join(
        [f"--kind must be one of {', '.join(kinds)}"] * (kind != "" and kinds != [])
        + [f"--operator must be one of {', '.join(names)}"] * (operator != "" and names != [])
        + ["--receipt must be another one"]
    )
    raise LookupError(f"the library of {', '.join(found)} has {what}: {other}")


def describe(library: tk.Library, case: Case) -> str:
    """The call of a case, which is not made."""
    call = CALLS[case.kind](library, case)
    call.prepare()
    return str(call)


def run(library: tk.Library, case: Case) -> tuple[str, str]:
    """Text on a fault, "" for none; and the call. Any error that the facade raises for a right call is a fault too."""
    call = CALLS[case.kind](library, case)
    try:
        call.run()
    except MismatchError as error:
        return str(error), str(call)
    except (tk.ArgumentError, tk.NoKernelError, TypeError) as error:
        return f"refused: {type(error).__name__}: {error}", str(call)
    return "", ""


def main(words: list[str]) -> None:
    """worker.py RECEIPTS BESIDE OPERATOR KIND FIRST STEP COUNT: cases FIRST, FIRST + STEP, ... of the endless list."""
    receipts, beside, operator, kind, first, step, count = words
    if kind not in ("", *KINDS):
        raise ValueError(kind)
    found = libraries(receipts.split(","), beside)
    turns = some_cases(found, operator, kind)
    for number in range(int(first), int(count), int(step)):
        receipt, name, one = turns[number % len(turns)]
        case = Case(receipt, name, one, number)
        print(f"> {case}", flush=True)
        wrong, call = run(found[receipt], case)
        if wrong:
            again, _ = run(found[receipt], case)
            if again != wrong:  # it depends on memory, on threads, or on the calls before
                wrong += f"\n  the same call once more: {again or 'holds'}"
            print(f"! {case} {json.dumps([wrong, call])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
