# SPDX-License-Identifier: MIT
"""SConscript for a host: its options as values, the libraries alone as nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.schema.errors import CodegenError

from . import commands, options
from .request import Request
from .toolchain import ToolchainError

ERRORS = (options.UsageError, ToolchainError, CodegenError)
OPTIONS = ("receipt", "target", "where", "operators", "mode", "cxx", "cxxflags", "ldflags", "launcher", "verbose")
"""Those of the command line that mean something to a host. `dry` (a bool: write nothing while reading) is one more."""


def request(given: Mapping[str, object], top: str) -> Request:
    """The request of a host that gives options as values, as {"receipt": "flash,fp8", "target": "all"}.

    `top` is the directory of its SConstruct, in which commands run.

    Raises UsageError, ToolchainError or CodegenError.
    """
    values = dict(given)
    dry = values.pop("dry", False)
    if not isinstance(dry, bool):
        raise options.UsageError(f"dry={dry!r} is not possible: it is True or False.")
    for name, value in values.items():
        if name not in OPTIONS:
            near = options.nearest(name, [*OPTIONS, "dry"])
            raise options.UsageError(f"unknown option {name!r}.{near} A host gives {', '.join(OPTIONS)} and dry.")
        if not isinstance(value, str):
            raise options.UsageError(f"{name} is {value!r} and must be text, as on the command line: {name}='...'.")
    parsed = options.parse([(name, str(value)) for name, value in values.items()], [])
    commands.take_operators(parsed, "receipt" in values, top)
    asked = commands.request(parsed, dry)
    return replace(asked, toolchain=replace(asked.toolchain, top=top), embedded=True)
