# SPDX-License-Identifier: MIT
"""Places of a tree's files: below its root, and operators from outside below folders of their own.

A folder from outside counts as operators/<its name>, as if it lay there: sources are named by that, in a build, in a
manifest and in a tree made for others. People are told the path that they gave.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from codegen.schema.errors import CodegenError

OUTSIDE = "operators"
ARGUMENT = "operators"  # the option, as errors name it


class Folder(NamedTuple):
    """One from outside. `path`: what it counts as; `folder`: where it lies, absolute; `given`: as it was named."""

    path: str
    folder: str
    given: str


class Places:
    """`at` is a path on this machine, `shown` what people are told of it."""

    def __init__(self, root: str, outside: Iterable[Folder] = ()) -> None:
        self.root, self.outside = root, tuple(outside)

    def _of(self, path: str) -> Folder | None:
        if not path.startswith(f"{OUTSIDE}/"):
            return None
        return next((one for one in self.outside if path == one.path or path.startswith(f"{one.path}/")), None)

    def at(self, path: str) -> str:
        one = self._of(path)
        return os.path.join(self.root, path) if one is None else one.folder + path[len(one.path) :]

    def shown(self, path: str) -> str:
        one = self._of(path)
        return path if one is None else one.given.rstrip("/") + path[len(one.path) :]

    def read(self, path: str) -> bytes | None:
        """None when there is no such file."""
        try:
            with open(self.at(path), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def matching(self, pattern: str) -> list[str]:
        """The files of a folder whose names match the end of `pattern`, as *.cpp, sorted."""
        folder, _, names = pattern.rpartition("/")
        found = glob.glob(os.path.join(glob.escape(self.at(folder)), names))
        return sorted(f"{folder}/{os.path.basename(path)}" for path in found)

    def walk(self, folder: str) -> list[str]:
        """Every file under a folder, sorted. Hidden files and bytecode are none."""
        found, waiting = [], [folder]
        while waiting:
            here = waiting.pop()
            try:
                entries = os.scandir(self.at(here))
            except FileNotFoundError:
                continue
            with entries:
                for entry in entries:
                    name = entry.name
                    if name[0] == "." or name == "__pycache__":
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{here}/{name}")
                    elif not name.endswith((".pyc", ".tmp", "~")) and not entry.is_dir():
                        found.append(f"{here}/{name}")
        return sorted(found)


def outside(given: Iterable[str], root: str, directory: str = "") -> tuple[Folder, ...]:
    """The folders of the option `operators`, relative to `directory`. CodegenError for one that can be none."""
    found: dict[str, Folder] = {}
    for word in given:
        folder = os.path.realpath(os.path.join(directory or os.getcwd(), os.path.expanduser(word)))
        if not os.path.isdir(folder):
            what = "a file" if os.path.exists(folder) else "not there"
            raise _wrong(word, f"is {what}, must be the folder of an operator (operator.yaml) or of several")
        inside = os.path.relpath(folder, os.path.realpath(root)).replace(os.sep, "/")
        if inside.split("/")[0] in ("kernels", "include", "codegen", "receipts", "build", "."):
            raise _wrong(word, "lies in this tree, which has its operators already; must lie outside it")
        name = os.path.basename(folder)
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise _wrong(word, f"is named '{name}', must have a name of small letters, digits and _: files go by it")
        one = Folder(f"{OUTSIDE}/{name}", folder, word)
        other = found.setdefault(one.path, one)
        if other.folder != folder:
            raise _wrong(word, f"has the name of {other.given}; folders from outside must have different names")
        if not any(path.endswith("/operator.yaml") for path in Places(root, [one]).walk(one.path)):
            raise _wrong(word, "holds no operator.yaml; must be the folder of an operator or of several")
    return tuple(found.values())


def _wrong(word: str, what: str) -> CodegenError:
    return CodegenError(f"{ARGUMENT}={word}: {what}")
