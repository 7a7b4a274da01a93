# SPDX-License-Identifier: MIT
"""The one walk over a family's axes that says which signatures exist.

Axes are decided in listing order. Several lists of clauses must each keep a clause alive (head dims, the receipt,
`where`, the target's algorithms); rules must never come true. All of that is one integer: a bit per clause still
possible. A value that kills a list or completes a rule ends its branch at once, and equal integers at one axis share
everything below, so that the work grows with the number of answers, not with the product of the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from codegen.schema.axes import Family, Rule
from codegen.schema.select import Clause


class Field(NamedTuple):
    """The bits of one list of clauses in the state; `satisfied` stands for all clauses that have no condition left."""

    name: str
    mask: int
    satisfied: int


class Leaf(NamedTuple):
    packed: int
    words: str  # of the name, from dtype to the last axis
    algorithms: int  # bit i: algorithm i answers it


class Sieve:
    """`lists` by name; `algorithms[i]` are the clauses under which algorithm i exists (one of them must hold).

    `refusals` are rules of the target, beside those of the family.
    """

    def __init__(
        self,
        family: Family,
        lists: dict[str, Sequence[Clause]],
        algorithms: Sequence[Sequence[Clause]],
        refusals: Sequence[Rule] = (),
    ) -> None:
        self.family = family
        count = len(family.axes)
        self.keep = [[0] * len(axis.values) for axis in family.axes]
        self.done = [0] * count  # clauses of lists that have no condition after this axis
        self.closing = [0] * count  # rules whose last condition is on this axis
        self.fields: list[Field] = []
        self.start = 0
        self._bit = 0
        for name, clauses in lists.items():
            first = self._bit
            for clause in clauses:
                bit, last = self._clause(clause)
                for axis in range(max(last, 0), count):
                    self.done[axis] |= bit
            satisfied = self._always()
            self.fields.append(Field(name, (1 << self._bit) - (1 << first), satisfied))
            self.start |= (1 << self._bit - 1) - (1 << first)
        self.rules: list[Rule] = [*family.rules, *refusals]
        self.rule_of: dict[int, int] = {}  # bit -> index of the rule
        for index, rule in enumerate(self.rules):
            for clause in rule.when:
                bit, last = self._clause(clause)
                self.closing[last] |= bit
                self.rule_of[bit] = index
                self.start |= bit
        self.algorithm_bits: list[int] = []
        for when in algorithms:
            bits = 0
            for clause in when:
                bits |= self._clause(clause)[0]
            self.algorithm_bits.append(bits)
            self.start |= bits
        self.any_algorithm = sum(self.algorithm_bits)
        self._below: dict[tuple[int, int], list[Leaf]] = {}
        self._counted: dict[tuple[int, int], int] = {}

    def _clause(self, clause: Clause) -> tuple[int, int]:
        """Give a clause a bit; also the last axis it has a condition on, -1 if none."""
        bit, last = 1 << self._bit, -1
        self._bit += 1
        for axis, allowed in zip(self.family.axes, clause, strict=True):
            if allowed != axis.all_codes:
                last = axis.position
            for code in range(len(axis.values)):
                if allowed >> code & 1:
                    self.keep[axis.position][code] |= bit
        return bit, last

    def _always(self) -> int:
        bit = 1 << self._bit
        self._bit += 1
        for codes in self.keep:
            for code in range(len(codes)):
                codes[code] |= bit
        return bit

    def step(self, axis: int, code: int, state: int) -> int:
        """The state after deciding one axis; 0 when no signature below is listed, and `why` says why."""
        state &= self.keep[axis][code]
        if state & self.closing[axis] or not state & self.any_algorithm:
            return 0
        for field in self.fields:
            alive = state & field.mask
            if not alive:
                return 0
            if alive & (self.done[axis] | field.satisfied):
                state = state & ~field.mask | field.satisfied
        return state

    def why(self, axis: int, code: int, state: int) -> list[str]:
        """Reasons why the walk ends at this value of an axis: `rule NAME`s, names of lists left empty, `algorithms`."""
        state &= self.keep[axis][code]
        reasons = [f"rule {self.rules[i].name}" for bit, i in self.rule_of.items() if state & self.closing[axis] & bit]
        reasons += [field.name for field in self.fields if not state & field.mask]
        return reasons if state & self.any_algorithm else [*reasons, "algorithms"]

    def endings(self) -> set[tuple[str, ...]]:
        """Ends of branches, each as the reasons of `why`. A rule that stands alone in one is needed."""
        found: set[tuple[str, ...]] = set()
        seen: set[tuple[int, int]] = set()
        left = [(0, self.start)]
        while left:
            axis, state = left.pop()
            if axis == len(self.family.axes) or (axis, state) in seen:
                continue
            seen.add((axis, state))
            for code in range(len(self.family.axes[axis].values)):
                after = self.step(axis, code, state)
                if after:
                    left.append((axis + 1, after))
                else:
                    found.add(tuple(self.why(axis, code, state)))
        return found

    def projected(self, axes: Sequence[int]) -> set[int]:
        """The packed signatures that pass, without the bits of all other axes; without making every leaf."""
        below: dict[tuple[int, int], set[int]] = {}

        def walk(axis: int, state: int) -> set[int]:
            if axis == len(self.family.axes):
                return {0}
            found = below.get((axis, state))
            if found is None:
                found = below[axis, state] = set()
                for code, bits in enumerate(self.family.axes[axis].packed):
                    after = self.step(axis, code, state)
                    if after:
                        under = walk(axis + 1, after)
                        found |= {bits | packed for packed in under} if axis in axes else under
            return found

        return walk(0, self.start)

    def count(self, axis: int = 0, state: int | None = None) -> int:
        """Algorithms over all signatures that pass, without making any."""
        state = self.start if state is None else state
        if axis == len(self.family.axes):
            return sum(bool(state & bits) for bits in self.algorithm_bits)
        key = (axis, state)
        if key not in self._counted:
            steps = (self.step(axis, code, state) for code in range(len(self.family.axes[axis].values)))
            self._counted[key] = sum(self.count(axis + 1, after) for after in steps if after)
        return self._counted[key]

    def leaves(self, axis: int = 0, state: int | None = None) -> list[Leaf]:
        """Every signature that passes, in listing order."""
        state = self.start if state is None else state
        if axis == len(self.family.axes):
            alive = 0
            for index, bits in enumerate(self.algorithm_bits):
                alive |= bool(state & bits) << index
            return [Leaf(0, "", alive)]
        key = (axis, state)
        if key not in self._below:
            here = self.family.axes[axis]
            found: list[Leaf] = []
            for code, (bits, word) in enumerate(zip(here.packed, here.words, strict=True)):
                after = self.step(axis, code, state)
                if after:
                    found += [Leaf(bits | p, word + w, a) for p, w, a in self.leaves(axis + 1, after)]
            self._below[key] = found
        return self._below[key]
