# SPDX-License-Identifier: MIT
"""Files that all variants of a mode share: made when their stamp says so, not when a variant's database lacks them.

The stamp stands beside the file and holds a digest of all that it is made from, and one of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from codegen.emit import files, includes

ENDING = ".made"


def signature(job_digest: str, sources: Sequence[str], directories: Sequence[str]) -> str:
    """Of a job and of what its sources hold, with the headers that they reach in `directories`."""
    contents = {path: files.read(path) or b"" for path in sources}
    names = [name for data in contents.values() for name in includes.named(data)]
    whole = hashlib.sha256(f"{job_digest} {includes.digest(names, directories)}".encode())
    for path, data in contents.items():
        whole.update(f"\0{path}\0{len(data)}\0".encode() + data)
    return whole.hexdigest()[:32]


def current(target: str, signed: str) -> bool:
    """Whether `target` was made from just that, and is as it was made."""
    stamp, data = files.read(target + ENDING), files.read(target)
    return stamp is not None and data is not None and stamp.decode(errors="replace") == _stamp(data, signed)


def made(target: str, signed: str) -> None:
    with open(target, "rb") as file:
        data = file.read()
    files.write(target + ENDING, _stamp(data, signed).encode())


def _stamp(data: bytes, signed: str) -> str:
    return f"{signed} {hashlib.sha256(data).hexdigest()}\n"
