# SPDX-License-Identifier: MIT
"""The library of tilekiln.jax's XLA handlers: C++ over the FFI headers that jaxlib ships, without Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import foreign_headers

if TYPE_CHECKING:
    from .graph import Graph

SOURCE = "python/binding/jax/handlers.cpp"
NAME = "libtilekiln_jax_handlers.so"
HEADERS = tuple(f"xla/ffi/api/{name}" for name in ("api.h", "c_api.h", "ffi.h"))
MISSING = "JAX, whose headers its handlers need, is not installed. Use tools/dev --with jax scons jax."


def handlers(graph: Graph) -> Any:
    """The library, or None without JAX. Looks for JAX without importing it."""
    return foreign_headers.library(graph, SOURCE, NAME, "jaxlib", HEADERS)
