# SPDX-License-Identifier: MIT
"""The selection language (codegen.schema.language) over the axes of families, and over how their instances answer.

A clause says of each signature axis which values it allows. What a text says of `target`, `pipeline` and a family's
algorithm axes stays a list of conditions beside it (`Selected.how`).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from codegen.schema import language
from codegen.schema.errors import SelectionError, nearest
from codegen.schema.language import Condition

if TYPE_CHECKING:
    from codegen.schema.axes import Axis, Family

Clause = tuple[int, ...]  # by axis: the set of allowed codes, one bit each
Hows = Mapping[str, Mapping[str, Sequence[str]]]  # by family: what instances have, by algorithm axis

parse = functools.partial(language.parse, failure=SelectionError)


class NoValueError(SelectionError):
    """Conditions that nothing of a family can meet; something of another may."""


class Selected(NamedTuple):
    """Clause and conditions on algorithms, of one family, from one clause of a selection."""

    clause: Clause
    how: tuple[Condition, ...] = ()

    def answers(self, values: Mapping[str, str]) -> bool:
        """Whether an algorithm with these values (Algorithm.selectable) may answer. It meets nothing on an axis that
        its family has not."""
        return all(c.axis in values and c.holds(values[c.axis]) for c in self.how)


def _codes(family: Family, axis: Axis, condition: Condition, text: str) -> int:
    codes = 0
    if condition.ordered:
        if not all(value.isdecimal() for value in axis.values):
            raise SelectionError(language.no_order(axis.name), text, condition.offset)
        return sum(1 << code for code, value in enumerate(axis.values) if condition.holds(value))
    for value, offset in zip(condition.values, condition.offsets, strict=True):
        if value not in axis.code_of:
            raise SelectionError(language.no_value(axis.name, value, axis.values, f" of {family.name}"), text, offset)
        codes |= 1 << axis.code_of[value]
    return axis.all_codes & ~codes if condition.negated else codes


def bind_clause(family: Family, conditions: Sequence[Condition], text: str) -> Clause:
    allowed = list(family.everything)
    for condition in conditions:
        axis = family.axis_of.get(condition.axis)
        if axis is None:
            message = language.no_axis(condition.axis, family.axis_of, f" in {family.name}")
            raise SelectionError(message, text, condition.offset)
        allowed[axis.position] &= _codes(family, axis, condition, text)
        if not allowed[axis.position]:
            raise NoValueError(f"this leaves no value of axis '{axis.name}'", text, condition.offset)
    return tuple(allowed)


def bind(family: Family, text: str) -> list[Clause]:
    """The clauses of a text over a family's axes. SelectionError names a wrong word and the nearest right one."""
    return [bind_clause(family, conditions, text) for conditions in parse(text)]


def bind_any(
    families: Sequence[Family], text: str, hows: Hows, first: Collection[str] = ()
) -> dict[str, list[Selected]]:
    """Clauses of a text, by family. A clause that asks for an axis or value of other families alone selects nothing of
    this one.

    `family` stands for the name of the family, as if it were an axis; `hows` has the axes of algorithms. Errors speak
    of the families that are named in `first`, as those of a receipt, where they have the axis.
    """
    names = [family.name for family in families]
    known: dict[str, set[str]] = {}
    for family in families:
        for axis in family.axes:
            known.setdefault(axis.name, set()).update(axis.values)
        for name, values in hows[family.name].items():
            known.setdefault(name, set()).update(values)
    result: dict[str, list[Selected]] = {family.name: [] for family in families}
    for conditions in parse(text):
        found, empty = False, None
        asked_of = [
            f for f in families if all(_is_of(f.name, names, c, text) for c in conditions if c.axis == "family")
        ]
        _check_words(families, hows, asked_of, first, conditions, text)
        for family in asked_of:
            own = [_without_foreign(family, hows, c, known) for c in conditions if c.axis != "family"]
            if None not in own:
                asked = [condition for condition in own if condition is not None and condition.values]
                try:
                    result[family.name].append(_selected(family, hows[family.name], asked, text))
                    found = True
                except NoValueError as error:
                    empty = error
        if empty and not found:
            raise empty
    return result


def _values(family: Family, hows: Hows, axis: str) -> Sequence[str] | None:
    """The values of an axis of signatures or algorithms; None when the family has none of that name."""
    own = family.axis_of.get(axis)
    return own.values if own else hows[family.name].get(axis)


