# SPDX-License-Identifier: MIT
"""Waits and s_nop in a disassembly, and how each is weakened."""

from __future__ import annotations

import re

WAIT = re.compile(r"^\ts_wait(cnt|_loadcnt|_dscnt|_kmcnt|_storecnt|_loadcnt_dscnt|_storecnt_dscnt)\b.*$", re.M)
NOP = re.compile(r"^\ts_nop (\d+)(.*)$", re.M)


def weakened(wait: str) -> list[str]:
    """The instruction with one of its counters allowed one more to be under way."""
    found = []
    for counter in re.finditer(r"(?<=cnt\()\d+(?=\))|(?<=cnt )0x[0-9a-f]+", wait):
        more = f"{int(counter.group(0), 0) + 1:#x}" if "x" in counter.group(0) else str(int(counter.group(0)) + 1)
        found.append(wait[: counter.start()] + more + wait[counter.end() :])
    return found
