# SPDX-License-Identifier: MIT
"""Outputs as they were written: SCons compares what goes into a file, this compares the file itself.

SCons notes size, time and digest of each file that it has made. One whose size and time are as noted is trusted; else
its content decides. After the machine was started anew every content decides once: a power cut can leave files whose
data never reached the disk, whatever their size and time say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from SCons.Node.FS import File
from SCons.Util import hash_file_signature

BOOT = "/proc/sys/kernel/random/boot_id"
FILE = "boot"  # beside the outputs: the start of the machine in which all of them were compared


def boot_id() -> str:
    try:
        with open(BOOT) as file:
            return file.read()
    except OSError:
        return ""


def all_compared(directory: str) -> bool:
    """Whether all outputs were compared since the machine was started."""
    try:
        with open(os.path.join(directory, FILE)) as file:
            return file.read() == boot_id() != ""
    except OSError:
        return False


def damaged(nodes: Iterable[Any], directory: str) -> list[Any]:
    """Those of `nodes` that were made once and are something else now. Of no concern: what is not there."""
    same_boot = all_compared(directory)
    return [node for node in nodes if _is_damaged(node, same_boot)]


def compared(directory: str) -> None:
    """Notes that all outputs were compared since the machine was started."""
    if not all_compared(directory):
        with open(os.path.join(directory, FILE), "w") as file:
            file.write(boot_id())


def _is_damaged(node: Any, same_boot: bool) -> bool:
    try:
        found = os.stat(node.abspath)
    except FileNotFoundError:
        return False  # before SCons is asked, which reads its database of that folder
    known = node.get_stored_info().ninfo
    digest = getattr(known, "csig", None)
    if not digest or (same_boot and (found.st_size, found.st_mtime) == (known.size, known.timestamp)):
        return False
    return bool(hash_file_signature(node.abspath, File.hash_chunksize) != digest)
