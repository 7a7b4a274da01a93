# SPDX-License-Identifier: MIT
"""The Python that the extension is compiled for: the one that runs the build, or that of python=."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass

from .options import UsageError

STABLE_ABI = 0x030B0000
"""One extension for Python 3.11 and every later one; those without a GIL have an ABI for each version alone."""


@dataclass(frozen=True)
class ExtensionPython:
    version: str  # as sys.version
    number: list[int]  # [3, 11]
    suffix: str  # of a file name, with its dot
    include: str
    numpy: str | None  # NumPy's __init__.py
    free_threaded: bool

    @property
    def numpy_include(self) -> str:
        return os.path.join(os.path.dirname(self.numpy or ""), "_core", "include")

    @property
    def macros(self) -> list[str]:
        return [] if self.free_threaded else [f"-DPy_LIMITED_API={STABLE_ABI:#010x}"]

    @property
    def in_wheel(self) -> tuple[str, str]:
        """(python-abi of a wheel's tag, the ending of the extension's name in it)."""
        of = f"cp{self.number[0]}{self.number[1]}"
        return (f"{of}-{of}t", self.suffix) if self.free_threaded else ("cp311-abi3", ".abi3.so")


def of(program: str) -> ExtensionPython:
    """Raises UsageError where the program is no Python >= 3.11 with NumPy and headers."""
    import inspect

    code = f"{inspect.getsource(_look)}\nimport json\nprint(json.dumps(_look()))"
    try:
        done = subprocess.run([program, "-I", "-c", code], capture_output=True, text=True, check=False)
        found = ExtensionPython(**json.loads(done.stdout))
    except (OSError, ValueError) as error:
        raise UsageError(f"python={program}: must be the program of a Python >= 3.11: {error}") from error
    if found.number[0] != 3 or found.number[1] < 11:
        raise UsageError(f"python={program}: is Python {found.version.split()[0]}, must be 3.11 or newer")
    if not found.numpy:
        raise UsageError(f"python={program}: has no NumPy, whose headers are needed: {program} -m pip install numpy")
    if not os.path.isfile(os.path.join(found.include, "Python.h")):
        raise UsageError(f"python={program}: has no headers in {found.include}: install those of that Python")
    return found


@functools.cache
def this() -> ExtensionPython:
    """The one that runs this build, which may lack NumPy."""
    return ExtensionPython(**_look())


def _look() -> dict:
    """The fields of the Python that runs this: its text is a program for others, too."""
    import importlib.util
    import sys
    import sysconfig

    numpy = importlib.util.find_spec("numpy")
    return {
        "version": sys.version,
        "number": list(sys.version_info[:2]),
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "include": sysconfig.get_paths()["include"],
        "numpy": numpy.origin if numpy else None,
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    }