def _check_words(
    families: Sequence[Family],
    hows: Hows,
    asked: Sequence[Family],
    first: Collection[str],
    conditions: Sequence[Condition],
    text: str,
) -> None:
    """SelectionError where a condition of a clause that asks some families names an axis or a value that none has."""
    for condition in conditions:
        if condition.axis == "family":
            continue
        having = [family for family in families if _values(family, hows, condition.axis) is not None]
        if not having:
            of = [family for family in asked if family.name in first] or asked or families
            known = dict.fromkeys(name for family in of for name in (*family.axis_of, *hows[family.name]))
            where = f" in {of[0].name}" if len(of) == 1 else ""
            raise SelectionError(language.no_axis(condition.axis, known, where), text, condition.offset)
        if condition.ordered:
            continue
        every = {value for family in having for value in _values(family, hows, condition.axis) or ()}
        having = [family for family in having if family in asked] or having
        having = [family for family in having if family.name in first] or having
        for value, offset in zip(condition.values, condition.offsets, strict=True):
            if value not in every:
                shown = dict.fromkeys(v for family in having for v in _values(family, hows, condition.axis) or ())
                values = sorted(shown, key=int) if all(map(str.isdigit, shown)) else list(shown)
                where = f" of {having[0].name}" if len(having) == 1 else ""
                raise SelectionError(language.no_value(condition.axis, value, values, where), text, offset)


def _selected(
    family: Family, hows: Mapping[str, Sequence[str]], conditions: Sequence[Condition], text: str
) -> Selected:
    how = tuple(c for c in conditions if c.axis in hows and c.axis not in family.axis_of)
    for condition in how:
        values = hows[condition.axis]
        if condition.ordered and not all(value.isdecimal() for value in values):
            raise SelectionError(language.no_order(condition.axis), text, condition.offset)
        if not any(condition.holds(value) for value in values):
            raise NoValueError(f"this leaves no value of axis '{condition.axis}'", text, condition.offset)
    return Selected(bind_clause(family, [c for c in conditions if c not in how], text), how)


def _is_of(name: str, names: Sequence[str], condition: Condition, text: str) -> bool:
    """Whether a condition on the family holds for one of that name."""
    if condition.ordered:
        raise SelectionError("families have no order: write = or !=", text, condition.offset)
    for value, offset in zip(condition.values, condition.offsets, strict=True):
        if value not in names:
            near = (
                f"nearest: {', '.join(found)}" if (found := nearest(value, names)) else f"families: {', '.join(names)}"
            )
            raise SelectionError(f"no family '{value}'; {near}", text, offset)
    return (name in condition.values) != condition.negated


def _without_foreign(
    family: Family, hows: Hows, condition: Condition, known: Mapping[str, set[str]]
) -> Condition | None:
    """A condition without the values that only other families have; None when it then holds for nothing."""
    own = _values(family, hows, condition.axis)
    if own is None:
        return None if condition.axis in known else condition
    if condition.ordered:
        return condition
    pairs = zip(condition.values, condition.offsets, strict=True)
    kept = [(v, at) for v, at in pairs if v in own or v not in known[condition.axis]]
    if not kept and not condition.negated:
        return None
    return condition._replace(values=tuple(v for v, _ in kept), offsets=tuple(at for _, at in kept))


def both(clauses: Sequence[Clause], others: Sequence[Clause]) -> list[Clause]:
    """Signatures that meet a clause of each list, as clauses."""
    made = [tuple(a & b for a, b in zip(clause, other, strict=True)) for clause in clauses for other in others]
    return [clause for clause in made if all(clause)]


def minus(one: Clause, other: Clause) -> list[Clause]:
    """Signatures that meet one and not the other, as clauses that share nothing."""
    left, rest = [], one
    for at, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        if not mine & theirs:
            return [one]
        if mine & ~theirs:
            left.append((*rest[:at], mine & ~theirs, *rest[at + 1 :]))
        rest = (*rest[:at], mine & theirs, *rest[at + 1 :])
    return left


def apart(clauses: Sequence[Clause]) -> list[Clause]:
    """Without those that another one contains."""
    kept: list[Clause] = []
    for clause in clauses:
        if not any(_contains(one, clause) for one in kept):
            kept = [*(one for one in kept if not _contains(clause, one)), clause]
    return kept


def _contains(one: Clause, other: Clause) -> bool:
    return all(a & b == b for a, b in zip(one, other, strict=True))


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


def written(family: Family, selected: Selected) -> str:
    """The same with what it says of algorithms."""
    words = [] if selected.how and selected.clause == family.everything else [text_of(family, selected.clause)]
    return " ".join([*words, *map(str, selected.how)])


def typed(
    families: Sequence[Family], text: str, source: str, hows: Hows, first: Collection[str] = ()
) -> dict[str, list[Selected]]:
    """bind_any for a text that a person typed; `source` is where, e.g. `--where`."""
    try:
        return bind_any(families, text, hows, first)
    except SelectionError as error:
        raise error.shown(source) from error
