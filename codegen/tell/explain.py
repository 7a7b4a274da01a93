# SPDX-License-Identifier: MIT
"""Whether a receipt lists a signature, and why: the sieve that resolves plans, asked about one clause."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from codegen.emit import kernels
from codegen.plan.plan import pick_targets, resolve, sieve
from codegen.plan.sieve import Leaf, Sieve
from codegen.schema import language, select
from codegen.schema.axes import INTEGER, Axis, Family, Table
from codegen.schema.errors import CodegenError, SelectionError, no_such
from codegen.schema.receipts import Receipt
from codegen.schema.select import Clause, Selected
from codegen.schema.targets import Target
from codegen.schema.tree import Tree
from codegen.tell.listing import clauses as clauses_text
from codegen.tell.options import wrapped

_SHOWN = 5  # names or nearest signatures shown


class Explained(NamedTuple):
    text: str  # as people read it
    listed: bool  # whether the receipt lists anything of what was asked about


def explain(root: Tree, word: str, text: str, targets: Sequence[str]) -> Explained:
    """`text` is `[FAMILY] axis=value ...`, or the name of an instance, its own or CK's."""
    source, chosen = root.receipt(word), pick_targets(root, targets)
    text, unused = _without_unused(root, text, chosen)
    questions, named = _questions(root, source, text, chosen)
    if named is not None and named not in chosen:
        chosen = [named]
    answers = [_answer(root, source, family, selected, chosen) for family, selected in questions]
    return Explained("\n\n".join([*(answer.text for answer in answers), *unused]), any(a.listed for a in answers))


def _without_unused(root: Tree, text: str, chosen: Sequence[Target]) -> tuple[str, list[str]]:
    """A text without conditions on what only planned targets' kernels have, and what is said of these.

    Where none of the targets is planned: a wave or a warp is nothing that a CPU has.
    """
    first, _, rest = text.strip().partition(" ")
    if "=" in first:
        first, rest = "", text.strip()
    try:
        clauses = [] if any(target.planned for target in chosen) else select.parse(rest)
    except SelectionError:  # it is said where the text is bound
        return text, []
    everywhere = root.hows_of(root.families.values(), root.planned.values())
    here = {name for hows in root.hows.values() for name in hows}
    here |= {axis for family in root.families.values() for axis in family.axis_of} | {"family"}
    found = [c for clause in clauses for c in clause if any(c.axis in hows for hows in everywhere.values())]
    found = [condition for condition in found if condition.axis not in here]
    for condition in found:
        values = {v for hows in everywhere.values() for v in hows.get(condition.axis, ())}
        for value, offset in zip(condition.values, condition.offsets, strict=True):
            if not condition.ordered and value not in values:
                message = language.no_value(condition.axis, value, sorted(values))
                raise SelectionError(message, rest, offset).shown("explain")
    if not found:
        return text, []
    gone = {str(condition) for condition in found}
    words = ", ".join(dict.fromkeys(condition.axis for condition in found))
    where = ", ".join(target.name for target in chosen)
    of = ", ".join(name for name, target in root.planned.items() if target.tiles)
    said = f"no effect on {where}: {words}, which are of the kernels of {of}"
    return " ".join([first, *(word for word in rest.split() if word not in gone)]).strip(), [said]


def _answer(root: Tree, source: Receipt, family: Family, selected: Selected, chosen: list[Target]) -> Explained:
    every = {t.name: sieve(root, source, family, t, [selected]).leaves() for t in chosen}
    asked = f"{family.name} {select.written(family, selected)}"
    if any(every.values()):
        return Explained(_yes(root, source, family, selected, chosen, every, asked), True)
    return Explained(_no(root, source, family, selected, chosen, asked), False)


