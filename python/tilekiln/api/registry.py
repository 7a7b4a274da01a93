# SPDX-License-Identifier: MIT
"""Libraries that this process built, and caches that hold what was chosen among libraries.

It stands below `library`, `operators`, `just_in_time` and PyTorch's fast path, each of which writes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .library import Library

built: list[Library] = []
"""Made by `jit` in this process, the newest first."""
cache_clear_hooks: list[Callable[[], None]] = []
"""Functions that clear the caches of which library serves which call."""


def invalidate() -> None:
    """Clear every cache of available libraries and of what served which call: another library is there."""
    for clear in cache_clear_hooks:
        clear()
