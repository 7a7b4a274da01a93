# SPDX-License-Identifier: MIT
"""The kernels of a registry, in order and by what they answer (tilekiln/dispatcher/chooser.h)."""

from __future__ import annotations

from .match import chooser, features_asked, kernel_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .instance import Instance
    from .problem import Problem

LOW, NORMAL, HIGH = 0, 1, 2
PRIORITIES = ("low", "normal", "high")
NOTHING: frozenset[str] = frozenset()


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


__all__ = ["HIGH", "LOW", "NORMAL", "PRIORITIES", "Entry", "Index", "in_order", "without"]
