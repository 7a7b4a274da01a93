# SPDX-License-Identifier: MIT
"""Values of fields: a number, or a word of the selection language; yes and no are words, too.

So that problems, keys and JSON of Python and C++ mean the same, every value is an int, a str or None (nothing said).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .._binding import ArgumentError

    Value = int | str | None

OFF = frozenset({None, "no", "none"})
"""Names of an absent feature: equal where a problem meets a key."""


def value_of(value: Any) -> Value:
    """A value as the dispatcher holds it: True is yes, "64" is 64, "" is None. ArgumentError for other types."""
    if value.__class__ is str:
        if not value:
            return None
        digits = value[1:] if value[0] == "-" else value
        return int(value) if digits.isdecimal() and digits.isascii() and len(value) < 18 else value
    if value.__class__ is bool:
        return "yes" if value else "no"
    if value is None or value.__class__ is int:
        return value
    import operator

    try:
        return operator.index(value)
    except TypeError:
        raise refusal("value", repr(value), "a number, yes, no or another word") from None


def text(value: Value) -> str:
    """As the selection language writes it; "" of nothing."""
    return "" if value is None else str(value)


def refusal(name: str, was: object, must: str) -> ArgumentError:
    """The ArgumentError of a wrong value."""
    from .._core.native import ArgumentError

    return ArgumentError(f"{name}: was {was}, must be {must}")


def listed(words: Iterable[str]) -> str:
    """For people: a, b or c."""
    every = list(words)
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} or {every[-1]}"


def no_such(kind: str, word: str, known: Iterable[str]) -> str:
    """The sentence for a word that there is not, with the nearest that there is."""
    from .._core.language import nearest

    every = list(known)
    near = nearest(word, every)
    return f"{kind}: there is no '{word}'; " + (
        f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(every)}"
    )
