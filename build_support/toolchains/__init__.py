# SPDX-License-Identifier: MIT
"""Toolchains: a module for each, named by `toolchain` in backend.yaml, compiles a backend's engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..toolchain import ToolchainError
from . import cxx, hip, nvcc

if TYPE_CHECKING:
    from codegen.emit.generated import Engine
    from codegen.schema.targets import Target

    from ..graph import Graph


class EngineToolchain(Protocol):
    """One that compiles kernels apart from what launches them is a KernelToolchain."""

    def compile_engine(
        self, graph: Graph, source: str, name: str, target: Target, place: str, instances: Sequence[str]
    ) -> Any:
        """The object of that name of a source of engines, below the directory `place`."""

    def join_engines(
        self, graph: Graph, path: str, objects: Sequence[Any], symbols: Sequence[str], target: Target
    ) -> Any:
        """One object at `path` that shows `symbols` only."""


class KernelToolchain(EngineToolchain, Protocol):
    def compile_kernel(
        self, graph: Graph, engine: Engine, place: str, instances: Sequence[str], held: Sequence[Engine] = ()
    ) -> Any:
        """The object that holds a kernel of builds.yaml as data. `held`: every engine of the build."""


KERNELS: dict[str, KernelToolchain] = {"nvcc": nvcc, "hip": hip}
TOOLCHAINS: dict[str, EngineToolchain] = {"cxx": cxx, **KERNELS}


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
