"""The plan as the numbers and texts that the table template prints: groups, references, clauses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from codegen import cpu
from codegen.axes import INTEGER, Family
from codegen.plan import Instance, Plan
from codegen.select import Clause
from codegen.targets import Target


class Batch(NamedTuple):
    """The rows of one generated unit."""

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
    """What namespace <family> of table.cpp holds."""

    def __init__(self, plan: Plan, family: Family, refs: Sequence[tuple[int, int]]) -> None:
        self.name, self.pipelines, self.head_dims = family.name, family.pipelines, family.head_dims
        self.axis_count = len(family.axes)
        conditions = Conditions(family)
        # A rule with several clauses is several entries of one name.
        self.rules = [RuleEntry(r.name, r.says, conditions.clause(clause)) for r in family.rules for clause in r.when]
        self.receipts = [
            ReceiptEntry(receipt.name, [conditions.clause(clause) for clause in receipt.clauses[family.name]])
            for receipt in plan.tree.sound_receipts
            if family.name in receipt.clauses
        ]  # none for a companion: its main family's say it
        self.condition_lists, self.integers = list(conditions.lists), list(conditions.integers)
        position = {target.name: at for at, target in enumerate(plan.target_list)}
        entries = []
        for number, instance in enumerate(plan.instances):
            if instance.family_ is family:
                packed = instance.packed
                hdims = [packed >> axis.shift & axis.field for axis in family.axes if axis.kind == INTEGER]
                order = (position[instance.target.name], instance.how.rank)
                entries.append((packed & ~family.hdim_fields, *hdims, *order, number))
        entries.sort()
        begins = [at for at, entry in enumerate(entries) if at == 0 or entry[0] != entries[at - 1][0]]
        ends = [*begins[1:], len(entries)]
        self.group_count = len(begins)
        self.groups = initialisers((f"{{{entries[b][0]:#x}u,{b},{e}}}" for b, e in zip(begins, ends, strict=True)), 4)
        self.refs = initialisers(f"{{{refs[entry[-1]][0]},{refs[entry[-1]][1]}}}" for entry in entries)
        self.instance_of = initialisers(entry[-1] for entry in entries)


class TargetTable:
    def __init__(self, target: Target, engines: list[tuple[str, list[str]]]) -> None:
        self.name, self.word, self.isa, self.arch = target.name, target.word, target.isa, target.arch
        self.index, self.order, self.engines = target.index, target.order, engines
        self.levels = any(feature in cpu.LEVELS for feature in target.cpuid)
        self.cpuid = _supports(target.cpuid)
        self.features = _supports(cpu.features(target.cpuid))


def _supports(features: Sequence[str]) -> str:
    return " && ".join(f'__builtin_cpu_supports("{feature}")' for feature in features) or "true"


def names(plan: Plan) -> tuple[str, str]:
    """Every name as a C literal, and the offsets."""
    offsets, at = [], 0
    for instance in plan.instances:
        offsets.append(at)
        at += len(instance.name) + 1
    return "\n".join(f'  "{instance.name}\\0"' for instance in plan.instances), initialisers(offsets)
