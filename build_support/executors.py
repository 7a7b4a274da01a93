# SPDX-License-Identifier: MIT
"""tools/executor: what runs GPU code objects on a CPU, for tests: libraries that all variants of a mode share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codegen.emit import includes
from codegen.emit.flags import SELF_CONTAINED

from . import console, jobs

if TYPE_CHECKING:
    from .graph import Graph

COMMON, AMDGCN, HIPSIM, PTX, CUDASIM = (
    f"tools/executor/{name}" for name in ("common", "amdgcn", "hipsim", "ptx", "cudasim")
)
FLAGS = ("-O3", "-fno-math-errno", "-fno-strict-aliasing")  # -O2 takes 1.3 times as long to run a kernel
MOST = 8
"""Sources of a unit: with one that changes all of them are compiled again."""


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
    sources = _sources(graph, folder)
    count = -(-len(sources) // MOST)
    parts = [sources[at * len(sources) // count : (at + 1) * len(sources) // count] for at in range(count)]
    paths = [*([COMMON] if folder == COMMON else include), "."]
    return [_unit(graph, folder, at, part, paths) for at, part in enumerate(parts, 1)]


def _unit(graph: Graph, folder: str, at: int, sources: list[str], paths: Sequence[str]) -> Any:
    """The object of some sources of a folder as one unit: more than half of the time of each is that of its headers."""
    directory, name = graph.request.variant.directory, f"executor/{os.path.basename(folder)}_{at}"
    known = graph.env.File(graph.node_path(f"{directory}/obj/{name}.o"))
    if known.has_builder():
        return known
    unit = f"{directory}/gen/{name}.cpp"
    written = graph.write(unit, "".join(f'#include "{source}"\n' for source in sources))
    node = graph.compile(
        unit,
        f"{directory}/obj/{name}.o",
        "runtime",
        paths,
        flags=FLAGS,
        content=includes.digest(sources, [graph.at(path) for path in (".", folder, *paths)], graph.headers_read),
        label=f"{folder}, part {at}",
        holds=sources,
    )
    graph.env.Depends(node, written)
    return node


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
