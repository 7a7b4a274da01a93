# SPDX-License-Identifier: MIT
"""The one error of the generator, and how it suggests the right word."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from codegen.schema.language import nearest

__all__ = ["CodegenError", "SelectionError", "nearest", "no_such"]


class CodegenError(Exception):
    """Something people wrote is wrong. str() is the whole message; programs exit with `code`."""

    code = 2


def warn(message: str) -> None:
    """Says on stderr what people should know and nothing stops for."""
    print(f"codegen: warning: {message}", file=sys.stderr)


class SelectionError(CodegenError):
    """A selection is wrong at `offset` of its text. Whoever knows where the text stands says so in front."""

    def __init__(self, message: str, text: str, offset: int) -> None:
        super().__init__(message)
        self.message, self.text, self.offset = message, text, offset

    def shown(self, source: str) -> CodegenError:
        """The same error for a text that people typed, with a mark under the word."""
        return CodegenError(f"{source}: {self.message}\n  {self.text}\n  {' ' * self.offset}^")


def no_such(kind: str, word: str, choices: Iterable[str], plural: str = "") -> str:
    """`no KIND 'WORD'; nearest: X` and, on a second line where `plural` is given, all choices."""
    listed = list(choices)
    near = nearest(word, listed)
    text = f"no {kind} '{word}'" + (f"; nearest: {', '.join(near)}" if near else "")
    return text + (f"\n{plural}: {', '.join(listed)}" if plural else "")
