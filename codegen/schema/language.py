# SPDX-License-Identifier: MIT
# SPDX-License-Identifier: MIT
"""The selection language: `axis=value[,value]`, `axis!=value[,value]`, `axis>=number`, `axis<=number`.

Conditions side by side must all hold; clauses are separated by the word `or`, and one that holds is enough. Booleans
are yes and no. `dtype=bf16 hdim_q=64,128 or dtype=fp32 hdim_q>=96 mask!=none`.

The generator and the Python facade read it with this one file (python/tilekiln/_core/language.py is a link to it), so
it imports nothing of either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

_WORD = re.compile(r"\S+")
_VALUE = re.compile(r"[^,]+")
_CONDITION = re.compile(r"([^=!<>]*)(!=|==?|[<>]=?)([^=!<>]*)")
_WILDCARDS = (
    "selections have no wildcards: write the values that it may have, as hdim_q=64,128, hdim_q>=64, or leave the axis "
    "out; a pattern of names is for grep, over what list shows"
)
_HOW = "write axis=value[,value], axis!=value, axis>=number or axis<=number"

YES_NO = {"true": "yes", "on": "yes", "1": "yes", "y": "yes", "false": "no", "off": "no", "0": "no", "n": "no"}

Failure = Callable[[str, str, int], Exception]
"""Makes the exception of a wrong selection from a message, the text and the offset of the wrong word."""


class Condition(NamedTuple):
    axis: str
    sign: str  # = != >= <=
    values: tuple[str, ...]
    offset: int  # of the condition in the text
    offsets: tuple[int, ...]  # of the values

    @property
    def negated(self) -> bool:
        return self.sign == "!="

    @property
    def ordered(self) -> bool:
        return self.sign in (">=", "<=")

    def holds(self, value: str) -> bool:
        """Whether a value, as text, meets it. Only numbers meet >= and <=."""
        if self.ordered:
            if not value.isdecimal():
                return False
            return int(value) >= int(self.values[0]) if self.sign == ">=" else int(value) <= int(self.values[0])
        return (value in self.values) != self.negated

    def __str__(self) -> str:
        return f"{self.axis}{self.sign}{','.join(self.values)}"


def parse(text: str, failure: Failure) -> list[list[Condition]]:
    """The clauses of a text, axes and values not looked at yet. An empty text has one clause that always holds."""
    clauses: list[list[Condition]] = [[]]
    joint = 0  # offset of an `or` that still needs something after it
    for match in _WORD.finditer(text):
        word, offset = match.group(), match.start()
        if word in ("or", "|", "||", "OR"):
            if word != "or":
                raise failure(f"'{word}' is written 'or'", text, offset)
            if not clauses[-1]:
                raise failure("nothing stands before this 'or'", text, offset)
            clauses.append([])
            joint = offset
            continue
        if word.lower() in ("and", "&", "&&"):
            raise failure(f"'{word}' is not needed: conditions side by side must all hold", text, offset)
        clauses[-1].append(_condition(word, offset, text, failure))
    if len(clauses) > 1 and not clauses[-1]:
        raise failure("nothing stands after this 'or'", text, joint)
    return clauses


def _condition(word: str, offset: int, text: str, failure: Failure) -> Condition:
    if wild := re.search(r"[*\[]", word):
        raise failure(f"'{word}' has a '{wild[0]}', and {_WILDCARDS}", text, offset)
    split = _CONDITION.fullmatch(word)
    if split is None or not split[1]:
        raise failure(f"'{word}' is no condition: {_HOW}", text, offset)
    axis, sign, listed = split.groups()
    if sign == "==":
        raise failure(f"'==' is written '=': {axis}={listed}", text, offset)
    if sign in ("<", ">"):
        raise failure(f"'{sign}' is written '{sign}=' and a number: '{word}'", text, offset)
    if not all(listed.split(",")):
        raise failure(f"'{word}' lacks a value", text, offset + split.end(2))
    values = tuple(listed.split(","))
    at = offset + split.start(3)
    if sign in (">=", "<=") and not listed.isdecimal():
        raise failure(f"'{sign}' takes one number, not '{listed}'", text, at)
    return Condition(axis, sign, values, offset, tuple(at + value.start() for value in _VALUE.finditer(listed)))


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


def no_axis(word: str, axes: Iterable[str], where: str = "") -> str:
    """The message for an axis that does not exist; `where` is ` in FAMILY` when one is asked."""
    listed = list(axes)
    near = ", ".join(nearest(word, listed))
    return f"no axis '{word}'{where}; " + (f"nearest: {near}" if near else f"axes: {', '.join(listed)}")


def no_value(axis: str, word: str, values: Iterable[str], where: str = "") -> str:
    """The message for a value that an axis does not have; `where` is ` of FAMILY` when one is asked."""
    listed = list(values)
    spelled = YES_NO.get(word.lower(), "")
    near = [spelled] if spelled in listed else nearest(word, listed)
    choice = f"nearest: {', '.join(near)}; " if near and (spelled or len(listed) > 3) else ""
    return f"axis '{axis}'{where} has no value '{word}'; {choice}values: {', '.join(listed)}"


def no_order(axis: str) -> str:
    """The message for >= and <= on an axis whose values are no numbers."""
    return f"the values of axis '{axis}' have no order: write = or !="
