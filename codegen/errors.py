"""The one error of the generator, and how it suggests the right word."""

from __future__ import annotations

import sys
from collections.abc import Iterable


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


def nearest(word: str, choices: Iterable[str], count: int = 1) -> list[str]:
    """The choices that look most like `word`; for numbers, the closest ones. Empty when none is near."""
    listed = list(choices)
    if word.lstrip("-").isdigit() and listed and all(choice.isdigit() for choice in listed):
        return sorted(listed, key=lambda choice: (abs(int(choice) - int(word)), int(choice)))[: max(count, 2)]
    import difflib  # 8 ms, only when there is an error to show

    folded = {choice.lower().replace("-", "_"): choice for choice in listed}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), folded, count, 0.5)
    if not found:  # a part of a longer word is near too: 'deflt' is caught above, 'seqlen' is not
        found = [choice for choice in folded if len(word) >= 3 and word.lower() in choice][:count]
    return [folded[choice] for choice in found]


def no_such(kind: str, word: str, choices: Iterable[str], plural: str = "") -> str:
    """`no KIND 'WORD'; nearest: X` and, on a second line where `plural` is given, all choices."""
    listed = list(choices)
    near = nearest(word, listed)
    text = f"no {kind} '{word}'" + (f"; nearest: {', '.join(near)}" if near else "")
    return text + (f"\n{plural}: {', '.join(listed)}" if plural else "")
