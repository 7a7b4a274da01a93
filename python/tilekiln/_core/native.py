# SPDX-License-Identifier: MIT
"""The compiled binding, from the package when installed, else from the tree's build directory."""

import pathlib
import sys
import sysconfig

from . import distribution
from .system import BUILT_FOR

# Again, as the package's __init__ may be another project's.
PACKAGE = pathlib.Path(__file__).parents[1]

distribution.check(str(PACKAGE))

TREE = pathlib.Path(__file__).resolve().parents[3]
"""The root of the source tree, when this package lies in one (see `in_tree`)."""


def in_tree() -> bool:
    """Does this package lie in a source tree, beside its SConstruct?"""
    return (TREE / "SConstruct").is_file()


def _find() -> None:
    """Let `tilekiln._binding` be found: installed, or of build/python-release, build/python-debug or a cross build."""
    name, stable = "_binding" + sysconfig.get_config_var("EXT_SUFFIX"), "_binding.abi3.so"
    if any((PACKAGE / installed).is_file() for installed in (name, stable)):
        return
    crossed = f"python-{BUILT_FOR}-release"
    for folder, file in (("python-release", name), ("python-debug", name), (crossed, stable)):
        directory = TREE / "build" / folder
        if (directory / file).is_file():
            sys.modules[__name__.partition(".")[0]].__path__.append(str(directory))
            return
    raise ImportError(
        f"Tilekiln's binding {name} is not built. It was looked for in {PACKAGE} and in "
        f"{TREE / 'build'}/python-*/. Build it with any library: tools/dev scons receipt=flash"
    )


_find()

import tilekiln._binding as binding  # noqa: E402

from .._binding import (  # noqa: E402
    ABI_VERSION,
    ArgumentError,
    NoKernelError,
    Stream,
    __version__,
    machine_key,
    processor,
)
from .._binding import BackwardLauncher as Launcher  # noqa: E402

__all__ = [
    "ABI_VERSION", "ArgumentError", "Launcher", "NoKernelError", "Stream", "__version__", "binding", "machine_key",
    "processor",
]  # fmt: skip
