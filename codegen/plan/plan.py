# SPDX-License-Identifier: MIT
"""The plan: the resolved, ordered list of instances of one receipt for some targets. All else is made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from codegen.plan.sieve import Leaf, Sieve
from codegen.schema import select
from codegen.schema.algorithms import FIXED, Algorithm
from codegen.schema.axes import Family, Rule, Value
from codegen.schema.errors import CodegenError
from codegen.schema.kernel_sets import KernelSet
from codegen.schema.receipts import Receipt
from codegen.schema.targets import Target
from codegen.schema.tree import Tree, tree

Where = Mapping[str, Sequence[select.Selected]]  # a selection, by family that is no companion


class Instance:
    """One signature and one algorithm. `packed` is the signature as the family's generated header packs it."""

    __slots__ = ("family_", "how", "name", "packed", "target")

    def __init__(self, name: str, family: Family, packed: int, target: Target, how: Algorithm) -> None:
        self.name, self.family_, self.packed, self.target, self.how = name, family, packed, target, how

    @property
    def family(self) -> str:
        return self.family_.name

    @property
    def signature(self) -> dict[str, Value]:
        return self.family_.signature(self.packed)

    @property
    def algorithm(self) -> dict[str, Value]:
        """Target, pipeline, and the algorithm axes that are not at their default."""
        return {"target": self.target.name, "pipeline": self.how.pipeline, **self.how.given}


class Plan:
    """`instances`: by family, then target (slowest first), then signature in listing order, then rank."""

    def __init__(
        self, source: Receipt, targets: Sequence[Target], where: str, instances: list[Instance], root: Tree
    ) -> None:
        self.source, self.instances, self.tree = source, instances, root
        self.receipt, self.where = source.name, where
        self.target_list = list(targets)
        self.targets = [target.name for target in targets]

    def algorithm_axes(self, family: Family | None = None) -> tuple[str, ...]:
        """Axes that tell the instances of a signature apart, of one family or of all: those that an instance shows."""
        hows = {id(i.how): i.how for i in self.instances if family is None or i.family_ is family}
        listed = dict.fromkeys(i.family_ for i in self.instances) if family is None else [family]
        declared = dict.fromkeys(axis.name for one in listed for axis in one.algorithm_axes)
        declared |= dict.fromkeys(axis.name for how in hows.values() for axis in how.axes)
        shown = {axis for how in hows.values() for axis in how.given}
        return (*FIXED, *(axis for axis in declared if axis in shown))

    @property
    def planned(self) -> list[str]:
        """Its targets whose kernels no library holds yet."""
        return [target.name for target in self.target_list if target.planned]

    def ck_name(self, instance: Instance) -> str:
        """CK's own name of an instance, without the ending of a file; "" where CK has none, or it is not known."""
        tables = self.tree.tile_tables(instance.target.backend, instance.family_)
        table = tables.table_of(instance.target.tiles) if tables else None
        named = tables.ck_name if tables else None
        return named.of(instance.packed, instance.how, table) if named and table else ""

    @cached_property
    def digest(self) -> str:
        """Of the names in order."""
        return digest(i.name for i in self.instances)


