# SPDX-License-Identifier: MIT
"""The host code that launches kernels compiled ahead: C++ of the machine, told which kernels the library may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codegen.emit.flags import define

if TYPE_CHECKING:
    from codegen.schema.targets import Target

    from ..graph import Graph


def compile_engine(graph: Graph, source: str, name: str, target: Target, place: str, instances: Sequence[str]) -> Any:
    """The object of a family's host code, or of what several share, which launches none itself."""
    from codegen.emit import kernels
    from codegen.schema.tree import tree

    family = name.rpartition("-")[0]
    listed = " ".join(f"K({kernel.symbol})" for kernel in kernels.of_engine(tree(), target.name, family))
    return graph.compile(
        source,
        f"{place}/{target.name}/{name}.o",
        "runtime",
        [*graph.include, *graph.outside],
        defines=[define(target.name), f"TILEKILN_KERNELS={listed}"],
        label=f"{source} for {target.name}",
        instances=instances,
    )


def join_engines(graph: Graph, path: str, objects: Sequence[Any], symbols: Sequence[str], target: Target) -> Any:
    return graph.join(path, objects, symbols, f"engines for {target.name}")
