"""The kernels of a registry by what they answer, so that a choice among ten thousand looks at a handful.

Kernels whose keys say the same fields are of one shape. Fields that must be equal are hashed; of those alike in them,
the least capacity comes first. Kernels that differ only in what no problem sees (target, rank, name) are ranked once.
"""

from __future__ import annotations

from collections import namedtuple
from operator import itemgetter

from .match import asks_of_sizes, features_asked, steering, why_unfit
from .problem import UNASKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from .choice import Choice
    from .instance import Instance
    from .problem import Problem
    from .words import Value

    Scored = tuple[tuple[Any, ...], "Entry"]
    Places = list[tuple[tuple[str, ...], "_Bucket"]]

LOW, NORMAL, HIGH = 0, 1, 2
PRIORITIES = ("low", "normal", "high")
NOTHING: frozenset[str] = frozenset()
_MOST_KEPT = 4096


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


class _Part(namedtuple("_Part", "entry choice priority last plain")):
    """Kernels of one capacity that every problem weighs alike, by the first of them."""

    __slots__ = ()

    if TYPE_CHECKING:
        entry: Entry
        choice: Choice
        priority: int
        last: tuple[int, int, int]  # the end of the score: order of the target, rank, place
        plain: bool  # its key says all


class _Group:
    """Kernels of one capacity."""

    __slots__ = ("_best", "_plain", "_sizes", "capacity", "held", "parts")

    def __init__(self, capacity: tuple[int, ...], parts: list[_Part]) -> None:
        self.held, self.capacity, self.parts = sum(capacity), capacity, parts
        self._sizes = sorted({field for part in parts for field in part.choice.sizes()})
        self._plain = all(part.plain for part in parts)
        self._best: dict[tuple[Value, ...], Scored | None] = {}

    def best(self, problem: Problem, values: Mapping[str, Value]) -> Scored | None:
        """The first of those that answer, with its score; None where none does."""
        if not self._plain:
            return self._search(problem, values)
        sizes = tuple(map(values.get, self._sizes))
        try:
            return self._best[sizes]
        except KeyError:
            if len(self._best) >= _MOST_KEPT:
                self._best.clear()
            found = self._best[sizes] = self._search(problem, values)
            return found

    def _search(self, problem: Problem, values: Mapping[str, Value]) -> Scored | None:
        found: Scored | None = None
        for part in self.parts:
            choice = part.choice
            if choice.needs.clauses and not choice.needs.holds(values):
                continue
            if not part.plain and not _answers(part.entry, problem):
                continue
            score = (-part.priority, *choice.fitted(values), *part.last)
            if found is None or score < found[0]:
                found = score, part.entry
        return found


class _Bucket:
    __slots__ = ("fits", "groups")

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.fits: dict[tuple[Value, ...], list[tuple[int, _Group]]] = {}

    def fitting(self, wants: tuple[Value, ...]) -> list[tuple[int, _Group]]:
        """The groups that hold what a problem wants, with what they waste, the least first."""
        found = self.fits.get(wants)
        if found is None:
            numbers = [want if isinstance(want, int) else 0 for want in wants]
            fits = [one for one in self.groups if all(w <= c for w, c in zip(numbers, one.capacity, strict=True))]
            found = [(one.held - sum(numbers), one) for one in fits]
            if len(self.fits) >= _MOST_KEPT:
                self.fits.clear()
            self.fits[wants] = found
        return found


class _Shape:
    __slots__ = ("buckets", "equal", "holds", "known")

    def __init__(self, equal: tuple[str, ...], holds: tuple[str, ...], known: frozenset[str]) -> None:
        self.equal, self.holds, self.known = equal, holds, known  # a known field in neither is of any value
        self.buckets: dict[tuple[Value, ...], _Bucket] = {}


