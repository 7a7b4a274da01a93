# SPDX-License-Identifier: MIT
"""Refusal of subinterpreters: NumPy does not load there, and streams call Python from the main one's threads."""

import importlib
import sys


def check() -> None:
    """ImportError in a subinterpreter."""
    try:
        interpreters = importlib.import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:  # another Python than CPython: it has none
        return
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "tilekiln: this is a subinterpreter, and NumPy, which tilekiln needs, loads in the main interpreter alone. "
            "Import tilekiln there, and call it from threads, or start processes (multiprocessing) in place of "
            "subinterpreters"
        )
