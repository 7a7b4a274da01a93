"""What one build step runs. A job writes beside its target and renames, so nothing half-written is ever trusted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import console

OUT = "@out@"  # where the job writes
SCRATCH = ".scratch"  # after OUT: a file between two commands
INPUTS = "@inputs@"  # its sources, in a response file: thousands of names are longer than a command line may be


@dataclass
class Job:
    verb: str  # compile, join, link, write: what people see
    label: str
    commands: Sequence[Sequence[str]]
    identity: str = ""  # of the tools
    content: str = ""  # what the inputs hold, where SCons does not read them itself
    instances: Sequence[str] = ()  # the kernels in this unit
    launcher: Sequence[str] = ()  # outside the signature, as are `unsigned` arguments of the first command
    unsigned: Sequence[str] = ()
    text: str | None = None  # a job without commands writes this
    summary: str = ""  # said when done
    verbose: bool = field(default=False)

    @property
    def digest(self) -> str:
        signed = [
            self.identity,
            self.content,
            self.text or "",
            *(arg for command in self.commands for arg in (*command, "")),
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


def run(job: Job, target: str, sources: Sequence[str]) -> int:
    """Runs the job; returns 0, or the exit code of the command that failed after saying all that helps."""
    new = f"{target}.{os.getpid()}.new"
    response = f"{new}.inputs"
    try:
        if job.text is not None:
            with open(new, "w", encoding="utf-8") as file:
                file.write(job.text)
        if any(INPUTS in command for command in job.commands):
            with open(response, "w", encoding="utf-8") as file:
                file.writelines(f"{source}\n" for source in sources)
        for index, command in enumerate(job.commands):
            argv = job.argv(command, new, f"@{response}")
            if index == 0:
                argv = [*job.launcher, *argv, *job.unsigned]
            result = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if result.stdout:
                console.block(result.stdout.decode(errors="replace"))
            if result.returncode != 0:
                console.block(ended(result.returncode) + failure(job, target, sources))
                return abs(result.returncode)
        os.replace(new, target)
    except OSError as error:
        console.block(f"{error}\n{failure(job, target, sources)}")
        return 1
    finally:
        for path in (new, f"{new}{SCRATCH}", response):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
    if job.summary:
        console.block(job.summary.replace("@size@", size(os.path.getsize(target))))
    return 0


def ended(code: int) -> str:
    """What to say of a compiler that a signal ended; it has had no time to say it itself."""
    if code >= 0:
        return ""
    hint = ": out of memory? fewer at once with -j1" if -code == signal.SIGKILL else ": a fault of the compiler"
    return f"ended by {signal.Signals(-code).name}{hint}\n"


def failure(job: Job, target: str, sources: Sequence[str]) -> str:
    lines = [console.red(f"failed: {job.verb} {job.label}")]
    if job.instances:
        lines.append(f"It holds {len(job.instances)} instance{'s' if len(job.instances) > 1 else ''}:")
        lines += [f"  {name}" for name in job.instances]
    lines += ["To reproduce:", f"  cd {shlex.quote(os.getcwd())} && {job.command_line(target, sources)}"]
    return "\n".join(lines)


def size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
