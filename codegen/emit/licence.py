# SPDX-License-Identifier: MIT
"""The line by which a source says its licence (https://spdx.dev), for people and for tools that list licences."""

from __future__ import annotations

import os

_TAG = "SPDX-License-Identifier"
LINE = f"{_TAG}: MIT"
_SHELL, _C, _CPP = f"# {LINE}\n", f"/* {LINE} */\n", f"// {LINE}\n"
_COMMENTS = {
    **dict.fromkeys((".py", ".pyi", ".sh"), _SHELL),
    ".c": _C,
    **dict.fromkeys((".cpp", ".cu", ".h", ".hip", ".hpp", ".inc"), _CPP),
}
_NAMED = dict.fromkeys(("SConstruct", "SConscript", "Dockerfile", "tools/dev", ".ci/run"), _SHELL)


def line(path: str) -> str:
    """Of a source by its path in the tree, with its comment's signs; "" where the file is no source."""
    if path.startswith("include/") and path.endswith(".h"):
        return _C
    return _NAMED.get(path, _COMMENTS.get(os.path.splitext(path)[1], ""))
