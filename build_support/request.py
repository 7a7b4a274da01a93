"""What is asked of SConscript: the command line, or a host that embeds this build, fills it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .toolchain import Toolchain
from .variant import Variant


@dataclass(frozen=True)
class Request:
    receipts: Sequence[str]
    variant: Variant
    toolchain: Toolchain
    launcher: Sequence[str] = ()
    verbose: bool = False
    dry: bool = False  # write nothing while reading: -n, -h, -c


@dataclass(frozen=True)
class Build:
    """What SConscript returns: SCons nodes."""

    libraries: dict  # receipt -> the shared library
    manifests: dict  # receipt -> the JSON beside it
    binding: object  # the Python extension, or None without its source
    jax_handlers: object  # the XLA handlers of tilekiln.jax, or None without JAX
    programs: dict  # name -> [executables]
    compiledb: object
