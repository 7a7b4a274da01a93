# SPDX-License-Identifier: MIT
"""Numbers of callers, checked."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from .native import ArgumentError


def integer(name: str, value: SupportsIndex, least: int) -> int:
    """An int32 of least or more; else ArgumentError names the argument."""
    try:
        result = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}: was {value!r}, must be an integer") from None
    if not least <= result < 2**31:
        raise ArgumentError(f"{name}: was {result}, must be in [{least}, {2**31 - 1}]")
    return result
