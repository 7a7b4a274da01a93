"""The project headers that a source reaches, read here once for all generated sources: SCons would scan each."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def closure(names: Iterable[str], directories: Sequence[str]) -> dict[str, bytes]:
    """path -> content of every header under `directories` that `names` reach. Others are the system's."""
    found: dict[str, bytes] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for directory in directories:
            path = os.path.join(directory, name)
            if path in found:
                break
            try:
                with open(path, "rb") as file:
                    found[path] = file.read()
            except OSError:
                continue
            waiting += named(found[path])
            break
    return found


def named(source: bytes) -> list[str]:
    """The headers that a source includes in quotes."""
    return [match.decode() for match in _INCLUDE.findall(source)]


def digest(names: Iterable[str], directories: Sequence[str]) -> str:
    """Changes when any header that `names` reach does."""
    whole = hashlib.sha256()
    for path, content in sorted(closure(names, directories).items()):
        whole.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return whole.hexdigest()[:32]
