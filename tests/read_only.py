# SPDX-License-Identifier: MIT
"""Programs that cannot write to a folder, as others' programs on a shared file system."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETPRIV = shutil.which("setpriv") or "setpriv"
PLAIN = [SETPRIV, "--inh-caps=-all", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
"""Modes of files hold for root, too, in a program that begins with these words."""


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Takes the right to write from a folder and all below it, and gives it back."""
    below = [folder, *folder.rglob("*")]
    for path in below:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        yield
    finally:
        for path in below:
            path.chmod(path.stat().st_mode | 0o200)


def run(folder: Path, *command: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """A program to whom everything in a folder is read-only, which it leaves as it was."""
    before = sorted((path, path.stat().st_size) for path in folder.rglob("*"))
    with read_only(folder):
        assert subprocess.run([*PLAIN, "/bin/sh", "-c", f": >{folder}/new"], check=False).returncode != 0
        done = subprocess.run([*PLAIN, *command], capture_output=True, text=True, check=False)
    assert sorted((path, path.stat().st_size) for path in folder.rglob("*")) == before
    return done
