"""The selection language: `axis=value[,value]` and `axis!=value[,value]`.

Conditions side by side must all hold; clauses are separated by the word `or`, and one that holds is enough. Booleans
are yes and no. A YAML list of texts is one `or` of them. `dtype=bf16 hdim_q=64,128 or dtype=fp32 mask!=none`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from codegen.errors import SelectionError, nearest

if TYPE_CHECKING:
    from codegen.axes import Axis, Family

_WORD = re.compile(r"\S+")
_VALUE = re.compile(r"[^,]+")
_CONDITION = re.compile(r"([^=!]*)(!=|==?)([^=!]*)")

_YES_NO = {"true": "yes", "on": "yes", "1": "yes", "y": "yes", "false": "no", "off": "no", "0": "no", "n": "no"}

Clause = tuple[int, ...]  # by axis: the set of allowed codes, one bit each


class NoValueError(SelectionError):
    """Conditions that nothing of a family can meet; something of another may."""


class Condition(NamedTuple):
    axis: str
    negated: bool
    values: tuple[str, ...]
    offset: int  # of the condition in the text
    offsets: tuple[int, ...]  # of the values


def parse(text: str) -> list[list[Condition]]:
    """The clauses of a text, axes and values not looked at yet. An empty text has one clause that always holds."""
    clauses: list[list[Condition]] = [[]]
    joint = 0  # offset of an `or` that still needs something after it
    for match in _WORD.finditer(text):
        word, offset = match.group(), match.start()
        if word in ("or", "|", "||", "OR"):
            if word != "or":
                raise SelectionError(f"'{word}' is written 'or'", text, offset)
            if not clauses[-1]:
                raise SelectionError("nothing stands before this 'or'", text, offset)
            clauses.append([])
            joint = offset
            continue
        if word.lower() in ("and", "&", "&&"):
            raise SelectionError(f"'{word}' is not needed: conditions side by side must all hold", text, offset)
        split = _CONDITION.fullmatch(word)
        if split is None or not split[1]:
            raise SelectionError(f"'{word}' is no condition: write axis=value[,value] or axis!=value", text, offset)
        if split[2] == "==":
            raise SelectionError(f"'==' is written '=': {split[1]}={split[3]}", text, offset)
        if not all(split[3].split(",")):
            raise SelectionError(f"'{word}' lacks a value", text, offset + split.end(2))
        values = tuple(split[3].split(","))
        offsets = tuple(offset + split.start(3) + match.start() for match in _VALUE.finditer(split[3]))
        clauses[-1].append(Condition(split[1], split[2] == "!=", values, offset, offsets))
    if len(clauses) > 1 and not clauses[-1]:
        raise SelectionError("nothing stands after this 'or'", text, joint)
    return clauses


def _no_value(families: Sequence[Family], axis: str, value: str, values: Sequence[str]) -> str:
    """What to say of a value that an axis of these families does not have."""
    spelled = _YES_NO.get(value.lower(), "")
    near = [spelled] if spelled in values else nearest(value, values)
    of = f" of {families[0].name}" if len(families) == 1 else ""
    choice = f"nearest: {', '.join(near)}; " if near and (spelled or len(values) > 3) else ""
    return f"axis '{axis}'{of} has no value '{value}'; {choice}values: {', '.join(values)}"


def _no_axis(families: Sequence[Family], axis: str) -> str:
    """What to say of an axis that none of these families has."""
    known = list(dict.fromkeys(name for family in families for name in family.axis_of))
    near = ", ".join(nearest(axis, known))
    choice = f"nearest: {near}" if near else f"axes: {', '.join(known)}"
    of = f" in {families[0].name}" if len(families) == 1 else ""
    return f"no axis '{axis}'{of}; {choice}"


def _codes(family: Family, axis: Axis, condition: Condition, text: str) -> int:
    codes = 0
    for value, offset in zip(condition.values, condition.offsets, strict=True):
        if value not in axis.code_of:
            raise SelectionError(_no_value([family], axis.name, value, axis.values), text, offset)
        codes |= 1 << axis.code_of[value]
    return axis.all_codes & ~codes if condition.negated else codes


def bind_clause(family: Family, conditions: Sequence[Condition], text: str) -> Clause:
    allowed = list(family.everything)
    for condition in conditions:
        axis = family.axis_of.get(condition.axis)
        if axis is None:
            raise SelectionError(_no_axis([family], condition.axis), text, condition.offset)
        allowed[axis.position] &= _codes(family, axis, condition, text)
        if not allowed[axis.position]:
            raise NoValueError(f"this leaves no value of axis '{axis.name}'", text, condition.offset)
    return tuple(allowed)


def bind(family: Family, text: str) -> list[Clause]:
    """The clauses of a text over a family's axes. SelectionError names a wrong word and the nearest right one."""
    return [bind_clause(family, conditions, text) for conditions in parse(text)]


