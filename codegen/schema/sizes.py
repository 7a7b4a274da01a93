# SPDX-License-Identifier: MIT
"""Sizes as people write and read them: 800 kB, 20 MB, 1.5 GB. Powers of ten."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse(text: str) -> int:
    """Bytes of a size above 0. ValueError says how to write one."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", text, re.IGNORECASE)
    bytes_ = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if not bytes_:
        raise ValueError(f"'{text}' is no size; write it as 800 kB, 20 MB or 1.5 GB")
    return bytes_


def shown(count: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1e3:.0f} kB"
