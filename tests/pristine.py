# SPDX-License-Identifier: MIT
"""A folder that many tests get a copy of, as hard links: a fifth of the seconds of copying a thousand files.

A test may change its copy, in place too. What that alters here is put right before the next copy is made, so a test has
one copy at a time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


class Pristine:
    """`fill(folder)` makes what is copied, below a folder of the same file system as the copies."""

    def __init__(self, place: Path, fill: Callable[[Path], None]) -> None:
        self.original, self.linked = place / "original", place / "linked"
        self.original.mkdir(parents=True)
        fill(self.original)
        shutil.copytree(self.original, self.linked)
        self.known = {path: _state(self.linked / path) for path in self._files()}

    def _files(self) -> list[Path]:
        found = (Path(folder, name) for folder, _, names in os.walk(self.original) for name in names)
        return [path.relative_to(self.original) for path in found]

    def copy(self, to: Path) -> None:
        """Makes the folder `to`, which may not be there."""
        for path, known in self.known.items():
            if _state(self.linked / path) != known:
                (self.linked / path).unlink()
                shutil.copy2(self.original / path, self.linked / path)
                self.known[path] = _state(self.linked / path)
        shutil.copytree(self.linked, to, copy_function=os.link)


def _state(path: Path) -> tuple[int, int, int, int]:
    """Altered by any change of a file's text or mode."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
