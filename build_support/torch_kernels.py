# SPDX-License-Identifier: MIT
"""The library of tilekiln.torch's kernels for PyTorch's dispatcher: C++ over the headers of its stable ABI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import foreign_headers

if TYPE_CHECKING:
    from .graph import Graph

SOURCE = "python/binding/torch/kernels.cpp"
NAME = "libtilekiln_torch.so"
HEADERS = tuple(f"torch/csrc/{name}" for name in ("inductor/aoti_torch/c/shim.h", "stable/c/shim.h"))
MISSING = (
    "PyTorch, whose headers its kernels need, is not installed, or is older than 2.10. "
    "Use tools/dev --with torch scons torch."
)


def kernels(graph: Graph) -> Any:
    """The library, or None without PyTorch. Looks for PyTorch without importing it."""
    return foreign_headers.library(graph, SOURCE, NAME, "torch", HEADERS)
