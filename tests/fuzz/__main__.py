# SPDX-License-Identifier: MIT
"""The fuzzer: random calls of every operator against the float64 reference, wrong calls against their refusal.

Arrays lie against inaccessible pages, outputs begin poisoned, canaries lie beside them. A case that fails is printed
with the command that runs it alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import signal
import subprocess
import sys
import threading
import time

import tilekiln as tk
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tests.fuzz.calls import KINDS, Case
from tests.fuzz.worker import describe, libraries, run, some_cases
from tests.python.drawn import OPERATORS

ENDLESS = 10**12


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/dev python tests/fuzz",
        description=__doc__,
        epilog="First build what it shall call, for every ISA: tools/dev scons receipt=flash,ck_default target=all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, help="stop after so long (1, unless --calls is given)")
    parser.add_argument("--calls", type=int, help="stop after so many calls")
    parser.add_argument("--seed", type=int, help="the first seed (today's date as a number: 20261121 ...)")
    parser.add_argument(
        "--receipt", default="flash", help="receipts or files of libraries, separated by commas (flash)"
    )
    parser.add_argument(
        "--beside", default="", help="a receipt or file: opened first with its names visible to all (RTLD_GLOBAL)"
    )
    parser.add_argument("--operator", choices=tuple(OPERATORS), default="", help="only this one")
    parser.add_argument(
        "--kind",
        choices=KINDS,
        default="",
        help="only right calls, only wrong ones, those made from the declarations, those with any strides, or right "
        "ones on tensors, which no other run makes",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (1)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the tenth failure")
    parser.add_argument("--replay", metavar="CASE", help="run one case, RECEIPT/OPERATOR/KIND/SEED, and show it")
    asked = parser.parse_args(words)
    for name, least in (("minutes", 0), ("calls", 1), ("jobs", 1), ("seed", 0)):
        value = getattr(asked, name)
        if value is not None and value < least:
            parser.error(f"--{name} was {value}, must be {least} or more")
    if asked.replay:
        try:
            asked.replay = Case.parse(asked.replay)
        except ValueError as error:
            parser.error(f"--replay: {error}")
    if asked.minutes is None and asked.calls is None:
        asked.minutes = 1.0
    if asked.seed is None:
        asked.seed = int(time.strftime("%Y%m%d")) * 1_000_000
    return asked


class Worker:
    """One process of cases. When it dies, the case that it had told last is the culprit, and another one goes on."""

    def __init__(self, asked: argparse.Namespace, first: int, step: int, end: int, said: queue.Queue) -> None:
        self.asked, self.next, self.step, self.end, self.said = asked, first, step, end, said
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        try:
            while not self.stopped and self.next < self.end:
                self._one_process()
        finally:
            self.said.put(("done", "", None))

    def command(self) -> list[str]:
        asked = self.asked
        words = [asked.receipt, asked.beside, asked.operator, asked.kind, self.next, self.step, self.end]
        return [sys.executable, "-m", "tests.fuzz.worker", *map(str, words)]

    def _one_process(self) -> None:
        self.process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        last = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            mark, case, *rest = line.rstrip("\n").split(" ", 2)
            if mark == ">":
                last, self.next = case, self.next + self.step
                self.said.put(("ran", case, None))
            else:
                self.said.put(("wrong", case, json.loads(rest[0])))
        _, errors = self.process.communicate()
        code = self.process.returncode
        if self.stopped or code == 0:
            return
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.said.put(("wrong", last or "the start", [f"the process ended: {ended}\n{errors[-2000:]}", ""]))
        if not last:
            self.stopped = True

    def stop(self) -> None:
        self.stopped = True
        if self.process is not None:
            self.process.kill()


def fuzz(asked: argparse.Namespace) -> int:
    """Runs until the time or the count is over, or Ctrl-C; prints what fails. The exit code: 0, or 1 with failures."""
    said: queue.Queue = queue.Queue()
    end = asked.seed + (asked.calls or ENDLESS)
    began = time.monotonic()
    workers = [Worker(asked, asked.seed + job, asked.jobs, end, said) for job in range(asked.jobs)]
    counts: collections.Counter[str] = collections.Counter()
    failures, running = 0, len(workers)
    columns = (TextColumn("{task.completed} calls, {task.fields[failed]} failed"), BarColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as progress:
            task = progress.add_task("", total=asked.calls, failed=0)
            while running:
                left = None if asked.minutes is None else asked.minutes * 60 - (time.monotonic() - began)
                try:
                    what, case, rest = said.get(timeout=None if left is None else max(0.0, left))
                except queue.Empty:
                    break
                if what == "done":
                    running -= 1
                elif what == "ran":
                    counts["/".join(case.split("/")[1:3])] += 1
                    progress.update(task, advance=1, failed=failures)
                else:
                    failures += 1
                    progress.console.print(_report(asked, case, *rest), markup=False, highlight=False, soft_wrap=True)
                    if failures == 10 and not asked.keep_going:
                        break
    except KeyboardInterrupt:
        print("interrupted; until then:")
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.thread.join()
    for name, count in sorted(counts.items()):
        print(f"{count:8,}  {name}")
    print(f"{sum(counts.values()):8,}  calls in {time.monotonic() - began:.0f} s, {failures} failed, seed {asked.seed}")
    return 1 if failures or not counts else 0


def _report(asked: argparse.Namespace, case: str, wrong: str, call: str) -> str:
    """Commands run the case alone, and after the cases before it of its process."""
    command = "tools/dev python tests/fuzz"
    receipts = f"{command} --receipt {asked.receipt}" + (f" --beside {asked.beside}" if asked.beside else "")
    said = f"FAILED {case}\n  {wrong}\n  {call}\n  again: {command} --replay {case}\n"
    if not (seed := case.rpartition("/")[2]).isdecimal():
        return said
    whole = "".join(f" --{name} {value}" for name in ("operator", "kind") if (value := getattr(asked, name)))
    calls = int(seed) - asked.seed + 1
    return f"{said}  with those before it: {receipts}{whole} --jobs {asked.jobs} --seed {asked.seed} --calls {calls}\n"


def replay(case: Case, library: tk.Library) -> int:
    """Runs one case in this process, so that a debugger sees it."""
    print(describe(library, case), flush=True)  # before it runs: it may end the process
    wrong, _ = run(library, case)
    print(f"FAILED {case}\n  {wrong}" if wrong else f"{case} holds")
    return 1 if wrong else 0


def opened(asked: argparse.Namespace) -> dict[str, tk.Library]:
    """By receipt, what has the cases that are asked for. Raises what `libraries` and `some_cases` do."""
    found = libraries(asked.receipt.split(","), asked.beside)
    case = asked.replay
    if not case:
        some_cases(found, asked.operator, asked.kind)
        return found
    if case.receipt not in found:
        found |= libraries([case.receipt])
    some_cases({case.receipt: found[case.receipt]}, case.operator, case.kind)
    return found


def main() -> int:
    asked = parse()
    try:
        found = opened(asked)
    except (LookupError, OSError, ImportError, ValueError) as error:
        print(f"tests/fuzz: {error}", file=sys.stderr)
        return 2
    return replay(asked.replay, found[asked.replay.receipt]) if asked.replay else fuzz(asked)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
