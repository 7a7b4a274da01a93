# SPDX-License-Identifier: MIT
"""Whether the choice at run time can ever take each instance of a receipt, and whether each legal problem has a kernel.

What decides is the set of algorithms that answer a signature, the order in which kernels/runtime/dispatch.cpp compares
them, and the sizes of a problem. So every such set is asked once, with sizes on either side of each number that a
condition names and around every tile: between two of these nothing changes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from codegen.emit import dispatcher
from codegen.plan.plan import needed, sieve
from codegen.plan.sieve import Leaf, Sieve
from codegen.schema import select
from codegen.schema.algorithms import Algorithm
from codegen.schema.axes import Family
from codegen.schema.errors import CodegenError
from codegen.schema.receipts import Receipt
from codegen.schema.targets import Target
from codegen.schema.tree import Tree, tree

_TILES = 4  # sizes up to so many of the largest tile are asked for, where tiles fit differently well
_SHOWN = 5


class Reached(NamedTuple):
    """Result of a proof: counts of what is reached, and a line for each failure."""

    instances: int
    signatures: int
    by_number: int  # instances that nothing but their number asks for, as their target says
    failures: list[str]

    def __str__(self) -> str:
        numbered = f", {self.by_number:,} of them by number alone" if self.by_number else ""
        return f"all is reached: {self.instances:,} instances of {self.signatures:,} signatures{numbered}"


def reach(root: Tree, receipts: Sequence[Receipt]) -> Reached:
    """Of receipts on every target that is built. Planned targets have no library that would choose."""
    instances = signatures = by_number = 0
    failures: dict[str, None] = {}
    for receipt, target in itertools.product(receipts, root.targets.values()):
        for family in root.families_of(receipt):
            hows = root.algorithms(target, family)
            if not hows and (target.beside or not target.backend_.host):
                continue  # it has kernels of some families; of those it must answer or refuse everything
            leaves = sieve(root, receipt, family, target, [select.Selected(family.everything)]).leaves()
            signatures += len(leaves)
            instances += sum(leaf.algorithms.bit_count() for leaf in leaves)
            examples: dict[tuple[int, int], int] = {}  # a signature of each set of algorithms, and of which by number
            for leaf in leaves:
                numbered = _numbered(family, hows, leaf)
                by_number += numbered.bit_count()
                examples.setdefault((leaf.algorithms, numbered), leaf.packed)
            for (mask, numbered), packed in sorted(examples.items()):
                here = f"receipt {receipt.name}: {family.name} on {target.name}"
                together = [(how, bool(numbered >> at & 1)) for at, how in enumerate(hows) if mask >> at & 1]
                example = family.selection(packed)
                failures |= dict.fromkeys(f"{here}: {text} ({example})" for text in _faults(family, together))
            failures |= dict.fromkeys(_unanswered(root, receipt, family, target, {leaf.packed for leaf in leaves}))
    return Reached(instances, signatures, by_number, list(failures))


def check(root: Tree, receipts: Sequence[Receipt]) -> str:
    """CodegenError that lists what is not reached; else what is."""
    found = reach(root, receipts)
    if found.failures:
        more = len(found.failures) - _SHOWN
        listed = [*found.failures[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise CodegenError("\n".join(["not reached:", *listed]))
    return str(found)


def choose(family: Family, together: Sequence[Algorithm], sizes: Sequence[int]) -> Algorithm | None:
    """The algorithm chosen among those of one signature, as Dispatcher::compare does; None where none may answer."""

    def order(how: Algorithm) -> tuple[float, ...]:
        preference = 1 if not how.best.clauses else 0 if how.best.holds(sizes) else 2
        fields = dict(zip((name for axis in how.axes for name in axis.fields), how.numbers, strict=True))
        cost = tile = 1.0
        for size, field in (family.file.choice.fit if family.file.choice else {}).items():
            cost *= rows_spent(sizes[family.file.sizes.index(size)], fields[field])
            tile *= fields[field]
        return (preference, cost, -tile, how.rank)

    able = [how for how in together if how.needs.holds(sizes)]
    return min(able, key=order, default=None)


@functools.cache
def rows_spent(size: int, tile: int) -> int:
    """The rows that a tile costs, by the declaration from which that of the libraries is made."""
    return _declared_cost()(size, tile)


@functools.cache
def _declared_cost() -> dispatcher.TileCost:
    return dispatcher.read(tree().places).tile_cost


def _numbered(family: Family, hows: Sequence[Algorithm], leaf: Leaf) -> int:
    """Algorithms of a signature that only their number asks for, as their target says, one bit each."""
    return sum(
        1 << at
        for at, how in enumerate(hows)
        if how.by_number and leaf.algorithms >> at & 1 and family.meets(leaf.packed, how.by_number)
    )


def _faults(family: Family, together: Sequence[tuple[Algorithm, bool]]) -> Iterator[str]:
    """Faults of the choice among algorithms of one signature, each with whether it is asked for by number."""
    taken: set[int] = set()
    able = [how for how, _ in together]
    for sizes in _sizes(family, able):
        how = choose(family, able, sizes)
        if how is None:
            said = " ".join(f"{name}={size}" for name, size in zip(family.file.sizes, sizes, strict=True))
            yield f"no algorithm takes a problem of {said}"
            break
        taken.add(how.number)
    for how, numbered in together:
        if how.number not in taken and not numbered:
            yield f"{how.pipeline} {how.shown} is never chosen"
        if how.number in taken and numbered:
            yield f"{how.pipeline} {how.shown} is chosen, though its target says by_number"


def _sizes(family: Family, together: Sequence[Algorithm]) -> Iterator[tuple[int, ...]]:
    """Sizes of problems between which every choice is made: all combinations."""
    names = family.file.sizes
    asked: list[set[int]] = [{1} for _ in names]
    for rule in (rule for how in together for rule in (how.needs, how.best)):
        for at, low, high in itertools.chain.from_iterable(rule.clauses):
            asked[at] |= {value for edge in (low, high) for value in (edge - 1, edge, edge + 1) if 0 <= value < 2**63}
    for size, field in (family.file.choice.fit if family.file.choice else {}).items():
        at = [name for axis in together[0].axes for name in axis.fields].index(field)
        tiles = {how.numbers[at] for how in together}
        if len(tiles) > 1:
            asked[names.index(size)] |= set(range(_TILES * max(tiles) + 1))
    return itertools.product(*map(sorted, asked))


def _unanswered(root: Tree, receipt: Receipt, family: Family, target: Target, answered: set[int]) -> Iterator[str]:
    """Signatures that the receipt's clauses keep, that no rule forbids and that nothing listed answers."""
    keeps = list(needed(root, receipt, family, target).values()) if family.main else receipt.clauses[family.name]
    lists: dict[str, Sequence[select.Clause]] = {"table": family.table_clauses, "receipt": keeps}
    legal = Sieve(family, lists, [[family.everything]], root.refusals(target, family)).leaves()
    held = [axis for axis in family.integers if axis.holds == "at_least"]

    def codes(packed: int) -> int:
        return packed & ~sum(axis.field << axis.shift for axis in held)

    served: dict[int, list[tuple[int, ...]]] = {}
    for packed in answered:
        served.setdefault(codes(packed), []).append(tuple(packed >> a.shift & a.field for a in held))
    for leaf in legal:
        if leaf.packed not in answered:
            wants = tuple(leaf.packed >> axis.shift & axis.field for axis in held)
            if not any(
                all(has >= want for has, want in zip(row, wants, strict=True))
                for row in served.get(codes(leaf.packed), ())
            ):
                what = f"{family.name} {family.selection(leaf.packed)}"
                yield f"receipt {receipt.name}: no kernel on {target.name} for {what}"
