"""What the build says: one line an action, coloured and counted on a terminal, plain when piped."""

from __future__ import annotations

import os
import sys
import threading

COLOURS = {"compile": "36", "join": "34", "link": "32", "write": "90", "run": "35", "built": "32;1"}
_lock = threading.Lock()


def on_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if on_terminal() else text


def red(text: str) -> str:
    return paint(text, "31;1")


class Progress:
    """How many of the steps that the build declared have been looked at; shown before each line on a terminal."""

    def __init__(self) -> None:
        self.total = 0
        self.names: set[str] = set()
        self.done = 0

    def declare(self, name: str) -> None:
        self.names.add(name)

    def visit(self, node: object) -> None:
        if str(node) in self.names:
            self.done += 1

    def prefix(self) -> str:
        return f"[{self.done:>{len(str(len(self.names)))}}/{len(self.names)}] " if self.names and on_terminal() else ""


progress = Progress()


def action(verb: str, label: str) -> str:
    return f"{progress.prefix()}{paint(f'{verb:<7}', COLOURS[verb])} {label}"


def block(text: str) -> None:
    """Prints whole: lines of jobs that run at once do not mix."""
    with _lock:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