def bind_any(families: Sequence[Family], text: str, first: Collection[str] = ()) -> dict[str, list[Clause]]:
    """Clauses by family. What only other families have, a clause that asks for it selects nothing of this one.

    `family` stands for the name of the family, as if it were an axis. Errors speak of the families that are named in
    `first`, as those of a receipt, where they have the axis.
    """
    names = [family.name for family in families]
    known: dict[str, set[str]] = {}
    for family in families:
        for axis in family.axes:
            known.setdefault(axis.name, set()).update(axis.values)
    result: dict[str, list[Clause]] = {family.name: [] for family in families}
    for conditions in parse(text):
        found, empty = False, None
        asked_of = [
            f for f in families if all(_is_of(f.name, names, c, text) for c in conditions if c.axis == "family")
        ]
        _check_words(families, asked_of, first, conditions, text)
        for family in asked_of:
            own = [_without_foreign(family, condition, known) for condition in conditions if condition.axis != "family"]
            if None not in own:
                asked = [condition for condition in own if condition is not None and condition.values]
                try:
                    result[family.name].append(bind_clause(family, asked, text))
                    found = True
                except NoValueError as error:
                    empty = error
        if empty and not found:
            raise empty
    return result


def _check_words(
    families: Sequence[Family],
    asked: Sequence[Family],
    first: Collection[str],
    conditions: Sequence[Condition],
    text: str,
) -> None:
    """SelectionError where a condition of a clause that asks some families names an axis or a value that none has."""
    for condition in conditions:
        if condition.axis == "family":
            continue
        having = [family for family in families if condition.axis in family.axis_of]
        if not having:
            of = [family for family in asked if family.name in first] or asked or families
            raise SelectionError(_no_axis(of, condition.axis), text, condition.offset)
        known = {value for family in having for value in family.axis_of[condition.axis].values}
        having = [family for family in having if family in asked] or having
        having = [family for family in having if family.name in first] or having
        for value, offset in zip(condition.values, condition.offsets, strict=True):
            if value not in known:
                every = dict.fromkeys(v for family in having for v in family.axis_of[condition.axis].values)
                values = sorted(every, key=int) if all(map(str.isdigit, every)) else list(every)
                raise SelectionError(_no_value(having, condition.axis, value, values), text, offset)


def _is_of(name: str, names: Sequence[str], condition: Condition, text: str) -> bool:
    """Whether a condition on the family holds for one of that name."""
    for value, offset in zip(condition.values, condition.offsets, strict=True):
        if value not in names:
            near = (
                f"nearest: {', '.join(found)}" if (found := nearest(value, names)) else f"families: {', '.join(names)}"
            )
            raise SelectionError(f"no family '{value}'; {near}", text, offset)
    return (name in condition.values) != condition.negated


def _without_foreign(family: Family, condition: Condition, known: Mapping[str, set[str]]) -> Condition | None:
    """A condition without the values that only other families have; None when it then holds for nothing."""
    axis = family.axis_of.get(condition.axis)
    if axis is None:
        return None if condition.axis in known else condition
    pairs = zip(condition.values, condition.offsets, strict=True)
    kept = [(v, at) for v, at in pairs if v in axis.code_of or v not in known[axis.name]]
    if not kept and not condition.negated:
        return None
    return condition._replace(values=tuple(v for v, _ in kept), offsets=tuple(at for _, at in kept))


def text_of(family: Family, clause: Clause) -> str:
    """A clause as people write it, with != where that is much shorter; `everything` when it has no condition."""
    words = []
    for axis, allowed in zip(family.axes, clause, strict=True):
        if allowed != axis.all_codes:
            values = [value for code, value in enumerate(axis.values) if allowed >> code & 1]
            others = [value for code, value in enumerate(axis.values) if not allowed >> code & 1]
            shorter = 2 * len(others) < len(values)
            words.append(f"{axis.name}{'!=' if shorter else '='}{','.join(others if shorter else values)}")
    return " ".join(words) or "everything"


def typed(families: Sequence[Family], text: str, source: str, first: Collection[str] = ()) -> dict[str, list[Clause]]:
    """bind_any for a text that a person typed; `source` is where, e.g. `--where`."""
    try:
        return bind_any(families, text, first)
    except SelectionError as error:
        raise error.shown(source) from error