def digest(names: Iterable[str]) -> str:
    """Of instance names in order."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


def pick_targets(root: Tree, words: Sequence[str]) -> list[Target]:
    """Targets by name, of a backend by its name, `native` or `all` (those of the host), each once, slowest first."""
    picked: set[str] = set()
    for word in words:
        if word == "all":
            picked |= root.of_host.keys()
        elif word == "native":
            picked |= {target.name for target in root.natives()}
        elif word in root.backends:
            picked |= root.of_backend(word).keys()
        else:
            picked.add(root.target(word).name)
    if not picked:
        raise CodegenError(f"no target is named; targets: {', '.join(root.targets)}")
    return sorted(map(root.every_target.__getitem__, picked), key=Target.place)


def algorithms_of(root: Tree, receipt: Receipt, target: Target, family: Family) -> list[Algorithm]:
    """Those of a target for a family, and what a receipt has made of them."""
    known = root.algorithms(target, family)
    return [*known, *receipt.made(target, family, known)]


def sieve(
    root: Tree,
    receipt: Receipt,
    family: Family,
    target: Target,
    where: Sequence[select.Selected],
    main_where: Sequence[select.Selected] | None = None,
) -> Sieve:
    """The sieve of a family's signatures that are in a receipt on a target.

    Of a companion: what the instances of its main family need, those that `main_where` leaves.
    """
    lists: dict[str, Sequence[select.Clause]] = {"table": family.table_clauses}
    if family.main:
        lists["receipt"] = list(needed(root, receipt, family, target, main_where).values())
    else:
        lists["receipt"] = receipt.clauses.get(family.name, [])
    algorithms = algorithms_of(root, receipt, target, family)
    whens = [_when(receipt, family, target, how) for how in algorithms]
    has = [how.receipts is None or how.receipts.has(receipt.names) for how in algorithms]
    if not any(selected.how for selected in where):
        lists["where"] = [selected.clause for selected in where]
        hows = [when if its else [] for when, its in zip(whens, has, strict=True)]
        return _shared(root, family, lists, hows, root.refusals(target, family))
    # A clause that asks for some algorithms narrows those alone.
    narrowed = []
    for algorithm, when, its in zip(algorithms, whens, has, strict=True):
        values = algorithm.selectable(target.name)
        narrowed.append(select.both(when, [s.clause for s in where if its and s.answers(values)]))
    return _shared(root, family, lists, narrowed, root.refusals(target, family))


SHARED = 12
"""Sieves that a tree keeps."""


def _shared(
    root: Tree,
    family: Family,
    lists: dict[str, Sequence[select.Clause]],
    algorithms: Sequence[Sequence[select.Clause]],
    refusals: Sequence[Rule],
) -> Sieve:
    """The sieve of these clauses. Two of three are those of another target or receipt, whose signatures are found."""
    key = (
        family,
        *((name, *clauses) for name, clauses in lists.items()),
        *map(tuple, algorithms),
        *((rule.name, *rule.when) for rule in refusals),
    )
    made = root.sieves.pop(key, None) or Sieve(family, lists, algorithms, refusals)
    root.sieves[key] = made
    if len(root.sieves) > SHARED:
        del root.sieves[next(iter(root.sieves))]
    return made


def _when(receipt: Receipt, family: Family, target: Target, how: Algorithm) -> list[select.Clause]:
    """Signatures that an algorithm answers in a receipt, which may name the algorithms that it wants."""
    if family.name not in receipt.selected:
        return how.when
    values = how.selectable(target.name)
    return select.both(how.when, [one.clause for one in receipt.selected[family.name] if one.answers(values)])


def needed(
    root: Tree,
    receipt: Receipt,
    family: Family,
    target: Target,
    main_where: Sequence[select.Selected] | None = None,
) -> dict[int, select.Clause]:
    """Companion's clauses that its main family's instances need: Family.needed."""
    main = family.main
    if main is None:
        return {}
    walk = sieve(root, receipt, main, target, [select.Selected(main.everything)] if main_where is None else main_where)
    return family.needed(walk.projected([of.position for _, of in family.shared]))


def _leaves(root: Tree, receipt: Receipt, family: Family, target: Target, where: Where) -> list[Leaf]:
    """The signatures of a family that a plan lists. CodegenError when a companion lacks one that its main family needs.

    A library without what its main instances need would not work: `where` narrows a companion only through them. What a
    target lacks, the one beside it has.
    """
    if not family.main:
        return sieve(root, receipt, family, target, where[family.name]).leaves()
    narrowed = where[family.main.name]
    everything = [select.Selected(family.everything)]
    leaves = sieve(root, receipt, family, target, everything, narrowed).leaves()
    answered = {leaf.packed & family.shared_fields for leaf in leaves}
    if target.beside:
        other = sieve(root, receipt, family, root.target(target.beside), everything, narrowed)
        answered |= {leaf.packed & family.shared_fields for leaf in other.leaves()}
    for key, clause in needed(root, receipt, family, target, narrowed).items():
        if key not in answered:
            lacking = f"target {target.name} has no {family.name} for {select.text_of(family, clause)}"
            raise CodegenError(f"{lacking}, which an instance of {family.main.name} needs (receipt {receipt.name})")
    return leaves


def _check_declared(root: Tree, source: KernelSet, chosen: Sequence[Target]) -> None:
    """CodegenError for a declaration of a set that none of its targets has an instance of, with the reason."""
    for one in source.declared:
        on = [target for target in chosen if not one.targets or target.name in one.targets]
        walks = [sieve(root, source, one.family, target, one.selected) for target in on]
        if not on or any(walk.count() for walk in walks):
            continue
        reasons = dict[str, None]()
        for target in on:
            clauses = [selected.clause for selected in one.selected]
            hows = [how for how in root.algorithms(target, one.family) if select.both(how.when, clauses)]
            lists: dict[str, Sequence[select.Clause]] = {"table": one.family.table_clauses, "declared": clauses}
            walk = Sieve(one.family, lists, [how.when for how in hows], root.refusals(target, one.family))
            if walk.count():
                reasons |= {f"{target.name} has {how.pipeline} {how.shown}".rstrip(): None for how in hows}
                continue
            ended = {word for words in walk.endings() for word in words}
            rules = {f"rule {r.name}: {r.says}": None for r in walk.rules if f"rule {r.name}" in ended}
            reasons |= rules
            if one.family.table and not rules:
                reasons[f"it has these {one.family.table.title}: `python -m codegen axes {one.family.name}`"] = None
        raise source.nothing(one, on, list(reasons))


def resolve(receipt: str, targets: Sequence[str], where: str = "", family: str = "", root: Tree | None = None) -> Plan:
    """The plan of a receipt (name or number) for targets (names, `native`, `all`), narrowed to a selection or a family.

    CodegenError when a word is wrong, and when nothing is left.
    """
    root = root or tree()
    source, chosen = root.receipt(receipt), pick_targets(root, targets)
    where = " ".join(where.split())
    families = [root.family(family)] if family else root.families_of(source)
    of_receipt = [one.name for one in families]
    # No family but the receipt's is read without a selection, and no other target's algorithms.
    own = list(dict.fromkeys(f.main or f for f in (root.families.values() if where else families)))
    narrowed = {one.name: [select.Selected(one.everything)] for one in own}
    if where:
        planned = [target for target in chosen if target.planned]
        hows = root.hows_of(own, planned) if planned else root.hows
        narrowed = select.typed(own, where, "where", hows, of_receipt)
    if isinstance(source, KernelSet):
        _check_declared(root, source, chosen)
    instances: list[Instance] = []
    for one in families:
        for target in chosen:
            hows_here = algorithms_of(root, source, target, one)
            ways = [(1 << at, f"_{how.word}_{target.word}", how) for at, how in enumerate(hows_here)]
            for packed, words, alive in _leaves(root, source, one, target, narrowed):
                for bit, word, how in ways:
                    if alive & bit:
                        instances.append(Instance(f"{one.name}{words}{word}", one, packed, target, how))
    if not instances:
        narrow = f" where '{where}'" if where else ""
        named = ",".join(target.name for target in chosen)
        on = "" if all(target.backend_.host for target in chosen) else f" --target {named}"
        raise CodegenError(
            f"receipt {source.name} lists no {family or 'instance'}{f' for {named}' if on else ''}{narrow}; "
            f"`python -m codegen explain {source.name} '{f'{family} {where}'.strip()}'{on}` says why"
        )
    if len({instance.name for instance in instances}) != len(instances):
        raise CodegenError(f"receipt {source.name}: two instances have one name; two axes must share a word")
    return Plan(source, chosen, where, instances, root)
