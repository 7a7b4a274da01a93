# SPDX-License-Identifier: MIT
"""The project headers that a source reaches, read here once for all generated sources: SCons would scan each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from codegen.emit import files

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


Read = dict[str, tuple[bytes, list[str]] | None]  # by path a file and what it includes; None: there is none


def closure(names: Iterable[str], directories: Sequence[str], read: Read | None = None) -> dict[str, bytes]:
    """path -> content of every header under `directories` that `names` reach. Others are the system's.

    read: what calls before have read, and this one adds to.
    """
    read = {} if read is None else read
    found: dict[str, bytes] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for directory in directories:
            path = f"{directory}/{name}"
            if path in found:
                break
            if path not in read:
                try:
                    content = files.content(path)
                    read[path] = (content, named(content))
                except OSError:
                    read[path] = None
            known = read[path]
            if known is None:
                continue
            found[path] = known[0]
            waiting += known[1]
            break
    return found


def named(source: bytes) -> list[str]:
    """The headers that a source includes in quotes."""
    return [match.decode() for match in _INCLUDE.findall(source)]


def digest(names: Iterable[str], directories: Sequence[str], read: Read | None = None) -> str:
    """Changes when any header that `names` reach does."""
    whole = hashlib.sha256()
    for path, content in sorted(closure(names, directories, read).items()):
        whole.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return whole.hexdigest()[:32]
