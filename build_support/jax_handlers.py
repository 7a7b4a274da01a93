"""The library of tilekiln.jax's XLA handlers: C++ over the FFI headers that jaxlib ships, without Python."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from . import console, jobs

if TYPE_CHECKING:
    from .graph import Graph

SOURCE = "python/binding/jax/handlers.cpp"
NAME = "libtilekiln_jax_handlers.so"
HEADERS = ("api.h", "c_api.h", "ffi.h")
MISSING = "JAX, whose headers its handlers need, is not installed. Use tools/dev --with jax scons jax."


def handlers(graph: Graph) -> Any:
    """The library, or None without JAX. Looks for JAX without importing it."""
    if not os.path.exists(graph.env.File(graph.node_path(SOURCE)).abspath):
        return None
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        return None
    include = os.path.join(os.path.dirname(found.origin), "include")
    digest = hashlib.sha256()
    for name in HEADERS:
        with open(os.path.join(include, "xla", "ffi", "api", name), "rb") as file:
            digest.update(file.read())
    tools, variant = graph.request.toolchain, graph.request.variant
    # Where jaxlib lies is this machine's; what its headers say is in the identity.
    place = f"-isystem{include}"
    path = f"{variant.python_directory}/{NAME}"
    compile_ = tools.compile(graph.at(SOURCE), "rows", [graph.at("include")])[:-2]
    command = [*compile_, graph.at(SOURCE), "-shared", "-Wl,--build-id=none", "-Wl,--as-needed", "-o", jobs.OUT, "-ldl"]
    graph.compiled.append(
        {"file": graph.at(SOURCE), "output": graph.at(path), "arguments": [*compile_, place, "-c", graph.at(SOURCE)]}
    )
    job = jobs.Job(
        "compile",
        f"{SOURCE} for jaxlib",
        [command],
        identity=f"{tools.identity}\n{digest.hexdigest()}",
        launcher=(),  # compiles and links at once, which launchers do not cache
        unsigned=[*tools.prefix_map, place],
        summary=f"{console.line('built', path)}: @size@",
    )
    return graph.shared(path, job, [SOURCE], ["include"])
