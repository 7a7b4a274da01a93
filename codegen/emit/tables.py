# SPDX-License-Identifier: MIT
"""The plan as the numbers and texts that the table template prints: groups, references, clauses, algorithms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from codegen.plan.plan import Instance, Plan
from codegen.schema import cpu, machines
from codegen.schema.algorithms import Algorithm, SizeRule
from codegen.schema.axes import CODES, INTEGER, Family
from codegen.schema.select import Clause
from codegen.schema.targets import Target


class RowSource(NamedTuple):
    """The rows of one generated source."""

    path: str
    symbol: str
    instances: list[Instance]

    @property
    def size(self) -> int:
        return len(self.instances)


def initialisers(items: Iterable[object], per_line: int = 16) -> str:
    texts = list(map(str, items))
    return "\n".join(f"  {','.join(texts[at : at + per_line])}," for at in range(0, len(texts), per_line))


class Conditions:
    """Clauses as tilekiln::Clause; equal lists of conditions are one array."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.lists: dict[tuple[str, ...], int] = {}
        self.integers: dict[tuple[int, ...], int] = {}

    def clause(self, clause: Clause) -> str:
        texts = []
        for axis, allowed in zip(self.family.axes, clause, strict=True):
            if allowed == axis.all_codes:
                continue
            if axis.kind == INTEGER:
                listed = tuple(int(value) for code, value in enumerate(axis.values) if allowed >> code & 1)
                at = self.integers.setdefault(listed, len(self.integers))
                texts.append(f"{{{axis.position}, {len(listed)}, 0, integers_{at}}}")
            else:
                texts.append(f"{{{axis.position}, 0, {allowed}, nullptr}}")
        if not texts:
            return "{nullptr, 0}"
        at = self.lists.setdefault(tuple(texts), len(self.lists))
        return f"{{conditions_{at}, {len(texts)}}}"


class RuleEntry(NamedTuple):
    name: str
    says: str
    when: str


class ReceiptEntry(NamedTuple):
    name: str
    clauses: list[str]


class FamilyTable:
    """Contents of namespace <family> of table.cpp."""

    def __init__(self, plan: Plan, family: Family) -> None:
        self.name, self.pipelines = family.name, family.pipelines
        self.sizes, self.fits = family.file.sizes, family.fits
        self.axis_count = len(family.axes)
        conditions = Conditions(family)
        # A rule with several clauses is several entries of one name.
        self.rules = [RuleEntry(r.name, r.says, conditions.clause(clause)) for r in family.rules for clause in r.when]
        self.receipts = [
            ReceiptEntry(receipt.name, [conditions.clause(clause) for clause in receipt.clauses[family.name]])
            for receipt in plan.tree.sound_receipts
            if family.name in receipt.clauses
        ]  # none for a companion: its main family's say it
        self.refusals = {
            target.word: [
                RuleEntry(rule.name, rule.says, conditions.clause(clause))
                for rule in plan.tree.refusals(target, family)
                for clause in rule.when
            ]
            for target in plan.target_list
        }
        self.condition_lists, self.integers = list(conditions.lists), list(conditions.integers)
        self.integers_name, self.by = family.integers_name, family.table.by.position if family.table else 255
        legal = family.legal_integers
        self.legal_count = len(legal)
        self.legal = initialisers((number for row in legal for number in row), len(family.integers) + 1)
        self.engine_type = family.engine.type
        self.entries = [(entry, _condition(family, entry.when)) for entry in family.entries]
        position = {target.name: at for at, target in enumerate(plan.target_list)}
        entries = []
        for number, instance in enumerate(plan.instances):
            if instance.family_ is family:
                packed = instance.packed
                integers = [packed >> axis.shift & axis.field for axis in family.integers]
                order = (position[instance.target.name], instance.how.rank)
                entries.append((packed & CODES, *integers, *order, number))
        entries.sort()
        self.first, self.count = min(entry[-1] for entry in entries), len(entries)
        begins = [at for at, entry in enumerate(entries) if at == 0 or entry[0] != entries[at - 1][0]]
        ends = [*begins[1:], len(entries)]
        self.group_count = len(begins)
        self.groups = initialisers((f"{{{entries[b][0]:#x}u,{b},{e}}}" for b, e in zip(begins, ends, strict=True)), 4)
        self.instance_of = initialisers(entry[-1] for entry in entries)


