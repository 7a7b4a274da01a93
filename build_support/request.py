# SPDX-License-Identifier: MIT
"""Request to SConscript, filled in by the command line or by a host that embeds this build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .extension_python import ExtensionPython
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
    programs: bool = True  # declare the test programs as well
    executor: bool = True  # and what runs GPU code objects on this CPU
    static: bool = False  # static libraries too
    python: ExtensionPython | None = None  # of the extension; None: the one that runs this build
    embedded: bool = False  # in a host's build: the libraries and nothing for us, no extension, no test programs


@dataclass
class Build:
    """Result of SConscript: SCons nodes. Those for our own build alone are None or empty in a host's."""

    include: object  # the folder to include "tilekiln/tilekiln.h" from
    libraries: dict  # receipt -> the shared library
    manifests: dict  # receipt -> the JSON beside it
    static: list = field(default_factory=list)  # static libraries, and the headers of their functions
    binding: Any = None  # the Python extension, or None without its source
    jax_handlers: Any = None  # the XLA handlers of tilekiln.jax, or None without JAX
    torch_kernels: Any = None  # the kernels of tilekiln.torch for PyTorch's dispatcher, or None without PyTorch
    instances: dict = field(default_factory=dict)  # object of a generated source -> the names of its instances
    executor: list = field(default_factory=list)  # the executor of AMDGCN code objects, and a HIP runtime over it
    programs: dict = field(default_factory=dict)  # name -> [executables]
    compiledb: object = None
