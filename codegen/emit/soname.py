# SPDX-License-Identifier: MIT
"""Name that programs ask the loader for: the library's file and the number of the C ABI, libtilekiln_flash.so.2."""

from __future__ import annotations

import os
import re


def abi_version(root: str) -> int:
    """TILEKILN_ABI_VERSION of a tree's public headers."""
    with open(os.path.join(root, "include/tilekiln/base.h"), encoding="utf-8") as file:
        found = re.search(r"^#define TILEKILN_ABI_VERSION (\d+)$", file.read(), re.MULTILINE)
    assert found, "base.h has the number of the ABI"
    return int(found[1])


def soname(library: str, root: str) -> str:
    """Of a library's file name; macOS's libraries have no number, and are their own."""
    return f"{library}.{abi_version(root)}" if library.endswith(".so") else library


def link(library: str, root: str) -> str:
    """Makes the link beside a library that is built, or will be; its path."""
    folder, name = os.path.split(library)
    path = os.path.join(folder, soname(name, root))
    if path != library and not (os.path.islink(path) and os.readlink(path) == name):
        os.makedirs(folder, exist_ok=True)
        new = f"{path}.new"
        if os.path.lexists(new):
            os.remove(new)
        os.symlink(name, new)
        os.replace(new, path)
    return path
