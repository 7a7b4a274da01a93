# SPDX-License-Identifier: MIT
"""Sections that Ctrl-C does not end: msgspec 0.22 does not expect an exception inside them.

Where KeyboardInterrupt comes while msgspec is imported, or looks at a type for the first time, the process ends by
a signal: the one is swallowed and leaves a null pointer, the other a freed type.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Leaves a SIGINT that comes inside to the handler of before, afterwards; it is the main thread's alone."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = list[Any]()
    try:
        signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for one in came[:1]:
            handler(*one)
