# SPDX-License-Identifier: MIT
"""Rules that weigh a kernel against others that answer the same problem; chooser.h has the order."""

from __future__ import annotations

from collections import namedtuple

from .words import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .words import Value

    Clauses = list[list[tuple[str, str, int]]]
    Rules = tuple[tuple[str, ...], tuple[tuple[str, str, int], ...], Clauses, Clauses, int]


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
        from .match import chooser

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