def _no(root: Tree, source: Receipt, family: Family, selected: Selected, chosen: list[Target], asked: str) -> str:
    target, query = chosen[-1], selected.clause
    lines = [f"no: {source.name} does not list {asked}"]
    if selected.how and any(sieve(root, source, family, t, [Selected(query)]).leaves() for t in chosen):
        lines.append(f"  it lists {family.name} {select.text_of(family, query)}; the algorithms of this family are")
        for t in chosen:
            hows = [how for how in root.algorithms(t, family) if select.both(how.when, [query])]
            lines += [f"    {t.name} {how.pipeline} {how.shown}" for how in hows]
        return "\n".join(lines)
    illegal = _illegal(root, family, target, query)
    if family.main and not illegal:
        lines.append(f"  {family.name} comes with {family.main.name}, which is not listed either:")
        query, family = family.of_main(query), family.main
        illegal = _illegal(root, family, target, query)
    lines += [f"  {reason}" for reason in illegal or _dropped(root, source, family, target, query)]
    near = _nearest(family, query, sieve(root, source, family, target, [Selected(family.everything)]).leaves())
    if near:
        lines.append(f"nearest in {source.name}:")
        lines += [f"  {text}" for text in near]
    if illegal:
        elsewhere = [t.name for t in root.targets.values() if _legal(root, family, t, query).leaves()]
        lines.append(f"targets that can: {', '.join(elsewhere)}" if elsewhere else "No receipt can list it.")
        return "\n".join(lines)
    others = [r for r in root.sound_receipts if sieve(root, r, family, target, [Selected(query)]).leaves()]
    if not others:
        lines.append("No receipt lists it yet: widen one in receipts/ by an `add:` with its reason.")
        return "\n".join(lines)
    lines.append(f"listed by: {', '.join(r.titled for r in others)}")
    if built := [t for t in chosen if not t.planned]:
        lines.append(f"build: {scons(root, others[0], family, Selected(query), built)}")
    return "\n".join(lines)


def scons(root: Tree, source: Receipt, family: Family, selected: Selected, chosen: Sequence[Target]) -> str:
    """The command line that builds what a clause of a selection allows."""
    given = ",".join(one.given for one in root.places.outside)
    words = ["scons", *([f"operators={given}"] if given else []), f"receipt={source.name}"]
    if chosen != root.natives():
        words.append(f"target={','.join(target.name for target in chosen)}")
    if selected != Selected(family.everything):
        words.append("where=" + shlex.quote(select.written(family, selected)))
    return " ".join(words)


def _of_ck_name(root: Tree, source: Receipt, name: str, chosen: Sequence[Target]) -> str:
    """The name of the instance that CK calls `name`, of those a receipt lists. CodegenError where there is none."""
    targets = [target for target in chosen if target.tiles] or [t for t in root.every_target.values() if t.tiles]
    for target in targets:
        plan = resolve(source.name, [target.name], root=root)
        for instance in plan.instances:
            if plan.ck_name(instance) == name:
                return instance.name
    near = no_such("family", name, root.families).replace(f"no family '{name}'", "")
    listed = ", ".join(target.name for target in targets)
    raise CodegenError(
        f"explain: '{name}' is no family and no name of an instance, nor is it CK's name of one that {source.name} "
        f"lists for {listed}{near}\nfamilies: {', '.join(root.families)}"
    )


def _questions(
    root: Tree, source: Receipt, text: str, chosen: Sequence[Target]
) -> tuple[list[tuple[Family, Selected]], Target | None]:
    """The clauses that a text asks about, and the target if it is the name of an instance.

    Without a family, of each that has these axes and values and is no companion.
    """
    first, _, rest = text.strip().partition(" ")
    for family in root.families.values():
        match = None if rest else _name_pattern(root, family).fullmatch(first)
        if match:
            clause = tuple(1 << axis.words.index(match[axis.name]) for axis in family.axes)
            return [(family, Selected(clause))], next(t for t in _every(root) if t.word == match["target"])
    if first and "=" not in first:
        if first not in root.families and re.search(r"_d\d", first):  # as in names of instances alone
            return _questions(root, source, _of_ck_name(root, source, first, chosen), chosen)
        families = [root.family(first)]
    else:
        families, rest = [family for family in root.families.values() if not family.main], text.strip()
    try:
        if len(select.parse(rest)) > 1:
            raise SelectionError("explain takes one clause, without 'or'", rest, 0)
        found = select.bind_any(families, rest, root.hows_of(root.families.values(), chosen), source.clauses)
    except SelectionError as error:
        raise error.shown("explain") from error
    questions = [(family, clause) for family in families for clause in found[family.name]]
    if not questions:
        names = ", ".join(family.name for family in families)
        raise CodegenError(
            f"explain: no family has all of '{rest}'; families: {names}; `python -m codegen axes` lists axes"
        )
    return questions, None


