"""What compiles the engines of a backend's targets: a module each, named by `toolchain` in its backend.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..toolchain import ToolchainError
from . import cxx, nvcc

if TYPE_CHECKING:
    from codegen.schema.targets import Target

    from ..graph import Graph


class EngineToolchain(Protocol):
    def compile_engine(
        self, graph: Graph, source: str, name: str, target: Target, place: str, instances: Sequence[str]
    ) -> Any:
        """The object of that name of a source of engines, below the directory `place`."""

    def join_engines(
        self, graph: Graph, path: str, objects: Sequence[Any], symbols: Sequence[str], target: Target
    ) -> Any:
        """One object at `path` that shows `symbols` only."""


TOOLCHAINS: dict[str, EngineToolchain] = {"cxx": cxx, "nvcc": nvcc}


def of(target: Target) -> EngineToolchain:
    """ToolchainError when there is none for its backend."""
    name = target.backend_.toolchain
    if name not in TOOLCHAINS:
        listed = ", ".join(TOOLCHAINS)
        raise ToolchainError(
            f"target {target.name}: backend {target.backend} is compiled by toolchain '{name}', which "
            f"build_support/toolchains does not have; it has {listed}"
        )
    return TOOLCHAINS[name]
