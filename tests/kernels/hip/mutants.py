# SPDX-License-Identifier: MIT
"""Faults written into the code objects of a library, one at a time, and whether problems of a family see them.

    python -m tests.kernels.hip.mutants --library LIBRARY --family FAMILY --dtype DTYPE --place FOLDER
        [--most N --seed S] [--object KERNEL=HSACO]...

Over hipsim (TILEKILN_HIPSIM_OBJECTS). Each wait is taken out, each counter of a wait allows one operation more to be
under way, each s_nop has one state less; or a code object stands for the library's of that digest. A process is forked
for each, of one that has the library, the problems and their float64. Prints a JSON object: what was `seen`, by kind of
edit or digest, and what `survived`, by reason. Emulated (functional), never run on AMD silicon.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import random
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import kv_problems, problems

from tests import cases, sampling
from tests.kernels.hip.waits import NOP, WAIT, weakened
from tools.hip.cases import Hip
from tools.hip.device import runtime

SECONDS = 60  # of a fault that makes a kernel run for ever


def edits(text: str) -> Iterator[tuple[str, str, str]]:
    """Kind, what becomes of an instruction, and the disassembly with it."""
    for wait in WAIT.finditer(text):
        line = wait.group(0)
        words, comment = line[: line.index("//")].strip(), line[line.index("//") :]
        address = comment[3 : comment.index(":")].lstrip("0")

        def changed(new: str, wait: re.Match[str] = wait) -> str:
            return text[: wait.start()] + new + text[wait.end() :]

        yield "removed", f"{address}: {words}", changed(f"\ts_nop 0 {comment}")
        for weaker in weakened(line):
            yield "weakened", f"{address}: {words} to {weaker[: weaker.index('//')].strip()}", changed(weaker)
    for nop in NOP.finditer(text):
        states, rest = int(nop.group(1)), nop.group(2)
        address = rest[rest.index("//") + 3 : rest.index(":")].lstrip("0")
        if states:
            line = f"\ts_nop {states - 1}{rest}"
            yield "shortened", f"{address}: s_nop {states}", text[: nop.start()] + line + text[nop.end() :]


Check = Callable[[tk.Library], float]
"""The error of a call as a share of its bound."""


def covering(signatures: list[dict[str, Any]], draw: random.Random, pairs: bool) -> list[dict[str, Any]]:
    """Some that have every value of every axis between them; with `pairs` every two values."""
    if pairs:
        return [signatures[number] for number in sampling.sample(signatures, str(draw.random()))]
    order = draw.sample(signatures, len(signatures))
    wanted = {(name, value) for one in order for name, value in one.items()}
    found = []
    while wanted:
        best = max(order, key=lambda one: len(wanted & set(one.items())))
        found.append(best)
        wanted -= set(best.items())
    return found


def checks(library: tk.Library, family: str, dtype: str, draw: random.Random, pairs: bool) -> list[Check]:
    """Problems of several tiles each, in which every value of every axis stands, or with `pairs` every two."""
    here = f"_hip_{os.environ['TILEKILN_HIPSIM_ARCH']}"  # to ask the library would load a code object in this process
    every = [dict(one.signature) for one in library.instances() if one.family == family and one.name.endswith(here)]
    own = list({str(one): one for one in every if one["dtype"] == dtype}.values())
    made: list[Check] = []
    for number, signature in enumerate(covering(own, draw, pairs)):
        window = ((-1, 0), (40, 9))[number % 2] if signature.get("mask") == "window" else (-1, -1)
        options: dict[str, Any] = {}
        if family == attention.BACKWARD:
            dims = {"hdim_q": signature["hdim_q"], "hdim_v": signature["hdim_v"]}
            padding = ("none", "cu_seqlens" if signature["mode"] == "group" else "seqlen")[number // 2 % 2]
            sizes: Any = problems.Sizes(
                (70, 30), (150, 64), 2, 1, window=window, padding=padding, bias_heads=True, bias_batch=True, **dims
            )
            options["deterministic"] = bool(signature["deterministic"])
        else:
            rows, splits = ((5, 70), 0) if number % 2 else ((3, 1), 3)
            if signature.get("sink"):  # columns before the window of some split
                rows, splits, window = (3, 1), 3, (40, 9)
            sizes = kv_problems.Sizes(
                lengths_q=rows,
                lengths_k=(200, 65),
                nhead_q=4,
                nhead_k=2,
                window=window,
                page_size=(16, 64)[number // 2 % 2],
                num_splits=splits if family == "fmha_fwd_splitkv" else 0,
                sink_size=5 if signature.get("sink") else 0,
            )
        call = attention.call(family, attention.made(family, signature, sizes, number), attention.HIP, **options)
        made.append(functools.partial(held, operator=cases.operator_of(family), call=call))
    return made


def held(library: tk.Library, operator: str, call: Any) -> float:
    return cases.share(library, operator, call, Hip())


def outcome(library: tk.Library, every: list[Check], objects: Path, said: Path, covered: Path | None = None) -> str:
    """The kind of a fault, WRONG, HANG, or "" for nothing, of a process that takes code objects from a folder.

    covered: where it writes what it has executed.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(SECONDS)
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.environ["TILEKILN_HIPSIM_OBJECTS"] = str(objects)
            code = 0 if all(check(library) <= 1 for check in every) else 2
            if covered is not None:
                runtime().tilekiln_hipsim_note_coverage(os.fsencode(covered))
        except (RuntimeError, tk.NoKernelError):
            code = 3
        except AssertionError:  # something was written that must stay untouched
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGALRM, f"signal {os.WTERMSIG(status)}"
        return "HANG"
    code, text = os.WEXITSTATUS(status), said.read_text()
    assert code != 1, text
    if code == 3:
        fault = re.search(r"hipsim: (\w+):", text)
        return fault.group(1) if fault else text
    return "WRONG" if code else ""


