# SPDX-License-Identifier: MIT
"""The Python modules that a command needs; without them it goes on in the environment of tools/dev, which has them.

Nothing but the standard library in here, so that `scons` of a plain `pip install scons` comes this far.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence

from .options import UsageError

# Name that is imported -> name by which pip knows it.
GENERATOR = {"msgspec": "msgspec", "jinja2": "jinja2", "yaml": "pyyaml"}
BINDING = {"numpy": "numpy"}
OF_TARGET = {
    "demo": {"ml_dtypes": "ml-dtypes", "rich": "rich"},
    "test": {"pytest": "pytest", "xdist": "pytest-xdist"},
    "bench": {"ml_dtypes": "ml-dtypes", "rich": "rich"},
    "report": {"squarify": "squarify"},
    "wheel": {"wheel": "wheel"},
    "hf-kernels": {"wheel": "wheel"},
}
# Nothing of theirs is Python's; nor are files of a variant's lib folder.
WITHOUT_BINDING = ("list", "install", "report", "programs", "compiledb")
AGAIN = "TILEKILN_IN_TOOLS_DEV"


def missing(values: Mapping[str, str], targets: Sequence[str], clean: bool) -> list[str]:
    """The packages, as pip names them, that this Python lacks for a command line."""
    packages = dict(GENERATOR)
    asks = "list" in (values["receipt"], values["target"]) or values["explain"] or (values["vendor"] and not targets)
    if not clean and not asks:
        if not all(target in WITHOUT_BINDING or "/lib/" in target for target in targets or ["default"]):
            packages |= BINDING
        for target in targets:
            packages |= OF_TARGET.get(target, {})
    return [package for module, package in packages.items() if importlib.util.find_spec(module) is None]


def ensure(root: str, values: Mapping[str, str], targets: Sequence[str], clean: bool, launched_in: str) -> None:
    """Returns when all that is needed is here; else this process becomes `tools/dev scons` with the same arguments.

    Raises UsageError where that cannot help.
    """
    lacking = missing(values, targets, clean)
    if not lacking:
        return
    dev = os.path.join(root, "tools", "dev")
    what = f"{sys.executable}, which runs this scons, lacks {', '.join(lacking)}"
    install = f"{sys.executable} -m pip install {' '.join(lacking)}"
    if not os.access(dev, os.X_OK):
        raise UsageError(f"{what}. Install what is missing: {install}")
    if AGAIN in os.environ:
        raise UsageError(f"{what}, although tools/dev made its environment. Remove that: rm -rf {root}/.venv")
    print(f"tilekiln: {what}: going on with tools/dev scons (or: {install})", file=sys.stderr, flush=True)
    os.chdir(launched_in)  # -C and -f are read again
    environment = {**os.environ, AGAIN: "1", "PYTHON": os.environ.get("PYTHON", sys.executable)}
    os.execve(dev, [dev, "scons", *sys.argv[1:]], environment)
