"""What the build says: one line an action, coloured and counted on a terminal, plain when piped."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

COLOURS = {"compile": "36", "join": "34", "link": "32", "write": "90", "run": "35", "built": "32;1"}
_lock = threading.Lock()


def on_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if on_terminal() else text


def red(text: str) -> str:
    return paint(text, "31;1")


class Progress:
    """How many of the steps towards the goals have been looked at; shown before each line on a terminal."""

    def __init__(self) -> None:
        self.steps: set[str] = set()
        self.done = 0

    def aim(self, goals: Iterable[Any]) -> None:
        """Counts the steps that `goals` (SCons nodes) need."""
        waiting, seen = list(goals), set()
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += [*node.sources, *node.depends]
        self.steps = {str(node) for node in seen if node.has_explicit_builder()}

    def visit(self, node: Any) -> None:
        if str(node) in self.steps:
            self.done += 1

    def prefix(self) -> str:
        return f"[{self.done:>{len(str(len(self.steps)))}}/{len(self.steps)}] " if self.steps else ""


progress = Progress()


def line(verb: str, label: str) -> str:
    return f"{paint(f'{verb:<7}', COLOURS[verb])} {label}"


def action(verb: str, label: str) -> str:
    return progress.prefix() + line(verb, label)


def block(text: str) -> None:
    """Prints whole: lines of jobs that run at once do not mix."""
    with _lock:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
