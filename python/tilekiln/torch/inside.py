# SPDX-License-Identifier: MIT
"""State of `use`: how many blocks of it a thread is in, and the reasons for calls that it leaves to torch."""

from __future__ import annotations

import os
import sys
import threading

import torch


class _Depth(threading.local):
    """Number of `use` blocks that this thread is in."""

    value = 0


depth = _Depth()
_said: set[tuple[str, str]] = set()


def say(function: str, reason: str) -> None:
    """Says once on stderr, with TILEKILN_VERBOSE=dispatch, that torch's own function was called, and the reason."""
    if torch.compiler.is_compiling():
        return
    told = "dispatch" in os.environ.get("TILEKILN_VERBOSE", "").replace(",", " ").split()
    if told and (function, reason) not in _said:
        _said.add((function, reason))
        print(f"tilekiln.torch.use: torch's own {function}, because {reason}", file=sys.stderr)
