# SPDX-License-Identifier: MIT
"""Jobs as SCons nodes. A signature is what is in command and files: no launcher, no path of this machine, no time.

Actions are Python functions with one digest as their only variable: SCons then substitutes no command line and looks
for no tool on PATH, which is half of what a no-op build costs otherwise (0.45 instead of 1.5 ms for each job).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from SCons.Script import Action, Builder, Environment, SourceFileScanner
from SCons.Tool import CScanner

from codegen.emit import includes
from codegen.schema.tree import tree

from . import console, external_operators, jobs, journal, measured, memory, outputs, shared
from .budget import Budget
from .cache import CheckedCache
from .jobs import Job
from .request import Request


def run_job(target: Any, source: Any, env: Any) -> int:
    job: Job = env["JOB"]
    if is_taken(job, target[0], env["JOURNAL"]):
        return 0
    code = jobs.run(job, str(target[0]), [str(node) for node in source])
    if code == 0 and not job.shared:
        env["JOURNAL"].add(str(target[0]), journal.signature(job.digest, target[0].children()))
    return code


def is_taken(job: Job, target: Any, known: journal.Journal) -> bool:
    """Whether a build that was killed has made the file already, from the same."""
    if job.taken is None:
        where = str(target)
        job.taken = known.knows(where) and known.takes(where, journal.signature(job.digest, target.children()))
    return job.taken


def say_job(target: Any, source: Any, env: Any) -> str:
    job: Job = env["JOB"]
    if is_taken(job, target[0], env["JOURNAL"]):
        return ""
    if job.verbose and job.text is None:
        return job.command_line(str(target[0]), [str(node) for node in source])
    return console.action(job.verb, job.label)


for _suffix in (".cu", ".hip"):  # either is compiled for GPUs of both makers
    SourceFileScanner.add_scanner(_suffix, CScanner)


class Graph:
    """Makes nodes below `here`, the directory of SConscript as SCons names it."""

    def __init__(self, request: Request, here: str, include: Sequence[str]) -> None:
        self.request, self.here, self.places = request, here, tree().places
        self.include = list(include)
        self.outside = external_operators.headers(self.places, request.variant.directory)
        action = Action(run_job, say_job, varlist=["DIGEST"])
        self.env = Environment(
            tools=[],
            CACHEDIR_CLASS=CheckedCache,
            CPPPATH=[self.node_path(path) for path in (*include, *self.outside)],
            BUILDERS={
                # Sources somebody writes are scanned for headers; generated ones say what they hold in Job.content.
                "Written": Builder(action=action, source_scanner=SourceFileScanner),
                "Generated": Builder(action=action),
            },
        )
        place = self.env.Dir(self.node_path(request.variant.directory)).abspath
        self.env["JOURNAL"] = self.journal = journal.Journal(place, not request.dry)
        # CPU time and memory of each job when it was last made.
        self.known = measured.read(place)
        self.compiled: list[dict[str, object]] = []  # entries of compile_commands.json
        self.headers_read: includes.Read = {}
        self.made: list[Any] = []  # every node that a job makes

    def at(self, path: str) -> str:
        """A path of the tree as commands see it, relative to where they run."""
        path = external_operators.path_of(self.places, self.request.variant.directory, path)
        return path if self.here == "." else os.path.normpath(os.path.join(self.here, path))

    def node_path(self, path: str) -> str:
        """The same as SCons sees it: # is where commands run."""
        return "#" + self.at(path)

    def step(self, target: str, job: Job, sources: Sequence[Any] = (), scan: bool = False) -> Any:
        job.verbose = self.request.verbose
        job.log = self.at(self.request.variant.directory)
        known = self.known.get(self.at(target))
        job.need = known.peak if known else job.need or memory.UNMEASURED["rows"][self.request.variant.mode]
        make = self.env.Written if scan else self.env.Generated
        inputs = [self.env.File(self.node_path(source)) if isinstance(source, str) else source for source in sources]
        node = make(self.node_path(target), inputs, DIGEST=job.digest, JOB=job)[0]
        if self.journal.knows(str(node)):
            self.env.Precious(node)  # SCons would remove it before say_job can look at it
        self.made.append(node)
        return node

    def shared(
        self, target: str, job: Job, sources: Sequence[str], include: Sequence[str], objects: Sequence[Any] = ()
    ) -> Any:
        """A file that all variants of a mode share. It is a node without a job while its stamp is right.

        With `objects` the job takes them, which are made of `sources` as job.content says.
        """
        node = self.env.File(self.node_path(target))
        places = [self.at(path) for path in (os.path.dirname(sources[0]), *include)]
        job.shared = shared.signature(job.digest, [self.at(source) for source in sources], places)
        if shared.current(node.abspath, job.shared):
            return node
        job.content = job.shared  # a cache knows it by that
        return self.env.AlwaysBuild(self.step(target, job, objects or sources))[0]

    def remake_damaged(self) -> None:
        """Makes outputs anew that differ from what the last build wrote, whatever their inputs say."""
        place = self.env.Dir(self.node_path(self.request.variant.directory)).abspath
        if not os.path.isdir(place):
            return
        damaged = outputs.damaged(self.made, place)
        for node in damaged:
            console.block(f"damaged: {node} is not what the last build wrote; it is made anew")
            self.env.AlwaysBuild(node)
        if not damaged and not self.request.dry:
            outputs.compared(place)

    def compile(
        self,
        source: str,
        target: str,
        what: str,
        include: Sequence[str],
        *,
        flags: Sequence[str] = (),
        defines: Sequence[str] = (),
        content: str = "",
        label: str = "",
        instances: Sequence[str] = (),
        unsigned: Sequence[str] = (),
        after: Sequence[Sequence[str]] = (),
        holds: Sequence[str] = (),
    ) -> Any:
        """The object of one source, which the commands `after` may alter. With `content` (what it and its headers hold)
        SCons does not read it. `holds`: sources that it includes, of which editors ask by name."""
        tools = self.request.toolchain
        paths = [self.at(path) for path in include]
        # Two objects of one source, as one engine for two targets, differ in the seed as well.
        command = tools.compile(self.at(source), what, paths, flags, defines, seed=target.rpartition("/obj/")[2])
        for one in (*holds, source):
            words = [self.at(one) if word == self.at(source) else word for word in command]
            self.compiled.append({"file": self.at(one), "output": self.at(target), "arguments": [*words, *unsigned]})
        job = Job(
            "compile",
            label or source,
            [[*command, "-o", jobs.OUT], *after],
            identity=tools.identity,
            content=content,
            instances=instances,
            launcher=self.request.launcher,
            need=memory.UNMEASURED[what][self.request.variant.mode],
            unsigned=[*tools.prefix_map, *unsigned],
        )
        return self.step(target, job, () if content else (source,), scan=not content)

    def join(self, target: str, objects: Sequence[Any], keep: Sequence[str], label: str) -> Any:
        """One file of many objects; of what others could have too only the symbols of `keep` are visible."""
        tools = self.request.toolchain
        commands = tools.join(jobs.INPUTS, jobs.OUT, keep, f"{jobs.OUT}{jobs.SCRATCH}")
        return self.step(target, Job("join", label, commands, tools.identity), objects)

    def link(
        self,
        target: str,
        objects: Sequence[Any],
        *,
        flags: Sequence[str] = (),
        shared: bool = False,
        content: str = "",
        needs: Sequence[Any] = (),
        summary: str = "",
        budget: Budget | None = None,
        wrong: Callable[[str], str] | None = None,
    ) -> Any:
        tools = self.request.toolchain
        command = [*tools.link(shared), "-o", jobs.OUT, jobs.INPUTS, *flags, "-pthread"]
        job = Job("link", target, [command], tools.identity, content, summary=summary, budget=budget, wrong=wrong)
        node = self.step(target, job, objects)
        self.env.Depends(
            node, [self.env.File(self.node_path(need)) if isinstance(need, str) else need for need in needs]
        )
        return node

    def write(self, target: str, text: str, needs: Sequence[Any] = ()) -> Any:
        node = self.step(target, Job("write", target, [], text=text))
        self.env.Depends(node, needs)
        return node

    def compiledb(self) -> Any:
        """compile_commands.json of everything declared so far. It alone names this directory: editors need that."""
        where = self.env.Dir("#").abspath
        entries = [{"directory": where, **entry} for entry in self.compiled]
        return self.write("compile_commands.json", json.dumps(entries, indent=1) + "\n")
