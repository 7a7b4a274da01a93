# SPDX-License-Identifier: MIT
"""Cost of commands in a copy of the tree, in CPU seconds of the whole process tree."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = (
    "SConstruct",
    "SConscript",
    "VERSION",
    "build_support",
    "codegen",
    "include",
    "kernels",
    "python",
    "receipts",
    "tests",
)
REPEATS = 7


class Bench:
    def __init__(self, tree: pathlib.Path) -> None:
        self.tree = tree

    def cpu(self, command: Sequence[str]) -> tuple[float, str]:
        """CPU seconds of a command and all its children, and what it printed. It must succeed."""
        path = os.pathsep.join([str(self.tree / "python"), str(self.tree)])
        variables = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
        variables.pop("SCONSFLAGS", None)
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(command, cwd=self.tree, stdout=out, stderr=out, env=variables)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            said = out.read()
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{said[-2000:]}")
        return usage.ru_utime + usage.ru_stime, said

    def scons(self, *arguments: str) -> tuple[float, str]:
        return self.cpu([sys.executable, "-m", "SCons", "-Q", *arguments])

    def listing(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "codegen", "list", *arguments]

    def count(self, *arguments: str) -> int:
        return len(self.cpu(self.listing(*arguments))[1].splitlines())

    def least(self, command: Sequence[str]) -> float:
        return min(self.cpu(command)[0] for _ in range(REPEATS))

    def cold(self, *arguments: str) -> float:
        shutil.rmtree(self.tree / "build", ignore_errors=True)
        return self.scons(*arguments)[0]

    def no_op(self, *arguments: str) -> float:
        found = []
        for _ in range(REPEATS):
            seconds, said = self.scons(*arguments)
            if "is up to date" not in said:
                raise SystemExit(f"scons {' '.join(arguments)} has nothing to do, and did:\n{said}")
            found.append(seconds)
        return min(found)

    def generated(self) -> dict[str, tuple[int, int]]:
        files = [path for path in (self.tree / "build").glob("*/gen/**/*") if path.is_file()]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def copy_tree(to: pathlib.Path) -> pathlib.Path:
    """The sources of the build in a directory of their own, nothing built."""
    to.mkdir()
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, to / name)
    return to
