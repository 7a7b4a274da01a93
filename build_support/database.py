# SPDX-License-Identifier: MIT
"""SCons's database of a variant. A damaged one is none: everything is made anew, and a sentence says why."""

from __future__ import annotations

import os
from typing import Any

from SCons import dblite

from . import console


def open(name: str, mode: str) -> Any:  # noqa: A001 (as SConsignFile wants it)
    dblite.corruption_warning = _say  # SCons's own shows a traceback
    try:
        found = dblite.open(name, mode)
        if isinstance(found._dict, dict):
            return found
    except OSError:
        raise
    except Exception:  # pickle raises whatever the bytes lead to
        pass
    path = name + dblite.DBLITE_SUFFIX
    _say(path)
    os.remove(path)
    return dblite.open(name, mode)


def _say(path: str) -> None:
    console.block(f"damaged: {os.path.relpath(path)} cannot be read; everything is made anew")
