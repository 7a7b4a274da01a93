"""tools/executor: what runs GPU code objects on a CPU, for tests: libraries that all variants of a mode share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import console, jobs

if TYPE_CHECKING:
    from .graph import Graph

COMMON, EXECUTOR, HIPSIM = (f"tools/executor/{name}" for name in ("common", "amdgcn", "hipsim"))
FLAGS = ("-O3", "-fno-math-errno")  # -O2 takes 1.3 times as long to run a kernel


def libraries(graph: Graph) -> list[Any]:
    """The executor, and the HIP runtime over it under the name that programs look for.

    Nothing in a tree without the sources. Objects lie in the variant that is first to need them.
    """
    if not os.path.isdir(_folder(graph, EXECUTOR)):
        return []
    executor = [*_objects(graph, COMMON), *_objects(graph, EXECUTOR)]
    made = [_library(graph, "libamdgcn.so", [COMMON, EXECUTOR], executor)]
    if os.path.isdir(_folder(graph, HIPSIM)):
        objects = [*executor, *_objects(graph, HIPSIM)]
        made.append(_library(graph, "hipsim/libamdhip64.so", [COMMON, EXECUTOR, HIPSIM], objects))
    return made


def _folder(graph: Graph, folder: str) -> str:
    return str(graph.env.Dir(graph.node_path(folder)).abspath)


def _sources(graph: Graph, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in sorted(os.listdir(_folder(graph, folder))) if name.endswith(".cpp")]


def _objects(graph: Graph, folder: str) -> list[Any]:
    place = f"{graph.request.variant.directory}/obj/executor/{os.path.basename(folder)}"
    return [
        graph.compile(
            source,
            f"{place}/{os.path.basename(source).removesuffix('.cpp')}.o",
            "runtime",
            [COMMON, EXECUTOR],
            flags=FLAGS,
        )
        for source in _sources(graph, folder)
    ]


def _library(graph: Graph, name: str, folders: list[str], objects: list[Any]) -> Any:
    tools, target = graph.request.toolchain, f"{graph.request.variant.executor_directory}/{name}"
    job = jobs.Job(
        "link",
        target,
        [[*tools.link(True), "-o", jobs.OUT, jobs.INPUTS, "-pthread"]],
        tools.identity,
        content=" ".join(tools.compile(EXECUTOR, "runtime", [COMMON, EXECUTOR], FLAGS)),  # of the objects
        summary=f"{console.line('built', target)}: @size@",
    )
    sources = [source for folder in folders for source in _sources(graph, folder)]
    return graph.shared(target, job, sources, folders, objects)
