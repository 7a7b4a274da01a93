# SPDX-License-Identifier: MIT
"""cache=DIR: SCons's CacheDir whose entries are checked. A damaged one is a miss, and is replaced.

An entry is the file with its SHA-256 after it. Entries of SCons's own kind are not taken: their names lack the ending.
Its name follows from command and inputs, and not from where the file lies, as SCons's does: what variants have in
common is made once for all of them. A step makes one file: two of one command would have one name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any

from SCons.CacheDir import CacheDir
from SCons.Util import hash_collect

from . import console, jobs

ENDING = ".sha256"


class CheckedCache(CacheDir):
    def cachepath(self, node: Any) -> tuple[Any, Any]:
        if self.is_enabled() and not hasattr(node, "cachesig"):
            inputs = [child.get_cachedir_csig() for child in node.children()]
            node.cachesig = hash_collect([*inputs, node.get_contents_sig()])
        folder, path = super().cachepath(node)
        return folder, path and path + ENDING

    def retrieve(self, node: Any) -> bool:
        _, path = self.cachepath(node)
        if path and os.path.exists(path) and _content(path) is None:
            console.block(f"damaged: {path} in the cache is not what was put there; {node} is made anew")
            with contextlib.suppress(OSError):  # of a cache that may only be read
                os.remove(path)
            return False
        if not super().retrieve(node):
            return False
        jobs.finished(node.get_build_env()["JOB"], node.get_internal_path())
        return True

    @classmethod
    def copy_to_cache(cls, env: Any, src: str, dst: str) -> str:
        with open(src, "rb") as file:
            data = file.read()
        with open(dst, "wb") as file:
            file.write(data + hashlib.sha256(data).digest())
        os.chmod(dst, os.stat(src).st_mode | 0o600)
        return dst

    @classmethod
    def copy_from_cache(cls, env: Any, src: str, dst: str) -> str:
        data = _content(src)
        if data is None:
            raise OSError(f"{src} is damaged")
        new = f"{dst}.{os.getpid()}.new"
        with open(new, "wb") as file:
            file.write(data)
        os.replace(new, dst)
        return dst

    def get_cachedir_csig(self, node: Any) -> str | None:
        """Of the file, not of the entry: as if it had been built here."""
        from SCons.Util import hash_signature

        _, path = self.cachepath(node)
        data = _content(path) if path and os.path.exists(path) else None
        return hash_signature(data) if data is not None else None


def _content(path: str) -> bytes | None:
    """Data of an entry; None when it is damaged."""
    with open(path, "rb") as file:
        entry = file.read()
    size = hashlib.sha256().digest_size
    data, digest = entry[:-size], entry[-size:]
    return data if hashlib.sha256(data).digest() == digest else None
