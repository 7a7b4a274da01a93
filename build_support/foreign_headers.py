# SPDX-License-Identifier: MIT
"""A library of one C++ file over headers that a Python package ships, without Python: for JAX, for PyTorch."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from codegen.emit.flags import EXPORTS, SELF_CONTAINED

from . import console, jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph import Graph


def library(graph: Graph, source: str, name: str, package: str, headers: Sequence[str]) -> Any:
    """The library, or None without the package, which is not imported for that. headers: below its include."""
    if not os.path.exists(graph.env.File(graph.node_path(source)).abspath):
        return None
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    include = os.path.join(os.path.dirname(found.origin), "include")
    digest = hashlib.sha256()
    for header in headers:
        try:
            with open(os.path.join(include, header), "rb") as file:
                digest.update(file.read())
        except FileNotFoundError:  # of a version from before them
            return None
    tools, variant = graph.request.toolchain, graph.request.variant
    # The package's place differs between machines and is unsigned; the contents of its headers are in the identity.
    place = f"-isystem{include}"
    path = f"{variant.python_directory}/{name}"
    compile_ = tools.compile(graph.at(source), "rows", [graph.at("include")])[:-2]
    link = [
        "-shared",
        *tools.ldflags,
        "-Wl,--build-id=none",
        "-Wl,--as-needed",
        f"-Wl,--version-script={graph.at(EXPORTS)}",
    ]
    command = [*compile_, graph.at(source), *link, *SELF_CONTAINED, "-o", jobs.OUT, "-ldl"]
    graph.compiled.append(
        {"file": graph.at(source), "output": graph.at(path), "arguments": [*compile_, place, "-c", graph.at(source)]}
    )
    job = jobs.Job(
        "compile",
        f"{source} for {package}",
        [command],
        identity=f"{tools.identity}\n{digest.hexdigest()}",
        launcher=(),  # compiles and links at once, which launchers do not cache
        unsigned=[*tools.prefix_map, place],
        summary=f"{console.line('built', path)}: @size@",
    )
    return graph.shared(path, job, [source, EXPORTS], ["include", os.path.dirname(source)])
