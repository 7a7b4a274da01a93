# SPDX-License-Identifier: MIT
"""Engines in C++, by the compiler of the build with the flags of their target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codegen.emit.flags import HEADERS, define

from .. import jobs

if TYPE_CHECKING:
    from codegen.schema.targets import Target

    from ..graph import Graph


def compile_engine(graph: Graph, source: str, name: str, target: Target, place: str, instances: Sequence[str]) -> Any:
    made = f"{graph.request.variant.directory}/gen/"  # where sources are that were generated
    return graph.compile(
        source,
        f"{place}/{target.name}/{name}.o",
        "engine",
        [*(graph.include if source.startswith(made) else HEADERS), *graph.outside],
        flags=list(target.flags),
        defines=[define(target.name)],
        label=f"{source.removeprefix(made)} for {target.name}",
        instances=instances,
        after=graph.request.toolchain.hide(target.word, jobs.OUT),
    )


def join_engines(graph: Graph, path: str, objects: Sequence[Any], symbols: Sequence[str], target: Target) -> Any:
    return graph.join(path, objects, symbols, f"engines for {target.name}")
