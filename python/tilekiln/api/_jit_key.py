# SPDX-License-Identifier: MIT
"""Identity of a just-in-time kernel's code: sources by content, the compiler by its own words, the machine's CPU.

Both are remembered by the times and sizes of their files, in the store where that can be written, so that to ask again
costs a look at each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from . import _jit_gpu

SOURCES = ("VERSION", "SConstruct", "SConscript", "build_support", "codegen", "include", "kernels", "receipts")
_ENDINGS = (".cpp", ".cu", ".h", ".hip", ".hpp", ".inc", ".jinja", ".py", ".yaml")
COMPILERS = ("g++", "clang++")  # as build_support.toolchain tries them where CXX names none


class Recipe(NamedTuple):
    """Digests of the sources and of the compilers; "" where there are none. The target that is built for."""

    sources: str
    compiler: str
    target: str = "native"

    def name(self) -> str:
        """A file of this name under a request holds its entry."""
        return f"{self.sources}-{self.compiler}"

    def makes(self, name: str) -> bool:
        """Is it the recipe of a file's name, as far as it is known here?"""
        sources, _, compiler = name.partition("-")
        return self.sources in ("", sources) and (self.compiler in ("", compiler) or not self.sources)


def digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def recipe(store: pathlib.Path, tree: pathlib.Path | None, target: str = "native") -> Recipe:
    """The recipe by which kernels would be made now."""
    made, gpus = compiler(store), _jit_gpu.compilers(target)
    if made and gpus:
        second = compiler(store, gpus)
        made = second and digest(made, second)
    return Recipe(sources(store, tree) if tree else "", made, target)


def sources(store: pathlib.Path, tree: pathlib.Path) -> str:
    """Digest of the sources of a tree by relative path and content."""
    listed = [(name, path, status) for name in SOURCES for name, path, status in _files(tree / name, name)]
    looks = (f"{path} {_look(status)}" for _, path, status in listed)

    def read() -> str:
        whole = hashlib.blake2b(digest_size=16)
        for name, path, status in listed:
            whole.update(f"{name}\0{status.st_size}\0".encode())
            whole.update(pathlib.Path(path).read_bytes())
        return whole.hexdigest()

    return _remembered(store, digest(*looks), read)


def compiler(store: pathlib.Path, names: Sequence[str] = ()) -> str:
    """Digest of what the first compiler of the names that is there says of itself, the C++ compiler unless there are
    names; "" where there is none."""
    names = names or ([os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS)
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        return ""
    real = os.path.realpath(path)

    def ask() -> str:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        return digest(done.stdout.partition("\n")[0], *re.findall("release .*", done.stdout))

    if not _is_compiler(real):  # ccache, or a script: its file says nothing of the compiler that it runs
        return ask()
    return _remembered(store, digest(f"{real} {_look(os.stat(real))}"), ask)


def _is_compiler(path: str) -> bool:
    """Is a file a compiler itself, by its name and as a program of machine code?"""
    if not re.search(r"(g\+\+|c\+\+|clang|gcc|nvcc)[^/]*$", path):
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
    return False


def _look(status: os.stat_result) -> str:
    """Facts that change with a file's content: its time of change, too, which no copy sets back like the other."""
    return f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_size} {status.st_ino}"


def cpu() -> str:
    """The line of /proc/cpuinfo that lists this CPU's instructions; "" where there is none."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.startswith(("flags", "Features"))), "")
    return ""


def write(path: pathlib.Path, text: str) -> None:
    """A file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def _remembered(store: pathlib.Path, look: str, find: Callable[[], str]) -> str:
    file = store / "digests" / look
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = file.read_text()
        if re.fullmatch("[0-9a-f]{32}", known):  # an empty one, as a power cut leaves, would stand for no sources
            return known
    found = find()
    with contextlib.suppress(OSError):  # a store that cannot be written is asked each time
        if store.is_dir():
            write(file, found)
    return found


def _files(path: pathlib.Path, name: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """Relative name, path and status of the sources below a folder, or of one file."""
    if not path.is_dir():
        if path.is_file():
            yield name, str(path), path.stat()
        return
    waiting = [(name, str(path))]
    while waiting:
        below, folder = waiting.pop()
        with os.scandir(folder) as listed:
            for entry in sorted(listed, key=lambda entry: entry.name):
                if entry.name.endswith(_ENDINGS):
                    yield f"{below}/{entry.name}", entry.path, entry.stat()
                elif entry.is_dir() and entry.name[0] not in "._":
                    waiting.append((f"{below}/{entry.name}", entry.path))
