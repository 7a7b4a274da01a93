# SPDX-License-Identifier: MIT
"""Builds with nothing to do, known before SCons looks: the command line, all contents and all outputs are as they were.

Contents decide, as in the rest of a build (`outputs`): every source is read, of outputs size and time are compared.
What such a stamp does not cover (devices, scripts as compilers, targets but the default) SCons looks at each time.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import extension_python, toolchain
from .outputs import all_compared, boot_id

if TYPE_CHECKING:
    from .request import Request

OPTIONS = {"receipt", "target", "where", "mode", "cxx", "cxxflags", "ldflags", "launcher", "variant", "static"}
SOURCES = (
    "SConstruct", "SConscript", "VERSION", "build_support", "codegen", "include", "kernels", "receipts",
    "python/binding",
)  # fmt: skip
PREFIX = "unchanged-"  # of stamps, in the folder of their variant
OF_RUNS = ("lock", "measured.jsonl")  # files there that a build with nothing to do writes
OF_SHELLS = ("_", "SHLVL", "OLDPWD")  # variables that differ from one line to the next


class Stamp:
    """Of one command line, and of the sources as they are now: an edit during the build is one after it."""

    def __init__(self, name: str, sources: str) -> None:
        self._name, self._sources = name, sources
        self._kept: tuple[list[str], list[str], str, Any] | None = None
        atexit.register(self._write)  # after all that a build registers later: its journal is gone by then

    def found(self) -> str | None:
        """Lines of the build that left everything as it is now; None where something has changed since."""
        for path in glob.glob(f"build/*/{PREFIX}{self._name}"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                with open(path, encoding="utf-8") as file:
                    kept = json.load(file)
                if self._state(kept["folders"], kept["programs"]) == kept["state"]:
                    return str(kept["said"])
        return None

    def keep(self, request: Request, said: str, goal: Any) -> None:
        """Leaves a stamp in the folder of the variant when the build ends, where it has brought the node `goal`."""
        from codegen.emit.flags import COMMON_HEADERS
        from codegen.schema.tree import tree

        tools, variant = request.toolchain, request.variant
        programs = [tools.cxx, *toolchain.BINUTILS]
        if not any(map(_is_script, programs)) and all(tree().target(name).backend_.host for name in variant.targets):
            numpy = f"{extension_python.this().numpy_include}/numpy/_numpyconfig.h"
            folders = [variant.directory, COMMON_HEADERS, variant.python_directory]
            self._kept = folders, [*programs, numpy], said, goal

    def _write(self) -> None:
        if not self._kept:
            return
        import SCons.Node

        folders, programs, said, goal = self._kept
        if goal.get_state() not in (SCons.Node.up_to_date, SCons.Node.executed) or not all_compared(folders[0]):
            return
        path = f"{folders[0]}/{PREFIX}{self._name}"
        kept = {"said": said, "folders": folders, "programs": programs, "state": self._state(folders, programs)}
        with contextlib.suppress(OSError):
            with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
                json.dump(kept, file)
            os.replace(file.name, path)

    def _state(self, folders: Iterable[str], programs: Iterable[str]) -> str:
        whole = [self._sources, boot_id()]
        for program in programs:
            at = os.path.realpath(shutil.which(program) or program)
            whole.append(f"{at} {_stat(at)}")
        for folder in folders:
            whole += [f"{path} {_stat(path)}" for path in _files(folder) if not _of_runs(path)]
        return hashlib.blake2b("\n".join(whole).encode()).hexdigest()


def stamp(arguments: Sequence[tuple[str, str]], targets: Sequence[str]) -> Stamp | None:
    """None for a command line that asks for more than to build, or is outside of what a stamp covers."""
    words = [word for word in sys.argv[1:] if word.startswith("-") and word != "-Q" and not word.startswith("-j")]
    if words or os.environ.get("SCONSFLAGS", "-Q") != "-Q" or set(targets) - {"default"} or not boot_id():
        return None
    if not {name for name, _ in arguments} <= OPTIONS:
        return None
    variables = sorted(item for item in os.environ.items() if item[0] not in OF_SHELLS)
    asked = json.dumps([list(arguments), variables, sys.version])
    whole = hashlib.blake2b()
    for path in (path for source in SOURCES for path in _files(source)):
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            data = file.read()
            whole.update(f"{path}\0{len(data)}\0".encode() + data)
    return Stamp(hashlib.blake2b(asked.encode(), digest_size=8).hexdigest(), whole.hexdigest())


def _files(path: str) -> list[str]:
    """Every file below, sorted; a file is itself."""
    if not os.path.isdir(path):
        return [path]
    found, waiting = list[str](), [path]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] if entry.name != "__pycache__" else []
                else:
                    found.append(entry.path)
    return sorted(found)


def _of_runs(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name in OF_RUNS or name.startswith(PREFIX)


def _stat(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return f"{found.st_size} {found.st_mtime_ns}"


def _is_script(program: str) -> bool:
    """Whether it may run programs that nobody asks for here."""
    try:
        with open(shutil.which(program) or program, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True
