# SPDX-License-Identifier: MIT
"""tools/executor: what runs GPU code objects on a CPU, for tests: libraries that all variants of a mode share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codegen.emit.flags import SELF_CONTAINED

from . import console, jobs

if TYPE_CHECKING:
    from .graph import Graph

COMMON, AMDGCN, HIPSIM, PTX, CUDASIM = (
    f"tools/executor/{name}" for name in ("common", "amdgcn", "hipsim", "ptx", "cudasim")
)
FLAGS = ("-O3", "-fno-math-errno", "-fno-strict-aliasing")  # -O2 takes 1.3 times as long to run a kernel


def libraries(graph: Graph) -> list[Any]:
    """The executors, and over each the runtime of its vendor under the name that programs look for.

    Nothing in a tree without the sources. Objects lie in the variant that is first to need them.
    """
    made = []
    for executor, runtime, name, runtime_name in (
        (AMDGCN, HIPSIM, "libamdgcn.so", "hipsim/libamdhip64.so"),
        (PTX, CUDASIM, "libptx.so", "cudasim/libcuda.so.1"),
    ):
        if not os.path.isdir(_folder(graph, executor)):
            continue
        include = [COMMON, executor]
        objects = [one for folder in include for one in _objects(graph, folder, include)]
        made.append(_library(graph, name, include, include, objects))
        if os.path.isdir(_folder(graph, runtime)):
            objects = [*objects, *_objects(graph, runtime, include)]
            made.append(_library(graph, runtime_name, include, [*include, runtime], objects))
    return made


def _folder(graph: Graph, folder: str) -> str:
    return str(graph.env.Dir(graph.node_path(folder)).abspath)


def _sources(graph: Graph, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in sorted(os.listdir(_folder(graph, folder))) if name.endswith(".cpp")]


def _objects(graph: Graph, folder: str, include: Sequence[str]) -> list[Any]:
    """`include` begins with the common folder, whose objects belong to each executor: one place, compiled once."""
    place = f"{graph.request.variant.directory}/obj/executor/{os.path.basename(folder)}"
    paths = [COMMON] if folder == COMMON else include
    made = []
    for source in _sources(graph, folder):
        target = f"{place}/{os.path.basename(source).removesuffix('.cpp')}.o"
        known = graph.env.File(graph.node_path(target))
        made.append(known if known.has_builder() else graph.compile(source, target, "runtime", [*paths], flags=FLAGS))
    return made


def _library(graph: Graph, name: str, include: Sequence[str], folders: Sequence[str], objects: list[Any]) -> Any:
    tools, target = graph.request.toolchain, f"{graph.request.variant.executor_directory}/{name}"
    job = jobs.Job(
        "link",
        target,
        [[*tools.link(True), *SELF_CONTAINED, "-o", jobs.OUT, jobs.INPUTS, "-pthread"]],
        tools.identity,
        content=" ".join(tools.compile(include[-1], "runtime", [*include], FLAGS)),  # of the objects
        summary=f"{console.line('built', target)}: @size@",
    )
    sources = [source for folder in folders for source in _sources(graph, folder)]
    return graph.shared(target, job, sources, [*folders], objects)