def _condition(family: Family, clauses: Sequence[Clause]) -> str:
    """Clauses over a Signature `s` as C++."""

    def holds(clause: Clause) -> str:
        parts = [
            f"({allowed:#x}ull >> static_cast<int>(s.{axis.name}) & 1) != 0"
            for axis, allowed in zip(family.axes, clause, strict=True)
            if allowed != axis.all_codes
        ]
        return " && ".join(parts) or "true"

    return "(" + " || ".join(map(holds, clauses)) + ")" if clauses else "true"


class AlgorithmTables:
    """The algorithms of targets as tilekiln::Algorithm; equal lists of numbers, ranges, clauses and algorithms are one
    array each."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, ...], int] = {}
        self.ranges: dict[tuple[tuple[int, int, int], ...], int] = {}
        self.clauses: dict[tuple[tuple[int, int], ...], int] = {}
        self.lists: dict[tuple[str, ...], int] = {}

    def entry(self, family: Family, algorithms: Sequence[Algorithm]) -> str:
        """A target's algorithms for a family, by Row::algorithm."""
        listed = tuple(self._algorithm(family, how) for how in sorted(algorithms, key=lambda how: how.number))
        if not listed:
            return "{nullptr, 0}"
        return f"{{algorithms_{self.lists.setdefault(listed, len(self.lists))}, {len(listed)}}}"

    def _algorithm(self, family: Family, how: Algorithm) -> str:
        numbers = tuple(how.numbers)
        fields = f"fields_{self.numbers.setdefault(numbers, len(self.numbers))}" if numbers else "nullptr"
        pipeline = family.pipelines.index(how.pipeline)
        rules = f"{self._rule(how.needs)}, {self._rule(how.best)}"
        return f'{{"{how.word}", {pipeline}, {how.rank}, {fields}, {rules}}}'

    def _rule(self, rule: SizeRule) -> str:
        if not rule.clauses:
            return '{"", nullptr, 0}'
        clauses = tuple((self.ranges.setdefault(ranges, len(self.ranges)), len(ranges)) for ranges in rule.clauses)
        at = self.clauses.setdefault(clauses, len(self.clauses))
        return f'{{"{rule.text}", size_clauses_{at}, {len(clauses)}}}'


class TargetTable:
    def __init__(
        self, target: Target, engines: list[tuple[str, list[str]]], algorithms: list[str], refuses: bool
    ) -> None:
        self.algorithms, self.refuses = algorithms, refuses
        self.name, self.word, self.isa, self.arch = target.name, target.word, target.isa, target.arch
        self.index, self.order, self.engines, self.backend = target.index, target.order, engines, target.backend
        self.asked_by_backend = target.backend_.machine is not machines.MACHINES["cpuid"]
        self.refusal = "amx::refusal" if _has_tiles(target.cpuid) else ""
        self.cpuid = _supports(target.arch, target.cpuid)


def _supports(arch: str, features: Sequence[str]) -> str:
    """Questions of kernels/backends/cpu/<arch>.h."""
    words = [re.sub(r"\W", "_", feature) for feature in features if feature not in cpu.TILES]
    questions = [f"{arch}::has_{word}()" for word in words]
    if not _has_tiles(features):
        return " && ".join(questions) or "true"
    return " && ".join([*questions, "amx::present()"])


def _has_tiles(features: Sequence[str]) -> bool:
    return not set(cpu.TILES).isdisjoint(features)
