"""tools/executor: what runs GPU code objects on a CPU, for tests: a library that all variants of a mode share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import console, jobs

if TYPE_CHECKING:
    from .graph import Graph

SOURCES = "tools/executor/amdgcn"
FLAGS = ("-O3", "-fno-math-errno")  # -O2 takes 1.3 times as long to run a kernel


def amdgcn(graph: Graph) -> Any:
    """The library, or None in a tree without the sources. Its objects lie in the variant that is first to need it."""
    folder = graph.env.Dir(graph.node_path(SOURCES)).abspath
    if not os.path.isdir(folder):
        return None
    variant, tools = graph.request.variant, graph.request.toolchain
    sources = [f"{SOURCES}/{name}" for name in sorted(os.listdir(folder)) if name.endswith(".cpp")]
    objects = [
        graph.compile(
            source,
            f"{variant.directory}/obj/executor/{os.path.basename(source).removesuffix('.cpp')}.o",
            "runtime",
            [SOURCES],
            flags=FLAGS,
        )
        for source in sources
    ]
    target = f"{variant.executor_directory}/libamdgcn.so"
    job = jobs.Job(
        "link",
        target,
        [[*tools.link(True), "-o", jobs.OUT, jobs.INPUTS, "-pthread"]],
        tools.identity,
        content=" ".join(tools.compile(SOURCES, "runtime", [SOURCES], FLAGS)),  # of the objects
        summary=f"{console.line('built', target)}: @size@",
    )
    return graph.shared(target, job, sources, [SOURCES], objects)
