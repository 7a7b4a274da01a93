"""tools/executor: what runs GPU code objects on a CPU, as a library that the tests load."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import console

if TYPE_CHECKING:
    from .graph import Graph

SOURCES = "tools/executor/amdgcn"
FLAGS = ("-O3", "-fno-math-errno")  # -O2 takes 1.3 times as long to run a kernel


def amdgcn(graph: Graph) -> Any:
    """The library, or None in a tree without the sources."""
    folder = graph.env.Dir(graph.node_path(SOURCES)).abspath
    if not os.path.isdir(folder):
        return None
    variant = graph.request.variant
    objects = [
        graph.compile(
            f"{SOURCES}/{name}",
            f"{variant.directory}/obj/executor/{name.removesuffix('.cpp')}.o",
            "runtime",
            [SOURCES],
            flags=FLAGS,
        )
        for name in sorted(os.listdir(folder))
        if name.endswith(".cpp")
    ]
    target = f"build/executor-{variant.mode}/libamdgcn.so"
    return graph.link(target, objects, shared=True, summary=f"{console.line('built', target)}: @size@")
