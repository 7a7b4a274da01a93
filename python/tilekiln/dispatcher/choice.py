# SPDX-License-Identifier: MIT
"""The one choice (chooser.h): rules that weigh a kernel against others that answer a problem,
whether a key answers and why not, and the kernels of a registry in order."""

from __future__ import annotations

from collections import namedtuple

from ._fields import DETAILS, LIMITS, PADS, SIZES, USUAL, VARIABLE_SEQLEN_K
from .problem import UNASKED
from .words import OFF, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .instance import Instance
    from .key import Key
    from .problem import Problem
    from .words import Value

    Clauses = list[list[tuple[str, str, int]]]
    Rules = tuple[tuple[str, ...], tuple[tuple[str, str, int], ...], Clauses, Clauses, int]
    Kernel = tuple[str, str, str, dict[str, Value], dict[str, Value], Rules, int, int, bool]

PRIORITIES = ("low", "normal", "high")  # whose numbers are their places
NOTHING: frozenset[str] = frozenset()
_chooser: Any = None


class Measured(namedtuple("Measured", "id settings", defaults=({},))):
    """A kernel that was measured to be the fastest: its id, and what the call is told besides (num_splits, ...)."""

    __slots__ = ()

    if TYPE_CHECKING:
        id: str
        settings: Mapping[str, int] = {}


class SizeRule:
    """A selection over sizes: "seqlen_q>=1 seqlen_q<=8 or ...". "" always holds."""

    __slots__ = ("clauses", "text")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.clauses: Clauses = []
        if text:
            from .._core.language import parse

            wrong = refusal("rule", f'"{text}"', "such as seqlen_q>=1 seqlen_q<=8")
            for clause in parse(text, lambda *_: wrong):
                for one in clause:
                    if one.negated or len(one.values) > 1 or not one.values[0].removeprefix("-").isdecimal():
                        raise wrong
                self.clauses.append([(one.axis, one.sign, int(one.values[0])) for one in clause])

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether the sizes of a problem meet it; one that has none is 0."""
        holds: bool = chooser().rule_holds(self.clauses, values)
        return holds


class Choice:
    """Rules that weigh a kernel against others that answer the same problem.

    holds: fields of the signature that hold problems up to their value; all others must be equal. fit: the size of a
    problem, the number of the algorithm whose tile covers it, and that tile. needs: it answers no other problems. best:
    it is preferred there to one without, and one without to it elsewhere. rank: lower first. order: of the target,
    higher is faster.
    """

    __slots__ = ("best", "fit", "holds", "needs", "order", "rank")

    def __init__(
        self,
        holds: Iterable[str] = (),
        fit: Iterable[tuple[str, str, int]] = (),
        needs: SizeRule | str = "",
        best: SizeRule | str = "",
        rank: int = 0,
        order: int = 0,
    ) -> None:
        self.holds, self.fit = tuple(holds), tuple([(size, of, tile) for size, of, tile in fit])
        self.needs = SizeRule(needs) if isinstance(needs, str) else needs
        self.best = SizeRule(best) if isinstance(best, str) else best
        self.rank, self.order = rank, order

    @property
    def rules(self) -> Rules:
        """All but the rank, as the choice takes it."""
        return self.holds, self.fit, self.needs.clauses, self.best.clauses, self.order


PLAIN = Choice()


def chooser() -> Any:
    """The binding, which is loaded by the first plan and told the tables of fields."""
    global _chooser
    if _chooser is None:
        from .._core import native  # isort: skip
        from .. import _binding  # isort: skip

        assert native
        made: Any = _binding
        made.terms([*sorted(DETAILS), *sorted(SIZES)], USUAL, VARIABLE_SEQLEN_K, PADS, LIMITS)
        _chooser = made
    return _chooser


def kernel_of(
    key: Key, choice: Choice, origin: str = "", priority: int = 0, rank: int = 0, asks: bool = False
) -> Kernel:
    """A kernel as the choice takes it. asks: what it answers its instance says."""
    return key.family, key.target, origin, key.signature, key.algorithm, choice.rules, priority, rank, asks


def features_asked(values: Mapping[str, Value]) -> list[str]:
    """The features that a problem asks for: a kernel that does not know one of them does not answer."""
    usual = USUAL.get
    return [
        field
        for field, value in values.items()
        if value.__class__ is str and field not in UNASKED and value not in OFF and usual(field) != value
    ]


def mismatch(key: Key, choice: Choice, problem: Problem) -> str:
    """The reason why a key does not answer a problem; "" where it does.

    The target is the registry's to filter, unless the problem names one.
    """
    reason: str = chooser().mismatch(kernel_of(key, choice), problem._values, choice.needs.text)
    return reason


def differences(key: Key, choice: Choice, problem: Problem) -> int:
    """The number of fields of its signature in which a key does not answer a problem."""
    count: int = chooser().differences(kernel_of(key, choice), problem._values)
    return count


class Entry:
    """An instance of a registry, with what the registry knows of it."""

    __slots__ = ("id", "instance", "priority", "rank")

    def __init__(self, instance: Instance, id_: str, priority: int, rank: int) -> None:
        self.instance, self.id, self.priority, self.rank = instance, id_, priority, rank


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Priority, the highest first; then rank, capacity, numbers of the algorithm by name, and name."""
    numbers: dict[int, list[int]] = {}

    def order(entry: Entry) -> tuple[int, int, int, int, list[int], str]:
        key = entry.instance.key
        algorithm = numbers.get(id(key.algorithm))
        if algorithm is None:
            algorithm = [value for _, value in sorted(key.algorithm.items()) if isinstance(value, int)]
            numbers[id(key.algorithm)] = algorithm
        hdim_q, hdim_v = key.signature.get("hdim_q"), key.signature.get("hdim_v")
        held_q, held_v = hdim_q if isinstance(hdim_q, int) else 0, hdim_v if isinstance(hdim_v, int) else 0
        return -entry.priority, entry.rank, held_q, held_v, algorithm, entry.instance.name

    return sorted(entries, key=order)