def _every(root: Tree) -> list[Target]:
    return [*root.targets.values(), *root.planned.values()]


def _name_pattern(root: Tree, family: Family) -> re.Pattern[str]:
    def group(axis: Axis) -> str:
        return f"(?P<{axis.name}>{'|'.join(map(re.escape, axis.words))})"

    targets = "|".join(re.escape(target.word) for target in _every(root))
    axes = "".join(map(group, family.axes))
    tables = [root.tile_tables(backend, family) for backend in root.backends]
    pipelines = [*family.pipelines, *(name for one in tables if one for name in one.pipelines)]
    how = f"(?:{'|'.join(pipelines)})(?:_[a-z0-9_]+)?"
    return re.compile(f"{family.name}{axes}_{how}_(?P<target>{targets})")


def _yes(
    root: Tree,
    source: Receipt,
    family: Family,
    selected: Selected,
    chosen: list[Target],
    every: dict[str, list[Leaf]],
    asked: str,
) -> str:
    names = []
    for target in chosen:
        algorithms = root.algorithms(target, family)
        for leaf in every[target.name]:
            for index, how in enumerate(algorithms):
                if leaf.algorithms >> index & 1:
                    names.append(f"{family.name}{leaf.words}_{how.word}_{target.word}")
    count = f"{len(names)} instances" if len(names) > 1 else "1 instance"
    lines = [f"yes: {source.name} lists {asked}", f"{count}:"]
    lines += [f"  {name}" for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        lines.append(f"  and {len(names) - _SHOWN} more")
    for target in chosen:
        served = kernels.serving(root, target.name, family, (leaf.packed for leaf in every[target.name]))
        if served:
            count = f"{len(served)} kernels" if len(served) > 1 else "1 kernel"
            lines.append(
                f"{count} of {target.name}, which {'serve' if len(served) > 1 else 'serves'} so many signatures:"
            )
            lines += [f"  {name} {number}" for name, number in served.items()]
    planned = [target.name for target in chosen if target.planned and every[target.name]]
    if planned:
        lines.append(f"planned: {', '.join(planned)}; no library holds these kernels yet, so nothing is built for it")
    built = [target for target in chosen if not target.planned]
    if any(every[target.name] for target in built):
        lines.append(f"build: {scons(root, source, family, selected, built)}")
    return "\n".join(lines)


def _legal(root: Tree, family: Family, target: Target, query: Clause) -> Sieve:
    """The sieve of all that any receipt could list of a clause on a target."""
    lists: dict[str, Sequence[Clause]] = {"table": family.table_clauses, "query": [query]}
    hows = [algorithm.when for algorithm in root.algorithms(target, family)]
    return Sieve(family, lists, hows, root.refusals(target, family))


def _illegal(root: Tree, family: Family, target: Target, query: Clause) -> list[str]:
    """Reasons why nothing that the clause allows is legal; empty when something is."""
    legal = _legal(root, family, target, query)
    if legal.leaves():
        return []
    reasons: list[str] = []
    endings = {reason for together in legal.endings() for reason in together}
    if "algorithms" in endings and (reason := _no_such_sizes(root, family, target, query)):
        return [reason]
    own = root.refusals(target, family)
    every = [*family.rules, *own]
    rules = [r for r in every if any(all(q & ~c == 0 for q, c in zip(query, w, strict=True)) for w in r.when)]
    if not rules:  # none forbids all of it; several together do
        meet = [r for r in every if any(all(q & c for q, c in zip(query, w, strict=True)) for w in r.when)]
        rules = [rule for rule in meet if f"rule {rule.name}" in endings]
    for rule in rules:
        of = f" of target {target.name}" if rule in own else ""
        reasons.append(f"rule {rule.name}{of}: {rule.says}")
    table = family.table
    if table and not any(all(q & c for q, c in zip(query, c, strict=True)) for c in family.table_clauses):
        for code, value in enumerate(table.by.values):
            if query[table.by.position] >> code & 1:
                reasons.append(f"{table.title}: {value} has {' '.join(table.of(code))}{_takes(table)}")
    if "algorithms" in endings:
        has = root.algorithms(target, family)
        absent = root.backends[target.backend].absent.get(family.name, "")
        lacks = f"it has no kernels of {family.name}{': ' * bool(absent)}{absent}"
        why = "no algorithm of it answers this" if has else lacks
        reasons.append(f"target {target.name}: {why}")
    return reasons


def _no_such_sizes(root: Tree, family: Family, target: Target, query: Clause) -> str:
    """The reason where a device has kernels for all of a clause but its sizes, which its kernels are compiled for."""
    builds = f"kernels/backends/{target.backend}/builds.yaml"
    if not family.table or not os.path.exists(os.path.join(root.root, builds)):
        return ""
    free = {axis.position for axis in family.table.columns}
    others = tuple(family.everything[at] if at in free else codes for at, codes in enumerate(query))
    if not _legal(root, family, target, others).leaves():
        return ""
    return f"target {target.name}: none of its kernels has these {family.table.title}; {builds} has an entry for each"


def _takes(table: Table) -> str:
    """Words on problems between the table's values."""
    at_least = all(axis.holds == "at_least" for axis in table.columns)
    return f"; an instance takes any {table.title} up to its own" if at_least else ""


def _dropped(root: Tree, source: Receipt, family: Family, target: Target, query: Clause) -> list[str]:
    """Reasons why no clause of the receipt lists a legal signature: per clause, the axes that shut it out."""
    clauses = source.clauses.get(family.name, [])
    if not clauses:
        return [f"receipt {source.name} has no {family.name}:", *clauses_text(root, source).splitlines()]
    reasons = []
    for clause in clauses:
        apart = [axis for axis in family.axes if not clause[axis.position] & query[axis.position]]
        if apart:
            needs = [select.text_of(family, _only(family, clause, axis)) for axis in apart]
            has = [select.text_of(family, _only(family, query, axis)) for axis in apart]
            reasons.append(f"receipt {source.name} lists only {' '.join(needs)}, not {' '.join(has)}")
        else:  # every axis alone would do: rules and head dims forbid what is left of both
            both = tuple(q & c for q, c in zip(query, clause, strict=True))
            inner = "; ".join(_illegal(root, family, target, both))
            reasons.append(f"receipt {source.name} would need {select.text_of(family, both)}: {inner}")
    return [wrapped(reason, 4) for reason in dict.fromkeys(reasons)]


def _only(family: Family, clause: Clause, axis: Axis) -> Clause:
    return (*family.everything[: axis.position], clause[axis.position], *family.everything[axis.position + 1 :])


def _nearest(family: Family, query: Clause, leaves: Sequence[Leaf]) -> list[str]:
    """The listed signatures that differ on the fewest axes, by what differs. Larger head dims serve smaller ones."""

    def distance(packed: int) -> tuple[float, list[str]]:
        total, differing = 0.0, []
        for axis in family.axes:
            code, allowed = axis.code_in(packed), query[axis.position]
            if not allowed >> code & 1:
                asked = [c for c in range(len(axis.values)) if allowed >> c & 1]
                gap = min(abs(code - c) + (0.5 if code < c else 0.0) for c in asked)
                total += 1.0 + (gap / 100 if axis.kind == INTEGER else 0.0)
                differing.append(f"{axis.name}={axis.values[code]}")
        return total, differing

    found: dict[str, float] = {}
    for leaf in leaves:
        total, differing = distance(leaf.packed)
        found.setdefault(" ".join(differing), total)
    ranked = sorted(found.items(), key=lambda item: item[1])[:3]
    return [f"the same with {text}" for text, total in ranked if total < ranked[0][1] + 1]