def waits(covered: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """By digest and address of a wait: how often it was executed, and how many operations it has waited for."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    digest, listed = "", False
    for line in covered.read_text().splitlines():
        if line.endswith(":"):
            listed = line == "waits:"
            digest = digest if listed else line.split()[1][:-1]
        elif listed:
            address, executed, operations = line.split()
            found.setdefault(digest, {})[address] = (int(executed), int(operations))
    return found


def why(kind: str, executed: int, operations: int) -> str:
    """The reason why no problem saw an edit."""
    if kind == "shortened":
        return "guards what the executor does not model: it knows hazards of MFMA results alone"
    if not executed:
        return "not executed: a call of other features comes by it"
    if not operations:
        return "nothing outstanding: where two ways meet, the other one loads"
    return "waited for again: nothing touches the result before a later wait"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.hip.mutants")
    for name in ("library", "family", "dtype", "place"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--most", type=int, help="edits, drawn by --seed (all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--object", action="append", default=[], help="DIGEST=HSACO")
    asked = parser.parse_args(words)
    library = tk.Library(asked.library)
    draw = random.Random(f"{asked.seed} {asked.family} {asked.dtype}")
    every = checks(library, asked.family, asked.dtype, draw, pairs=bool(asked.object))
    place = Path(asked.place)
    plain, edited = place / "plain", place / "edited"
    plain.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as spare:
        said = Path(spare) / "said"
        covered = Path(spare) / "covered"
        seen = outcome(library, every, plain, said, covered)
        assert not seen, f"as it is: {seen}: {said.read_text()}"
        texts = {path.name: path.read_text() for path in sorted(plain.glob("*.s"))}
        edited.mkdir(exist_ok=True)
        report: dict[str, Any] = {"problems": len(every), "objects": sorted(texts), "seen": {}, "survived": {}}
        known = waits(covered)
        counted: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        if asked.object:
            for pair in asked.object:
                digest, _, hsaco = pair.partition("=")
                assert f"{digest}.s" in texts, f"no problem launches {digest}: {sorted(texts)}"
                (edited / f"{digest}.hsaco").write_bytes(Path(hsaco).read_bytes())
                kind = outcome(library, every, edited, said)
                (edited / f"{digest}.hsaco").unlink()
                report["seen"].setdefault(digest, []).append(kind)
        else:
            listed = [(name, *edit) for name, text in texts.items() for edit in edits(text)]
            if asked.most is not None:
                listed = draw.sample(listed, min(asked.most, len(listed)))
            for name, kind, what, text in listed:
                for other, plain_text in texts.items():
                    (edited / other).write_text(text if other == name else plain_text)
                fault = outcome(library, every, edited, said)
                counted[kind][fault or "survived"] += 1
                if not fault:
                    counts = known[name.removesuffix(".s")].get(what.partition(":")[0], (0, 0))
                    report["survived"].setdefault(why(kind, *counts), []).append(f"{name[:4]} {what}, {kind}")
        report["seen"] |= {kind: dict(counts) for kind, counts in counted.items()}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main(sys.argv[1:]))