class Index:
    """A registry as it was when this was made."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.by_id = {entry.id: entry for entry in entries}
        self._elsewhere: dict[tuple[str, ...], frozenset[str]] = {}
        kernels = []
        for entry in entries:
            instance = entry.instance
            asks = not instance.answers_by_key
            kernels.append(kernel_of(instance.key, instance.choice, instance.origin, entry.priority, entry.rank, asks))
        self._chooser = chooser().Chooser(kernels)

    def known(self, family: str) -> set[str]:
        """Every field that a key of a family says."""
        keys = (entry.instance.key for entry in self.entries)
        return set().union(*(key.signature for key in keys if key.family == family))

    def elsewhere(self, families: Sequence[str], family: str) -> frozenset[str]:
        """Fields that only other stages of a call know: this one need not."""
        at = (*families, family)
        found = self._elsewhere.get(at)
        if found is None:
            known = set[str]().union(*map(self.known, families))
            found = self._elsewhere[at] = frozenset(known - self.known(family))
        return found

    def select(self, problem: Problem, forgiven: frozenset[str] = NOTHING, origin: str | None = None) -> Entry | None:
        """The best of those that answer; None where there is none.

        forgiven: features that a kernel need not know. origin: of the kernel; None: any.
        """

        def asks(number: int) -> bool:
            return self.entries[number].instance.supports(without(problem, forgiven))

        found = self._chooser.choose(problem._values, forgiven, origin, asks)
        return None if found < 0 else self.entries[found]


def without(problem: Problem, forgiven: frozenset[str]) -> Problem:
    """The problem without the features that a stage need not know."""
    values = problem._values
    gone = forgiven.intersection(features_asked(values)) if forgiven else forgiven
    return type(problem).of({field: value for field, value in values.items() if field not in gone}) if gone else problem
