# SPDX-License-Identifier: MIT
"""Actions of build steps. A job writes beside its target and renames, so nothing half-written is ever trusted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from codegen.schema import sizes

from . import console, lock, measured, memory, shared
from .budget import Budget

OUT = "@out@"  # where the job writes
SCRATCH = ".scratch"  # after OUT: a file between two commands
INPUTS = "@inputs@"  # its sources, in a response file: thousands of names are longer than a command line may be


Run = Callable[[Sequence[str], bytes], tuple[int, bytes]]
"""Runs a program with an input; its exit code (negative: the signal), and all that it said."""
Inside = Callable[[Sequence[str], Run], tuple[int, bytes]]
"""Does what a script does with its arguments, as Run says of it: to start a Python takes longer than a short script."""


@dataclass
class Job:
    verb: str  # compile, join, link, write: what people see
    label: str
    commands: Sequence[Sequence[str]]
    identity: str = ""  # of the tools
    content: str = ""  # what the inputs hold, where SCons does not read them itself
    instances: Sequence[str] = ()  # the kernels in what it makes
    launcher: Sequence[str] = ()  # outside the signature, as are `unsigned` arguments of the first command
    unsigned: Sequence[str] = ()
    inside: Inside | None = None  # what the first command, a Python script, does: outside the signature, too
    text: str | None = None  # a job without commands writes this
    summary: str = ""  # said when done
    budget: Budget | None = None  # what the target may weigh
    wrong: Callable[[str], str] | None = None  # says what is wrong with the file that was made; outside the signature
    log: str = ""  # the directory of measured.jsonl
    need: float = 0  # bytes of memory it is expected to take
    shared: str = ""  # of what variants share: the signature for its stamp (build_support.shared)
    beside: str = ""  # ending of a further file that the commands may leave beside OUT; nothing depends on it
    verbose: bool = field(default=False)
    taken: bool | None = field(
        default=None
    )  # whether a build that was then killed has finished it; None: nobody looked yet

    @property
    def digest(self) -> str:
        signed = [
            self.identity,
            self.content,
            self.text or "",
            *(arg for command in self.commands for arg in (*command, "")),
            *([str(self.budget.bytes)] if self.budget else []),
        ]
        return hashlib.sha256("\0".join(signed).encode()).hexdigest()[:32]

    def argv(self, command: Sequence[str], out: str, inputs: str) -> list[str]:
        return [inputs if arg == INPUTS else arg.replace(OUT, out) for arg in command]

    def command_line(self, out: str, sources: Sequence[str]) -> str:
        """The commands as people can run them again."""
        lines = []
        for index, command in enumerate(self.commands):
            whole = [*(self.launcher if index == 0 else ()), *command, *(self.unsigned if index == 0 else ())]
            expanded = [part for arg in whole for part in (sources if arg == INPUTS else [arg.replace(OUT, out)])]
            lines.append(shlex.join(expanded))
        return " && ".join(lines)


# Signals that people and machines stop a build with, and how a shell reports them of a child.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(job: Job, target: str, sources: Sequence[str]) -> int:
    """Runs the job, or finds that another build has just made what variants share; returns as `_run_whole`."""
    if not job.shared:
        return _run_whole(job, target, sources)
    with lock.held(os.path.dirname(target)):
        return 0 if shared.current(target, job.shared) else _run_whole(job, target, sources)


def finished(job: Job, target: str) -> None:
    """To be called when the target is there, whether made or taken from a cache."""
    if job.shared:
        shared.made(target, job.shared)


def _run_whole(job: Job, target: str, sources: Sequence[str]) -> int:
    """Runs the job; returns 0, or the exit code of the command that failed after saying all that helps.

    Commands killed for memory are run again beside half as many jobs, at last alone.
    """
    gate, need = memory.gate(), job.need
    while True:
        with gate.entered(need) if job.commands else contextlib.nullcontext(memory.Entry()) as entry:
            done = _attempt(job, target, sources)
        if done.killed and entry.beside > 1:
            need = max(need, done.peak)
            console.block(
                f"killed for memory: {job.verb} {job.label}, beside {entry.beside - 1} more. "
                f"Again, with at most {gate.fewer(entry.beside)} at once from now on."
            )
            continue
        break
    if done.stopped:
        console.block(f"interrupted: {job.verb} {job.label}")
    elif done.code != 0:
        console.block(done.why + failure(job, target, sources))
    elif job.summary:
        console.block(job.summary.replace("@size@", sizes.shown(os.path.getsize(target))))
    return done.code


@dataclass
class Done:
    code: int = 0
    why: str = ""  # it failed
    peak: int = 0  # bytes of its largest process
    killed: bool = False  # for want of memory
    stopped: bool = False  # by somebody who ended the build


def _attempt(job: Job, target: str, sources: Sequence[str]) -> Done:
    """Runs the commands once. The target is there only when all went well."""
    new = f"{target}.{os.getpid()}.new"
    response = f"{new}.inputs"
    done, programs, start = Done(), Programs(), time.time()
    try:
        if job.text is not None:
            with open(new, "w", encoding="utf-8") as file:
                file.write(job.text)
        if any(INPUTS in command for command in job.commands):
            with open(response, "w", encoding="utf-8") as file:
                file.writelines(f"{source}\n" for source in sources)
        for index, command in enumerate(job.commands):
            argv = job.argv(command, new, f"@{response}")
            if index == 0 and job.inside is not None:
                code, said = job.inside([*argv[1:], *job.unsigned], programs.run)
            else:
                code, said = programs.run([*job.launcher, *argv, *job.unsigned] if index == 0 else argv)
            done.peak = programs.peak
            done.killed = memory.was_killed(code, said)
            done.stopped = any(code in (-stop, 128 + stop) for stop in STOPS)
            if said and not done.killed and not done.stopped:
                console.block(said.decode(errors="replace"))
            if code != 0:
                done.code = abs(code)
                done.why = does_not_fit(done.peak) if done.killed else ended(code)
                return done
        if job.budget is not None and (over := job.budget.exceeded(target, new, sources)):
            return Done(1, over)
        if job.wrong is not None and (why := job.wrong(new)):
            return Done(1, why)
        if job.beside:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{new}{job.beside}", f"{target}{job.beside}")
        os.replace(new, target)
        finished(job, target)
    except OSError as error:
        return Done(1, f"{error}\n")
    finally:
        for path in (new, f"{new}{SCRATCH}", *([f"{new}{job.beside}"] if job.beside else []), response):
            with contextlib.suppress(OSError):
                os.remove(path)
    if job.commands:
        console.progress.ran(job.verb, programs.cpu, done.peak)
    if job.log and job.commands:
        measured.append(
            job.log,
            measured.Measured(target, job.verb, job.label, programs.cpu, done.peak, start, time.time(), memory.began),
        )
    return done


class Programs:
    """Those of a job: the CPU time of all, and the memory of the largest."""

    def __init__(self) -> None:
        self.cpu, self.peak = 0.0, 0

    def run(self, argv: Sequence[str], given: bytes = b"") -> tuple[int, bytes]:
        """The exit code (negative: the signal) and what was said, of a program whose input is `given`."""
        stdin = subprocess.PIPE if given else None
        process = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin:  # it says itself why it reads no further
                process.stdin.write(given)
        with process.stdout:
            said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu += usage.ru_utime + usage.ru_stime
        self.peak = max(self.peak, usage.ru_maxrss * 1024)
        return process.returncode, said


def does_not_fit(peak: int) -> str:
    return (
        f"killed for memory, although nothing ran beside it: it had taken {sizes.shown(peak)}, and "
        f"{sizes.shown(memory.free())} are free now. Give the machine or container more memory or swap, "
        "or end what else runs on it.\n"
    )


def ended(code: int) -> str:
    """A sentence on a compiler that a signal ended, which had no time to print one; "" for others."""
    if code >= 0:
        return ""
    fault = -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE)
    return f"ended by {signal.Signals(-code).name}{': a fault of the compiler' if fault else ''}\n"


def failure(job: Job, target: str, sources: Sequence[str]) -> str:
    lines = [console.red(f"failed: {job.verb} {job.label}")]
    if job.instances:
        lines.append(f"It holds {len(job.instances)} instance{'s' if len(job.instances) > 1 else ''}:")
        lines += [f"  {name}" for name in job.instances]
    lines += ["To reproduce:", f"  cd {shlex.quote(os.getcwd())} && {job.command_line(target, sources)}"]
    return "\n".join(lines)