class Index:
    """A registry as it was when this was made."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.by_id = {entry.id: entry for entry in entries}
        self._families: dict[str, list[_Shape]] = {}
        self._narrower: dict[tuple[Value, str | None], Index] = {}
        self._elsewhere: dict[tuple[str, ...], frozenset[str]] = {}
        # By the names of what problems say: what reads those that say where a kernel is, and by these where that is.
        self._said: dict[tuple[str, ...], tuple[Callable[[Mapping[str, Value]], Any], dict[object, Places]]] = {}
        self._build()

    def _build(self) -> None:
        gathered: dict[_ShapeOf, dict[tuple[Value, ...], list[_Placed]]] = {}
        for place, entry in enumerate(self.entries):
            key, choice = entry.instance.key, entry.instance.choice
            meaning, signature, holds = steering(key.signature), key.signature, choice.holds
            equal = tuple(name for name, value in signature.items() if value is not None and name not in holds)
            held = tuple(name for name in holds if signature.get(name) is not None)
            capacity = tuple([value if isinstance(value := signature[name], int) else 0 for name in held])
            at = tuple(map(meaning.get, equal))
            shape_of = key.family, equal, held, frozenset(signature)
            gathered.setdefault(shape_of, {}).setdefault(at, []).append((capacity, place, entry))
        for (family, equal, held, known), buckets in gathered.items():
            shape = _Shape(equal, held, known)
            self._families.setdefault(family, []).append(shape)
            for at, placed in buckets.items():
                bucket = shape.buckets[at] = _Bucket()
                groups: dict[tuple[int, ...], list[tuple[int, Entry]]] = {}
                for capacity, place, entry in placed:
                    groups.setdefault(capacity, []).append((place, entry))
                made = [_Group(capacity, _parts(of)) for capacity, of in groups.items()]
                bucket.groups = sorted(made, key=lambda group: group.held)

    def known(self, family: str) -> set[str]:
        """Every field that a key of a family says."""
        return set().union(*(shape.known for shape in self._families.get(family, ())))

    def narrowed(self, target: Value, origin: str | None) -> Index:
        """Of those for a target, or for any, and of one origin; None: all."""
        if target is None and origin is None:
            return self
        made = self._narrower.get((target, origin))
        if made is None:
            kept = [
                entry for entry in self.entries
                if (target is None or entry.instance.key.target in ("", target))
                and (origin is None or entry.instance.origin == origin)
            ]  # fmt: skip
            made = self._narrower[target, origin] = self if len(kept) == len(self.entries) else Index(kept)
        return made

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
        values = problem._values
        target = values.get("target")
        if target is not None or origin is not None:
            return self.narrowed(target, origin)._select(problem, values, forgiven)
        return self._select(problem, values, forgiven)

    def _select(self, problem: Problem, values: Mapping[str, Value], forgiven: frozenset[str]) -> Entry | None:
        said = self._said.get(names := tuple(values))
        if said is None:
            said = self._said[names] = self._steering(names), {}
        at = said[0](values), forgiven
        buckets = said[1].get(at)
        if buckets is None:
            buckets = self._buckets(values, forgiven)
            if len(said[1]) >= _MOST_KEPT:
                said[1].clear()
            said[1][at] = buckets
        best: Scored | None = None
        least = 0
        for holds, bucket in buckets:
            for waste, group in bucket.fitting(tuple(map(values.get, holds))):
                if best is not None and waste > least:
                    break
                found = group.best(problem, values)
                if found is not None and (best is None or waste < least or found[0] < best[0]):
                    best, least = found, waste
        return None if best is None else best[1]

    def _steering(self, names: Iterable[str]) -> Callable[[Mapping[str, Value]], Any]:
        """A reader of those fields among `names` that kernels must equal: sizes and `holds` are left out."""
        equal, held = set[str](), set[str]()
        for shapes in self._families.values():
            for shape in shapes:
                equal.update(shape.equal)
                held.update(shape.holds)
        fields = [name for name in names if name in equal or name == "family" or name not in UNASKED | held]
        return itemgetter(*fields)

    def _buckets(self, values: Mapping[str, Value], forgiven: frozenset[str]) -> Places:
        """The buckets of kernels that answer these values, sizes apart."""
        meaning, found = steering(values), []
        features = set(features_asked(meaning)) - forgiven
        for shape in self._families.get(str(values["family"]), ()):
            if shape.known.issuperset(features):
                bucket = shape.buckets.get(tuple(map(meaning.get, shape.equal)))
                if bucket is not None:
                    found.append((shape.holds, bucket))
        return found


_Placed = tuple[tuple[int, ...], int, Entry]
_ShapeOf = tuple[str, tuple[str, ...], tuple[str, ...], frozenset[str]]


def _answers(entry: Entry, problem: Problem) -> bool:
    """Of a kernel whose signature answers."""
    instance = entry.instance
    return instance.supports(problem) if not instance.answers_by_key else not why_unfit(instance.key.algorithm, problem)


def _parts(entries: list[tuple[int, Entry]]) -> list[_Part]:
    parts: dict[object, _Part] = {}
    for place, entry in entries:
        instance = entry.instance
        choice = instance.choice
        plain = instance.answers_by_key and not asks_of_sizes(instance.key.algorithm)
        last = (-choice.order, entry.rank, place)
        alike = (entry.priority, choice.needs.text, choice.best.text, choice.fit) if plain else place
        known = parts.get(alike)
        if known is None or last < known.last:
            parts[alike] = _Part(entry, choice, entry.priority, last, plain)
    return list(parts.values())


__all__ = ["HIGH", "LOW", "NORMAL", "PRIORITIES", "Entry", "Index", "in_order"]
