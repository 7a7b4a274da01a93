# SPDX-License-Identifier: MIT
"""The targets that pack what is built for others to install: wheels, and a repository for Hugging Face's `kernels`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from codegen.out import sbom
from codegen.schema.sizes import shown
from codegen.schema.tree import tree

from . import console, jax_handlers, torch_kernels
from .options import UsageError
from .request import Build, Request

if TYPE_CHECKING:
    from .wheels import Wheel

TARGETS = ("wheel", "hf-kernels")


def check(targets: Sequence[str], request: Request) -> None:
    """Raises UsageError where a package would hold what nobody could load."""
    asked = [name for name in TARGETS if name in targets]
    if asked and request.variant.mode in ("sanitize", "thread"):
        raise UsageError(
            f"target {asked[0]} with mode={request.variant.mode}: a plain Python cannot load a sanitized library. "
            "Use mode=release."
        )
    if "hf-kernels" in asked and request.python:
        raise UsageError("target hf-kernels with python=: its extension is for every Python. Leave python= out.")
    if "hf-kernels" in asked and request.toolchain.cross:
        raise UsageError(
            "target hf-kernels: its variants are named after the machine that builds them, and "
            f"{request.toolchain.cxx} compiles for {request.toolchain.elsewhere}. "
            "Build it on such a machine, or use the target wheel."
        )
    if "hf-kernels" in asked:
        from . import hf_kernels

        hf_kernels.hub_name([tree().target(name) for name in request.variant.targets])


def needs(build: Build) -> list[Any]:
    """The nodes that a package is made of, besides the products of every build."""
    return [one for one in (build.binding, build.jax_handlers, build.torch_kernels) if one]


def commands(root: str, request: Request, build: Build) -> dict[str, Callable[..., int]]:
    """Actions of the packaging targets, after the build, by target."""
    # Imported when they run: a build that packs nothing does not wait for them.
    targets = [tree(root).target(name) for name in request.variant.targets]

    def facade() -> Wheel:
        from . import wheels

        places = {f"jax/{jax_handlers.NAME}": build.jax_handlers, f"torch/{torch_kernels.NAME}": build.torch_kernels}
        more = {f"{wheels.PACKAGE}/{place}": str(node.abspath) for place, node in places.items() if node}
        return wheels.facade(root, tree(root).version, build.binding.abspath, more, request.python)

    def kernels(receipt: str) -> Wheel:
        from . import wheels

        files = build.libraries[receipt].abspath, build.manifests[receipt].abspath
        return wheels.kernels(root, tree(root).version, receipt, *files)

    def write_wheels(target: Any, source: Any, env: Any) -> int:
        from . import wheels

        for wheel in [facade(), *map(kernels, build.libraries), wheels.sources(root, tree(root).version)]:
            path, written = wheels.write(wheel, f"{request.variant.directory}/wheel")
            built = f"{console.line('built', path)}: {shown(os.path.getsize(path))}"
            console.block(built if written else f"{path} is up to date")
        if not sbom.there():
            console.block(sbom.MISSING)
        parts = (
            (build.jax_handlers, "tilekiln.jax", "handlers", "JAX", "jax"),
            (build.torch_kernels, "tilekiln.torch", "kernels", "PyTorch", "torch"),
        )
        for made, package, what, framework, extra in parts:
            if not made and request.toolchain.cross:
                console.block(f"{package} is in it without its {what}: those are built on a machine of its own kind")
            elif not made:
                how = f"`tools/dev --with {extra} scons ... wheel` brings it"
                console.block(f"{package} is in it without its {what}: {framework} is not installed here; {how}")
        return 0

    def write_hf_kernels(target: Any, source: Any, env: Any) -> int:
        from . import hf_kernels

        backend = hf_kernels.hub_name(targets)
        for receipt in build.libraries:
            wheel = kernels(receipt)
            path = f"{request.variant.directory}/hf-kernels/{wheel.name}"
            hf_kernels.write(path, receipt, backend, facade(), wheel)
            console.block(console.line("built", path))
        return 0

    return {"wheel": write_wheels, "hf-kernels": write_hf_kernels}
