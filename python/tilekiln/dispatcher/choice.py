"""The order of preference among kernels that all answer a problem.

The score of a kernel, lower first: what its capacity wastes (head dims beyond the problem's), its priority in the
registry, the declared fit (made for these sizes; the tile whose rows cover the problem with the least waste, a quarter
of the problem forgiven; the taller of two that fit alike), the speed of its target, its rank. It is the order of the
libraries' own choice (kernels/runtime/dispatch.h), with priority, which only registries have.
"""

from __future__ import annotations

from collections import namedtuple

from .words import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .words import Value


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
        self.clauses: list[list[tuple[str, str, int]]] = []
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
        return not self.clauses or any(all(_met(values, one) for one in clause) for clause in self.clauses)


def _met(values: Mapping[str, Value], condition: tuple[str, str, int]) -> bool:
    field, sign, bound = condition
    size = values.get(field)
    number = size if isinstance(size, int) else 0
    return number >= bound if sign == ">=" else number <= bound if sign == "<=" else number == bound


ALWAYS = SizeRule()


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
        self.holds, self.fit = tuple(holds), tuple(fit)
        self.needs = SizeRule(needs) if isinstance(needs, str) else needs
        self.best = SizeRule(best) if isinstance(best, str) else best
        self.rank, self.order = rank, order

    def sizes(self) -> set[str]:
        """The sizes of a problem that steer it."""
        ruled = {field for rule in (self.needs, self.best) for clause in rule.clauses for field, _, _ in clause}
        return ruled | {field for field, _, _ in self.fit}

    def fitted(self, values: Mapping[str, Value]) -> tuple[int, float, float]:
        """Its part of the score: preference, the rows that its tiles spend, minus the tile's size."""
        holds = self.best.holds(values) if self.best.clauses else None
        sizes = ((values.get(field), rows) for field, _, rows in self.fit)
        tiles = [(size if isinstance(size, int) else 0, rows) for size, rows in sizes]
        return _fitted(holds, tiles)


PLAIN = Choice()


def _fitted(holds: bool | None, tiles: list[tuple[int, int]]) -> tuple[int, float, float]:
    """The binding's, which is loaded by the first plan: one rule for libraries, C++ and Python."""
    global _fitted
    from .._binding import fitted
    from .._core import native  # noqa: F401  which finds the binding

    _fitted = fitted
    return fitted(holds, tiles)
