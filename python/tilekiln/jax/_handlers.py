# SPDX-License-Identifier: MIT
"""The XLA handler: where its library lies, and which kernel libraries they know by name."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from typing import Any

import jax

from .._core import outside
from .._core.native import TREE, NoKernelError
from .._generated.tables import OPERATORS
from ..api import operators
from ..api.library import Library

NAME = "libtilekiln_jax_handlers.so"


def target(operator: str) -> str:
    """Name of an operator's foreign function in XLA programs."""
    return f"tilekiln_{operator}"


def _find() -> pathlib.Path:
    """Beside this package when installed, else in the build directory of the tree."""
    places = [pathlib.Path(__file__).parent, *(TREE / "build" / f"python-{mode}" for mode in ("release", "debug"))]
    for place in places:
        if (place / NAME).is_file():
            return place / NAME
    raise ImportError(
        f"tilekiln.jax: {NAME} is not built. It was looked for in {', '.join(map(str, places))}. "
        "Build it, where JAX is installed: tools/dev --with jax scons jax"
    )


@functools.cache
def _loaded() -> ctypes.CDLL:
    """The handlers, known to JAX by the names that programs use."""
    library = ctypes.CDLL(str(_find()))
    library.tilekiln_jax_add.restype = ctypes.c_char_p
    library.tilekiln_jax_add.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    for operator in OPERATORS:
        _register(library, operator)
    return library


def _register(library: ctypes.CDLL, operator: str) -> None:
    """One function for all operators of a platform, but JAX's errors say the name."""
    for platform, function in (("cpu", library.tilekiln_jax_call), ("CUDA", library.tilekiln_jax_call_cuda)):
        jax.ffi.register_ffi_target(target(operator), jax.ffi.pycapsule(function), platform=platform)


def register(operator: str) -> None:
    """Let programs call an operator that a library has brought."""
    _register(_loaded(), operator)


@functools.cache
def add(library: Library) -> str:
    """Let programs name this library; returns the name."""
    why = _loaded().tilekiln_jax_add(library.receipt.encode(), library.path.encode())
    if why is not None:
        raise RuntimeError(f"{library.path}: {why.decode()}")
    return str(library.receipt)


def add_all() -> None:
    """All available libraries, for programs that another process has traced."""
    _loaded()
    outside.followers.append(register)
    try:
        for library in operators.at_hand():
            add(library)
    except NoKernelError:  # none is built: the first call says so
        pass


def choose(operator: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> str:
    """The name of the library that answers best; checks all arguments but the values of index arrays."""
    return add(operators._choose(operator, arrays, arguments))
