# SPDX-License-Identifier: MIT
"""Output of `list`, `receipts`, `targets`, `families` and `axes`."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import msgspec

from codegen.plan.plan import Instance, Plan, pick_targets, resolve, sieve
from codegen.schema import select
from codegen.schema.axes import BOOLEAN, Family
from codegen.schema.receipts import Receipt
from codegen.schema.targets import Target
from codegen.schema.tree import Tree
from codegen.tell.options import columns, wrapped

CK_NAME = "ck_name"
"""The column with CK's own names of instances."""
BOOLEAN_WORDS = ("no", "yes")


def _planned(plan: Plan) -> str:
    """Words behind a plan of targets whose kernels no library holds yet."""
    return f" ({', '.join(plan.planned)} planned: no library holds these kernels yet)" if plan.planned else ""


def like(plan: Plan, pattern: str) -> Plan:
    """The plan of the instances whose name, or CK's own, is like a pattern of the shell."""
    fits = re.compile(fnmatch.translate(pattern)).match
    kept = [i for i in plan.instances if fits(i.name) or (i.target.planned and fits(plan.ck_name(i)))]
    return Plan(plan.source, plan.target_list, plan.where, kept, plan.tree)


def names(plans: Sequence[Plan]) -> str:
    return "\n".join(instance.name for plan in plans for instance in plan.instances)


def _words(instance: Instance, how: Sequence[str], without: str) -> list[str]:
    """Signature, and algorithm by the axes `how`, as text in listing order; `without` where it has no such axis."""
    signature = [axis.values[axis.code_in(instance.packed)] for axis in instance.family_.axes]
    algorithm = instance.algorithm
    return [*signature, *(str(algorithm.get(axis, without)) for axis in how)]


def _by_family(plan: Plan) -> Iterator[tuple[Family, list[Instance]]]:
    for family in dict.fromkeys(instance.family_ for instance in plan.instances):
        instances = [instance for instance in plan.instances if instance.family_ is family]
        if instances:
            yield family, instances


def table(plans: Sequence[Plan]) -> str:
    """A table for each family of each plan: axes as columns. What is the same in every row stands above, once."""
    parts = []
    for plan, family, instances in [(one, *found) for one in plans for found in _by_family(one)]:
        how = plan.algorithm_axes(family)
        heads = [*family.axis_of, *how]
        rows = [_words(instance, how, "-") for instance in instances]
        if plan.planned:
            heads.append(CK_NAME)
            rows = [[*row, plan.ck_name(instance) or "-"] for row, instance in zip(rows, instances, strict=True)]
        varying = [at for at in range(len(heads)) if any(row[at] != rows[0][at] for row in rows)]
        same = " ".join(f"{heads[at]}={rows[0][at]}" for at in range(len(heads)) if at not in varying)
        lines = [f"{family.name}, {len(rows):,} instances of receipt {plan.receipt}{_planned(plan)}"]
        if same:
            lines.append(wrapped(f"all: {same}", 5))
        widths = [max(len(heads[at]), *(len(row[at]) for row in rows)) for at in varying]
        for row in [heads, *rows] if varying else []:
            cells = (f"{row[at]:<{width}}" for at, width in zip(varying, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def json(plans: Sequence[Plan]) -> str:
    """One object, one instance a line; of several plans a list of such objects."""
    objects = list(map(_json, plans))
    return objects[0] if len(objects) == 1 else "[" + ",\n".join(objects) + "]"


def _json(plan: Plan) -> str:
    head = {"receipt": plan.receipt, "number": plan.source.number, "where": plan.where, "targets": plan.targets}
    head |= {"planned": plan.planned} if plan.planned else {}
    rows = (
        {"name": i.name, "family": i.family, "signature": i.signature, "algorithm": i.algorithm}
        | ({CK_NAME: plan.ck_name(i)} if i.target.planned else {})
        for i in plan.instances
    )
    body = b",\n".join(msgspec.json.encode(row) for row in rows)
    return (msgspec.json.encode(head)[:-1] + b',"instances":[\n' + body + b"\n]}").decode()


def csv(plans: Sequence[Plan]) -> str:
    """One table: every axis is a column, empty where a family has no such axis. No value has a comma or a quote."""
    found = [(plan, *one) for plan in plans for one in _by_family(plan)]
    axes = list(dict.fromkeys(axis for _, family, _ in found for axis in family.axis_of))
    how = list(dict.fromkeys(axis for plan, family, _ in found for axis in plan.algorithm_axes(family)))
    planned = any(plan.planned for plan in plans)
    lines = [",".join(["name", "receipt", "family", *axes, *how, *(["planned", CK_NAME] if planned else [])])]
    for plan, family, instances in found:
        at = [list(family.axis_of).index(axis) if axis in family.axis_of else -1 for axis in axes]
        for instance in instances:
            words = _words(instance, how, "")
            signature, algorithm = words[: len(family.axes)], words[len(family.axes) :]
            cells = ["" if place < 0 else signature[place] for place in at]
            its = [BOOLEAN_WORDS[instance.target.planned], plan.ck_name(instance)] if planned else []
            lines.append(",".join([instance.name, plan.receipt, family.name, *cells, *algorithm, *its]))
    return "\n".join(lines)


FORMATS: dict[str, Callable[[Sequence[Plan]], str]] = {"names": names, "table": table, "json": json, "csv": csv}


def count(root: Tree, source: Receipt, target: str) -> int:
    """Of instances, without making them."""
    total = 0
    for family in root.families_of(source):
        everything = [select.Selected(family.everything)]
        total += sieve(root, source, family, root.target(target), everything).count()
    return total


def receipts(root: Tree, targets: Sequence[str]) -> str:
    chosen = pick_targets(root, targets)
    listed = root.sound_receipts
    width = max(len(receipt.name) for receipt in listed)
    rows = [(f"number  {'name':<{width}}  instances", "for whom")]
    for receipt in listed:
        total = sum(count(root, receipt, target.name) for target in chosen)
        rows.append((f"{receipt.number_text:>6}  {receipt.name:<{width}}  {total:>9,}", receipt.about))
    where = ", ".join(f"{target.name} (planned)" if target.planned else target.name for target in chosen)
    return f"{columns(rows, 0)}\n\nInstances on {where}."


def clauses(root: Tree, source: Receipt) -> str:
    """Clauses of a receipt, by family, as text."""
    lines = []
    for name, listed in source.clauses.items():
        family = root.families[name]
        for at, clause in enumerate(listed):
            lines.append(f"  {'or ' if at else name + ' '}{wrapped(select.text_of(family, clause), 6, 20)}")
        file = source.file.families.get(name)
        lines += [f"  added: {addition.text}, because {addition.reason}" for addition in (file.add if file else [])]
    lines += [f"  {f.name} what {f.main.name} needs" for f in root.families_of(source) if f.main]
    return "\n".join(lines)


def receipt(root: Tree, word: str, targets: Sequence[str]) -> str:
    """One receipt: clauses, counts by axis value, and a digest of all names."""
    plan = resolve(word, targets, root=root)
    source = plan.source
    lines = [f"receipt {source.titled}", wrapped(source.about, 0)]
    if source.base:
        lines.append(f"extends {source.base.name}")
    return "\n".join([*lines, "", "lists", clauses(root, source), "", counts(plan)])


def counts(plan: Plan) -> str:
    """Instances by family and axis value, and a digest of all names. Golden plans are this text.

    A value of all instances stands in the row `all`, and axes whose values have the same counts share a row.
    """
    parts = []
    for family, instances in _by_family(plan):
        by_axis: dict[str, Counter[str]] = {}
        signatures = Counter(map(attrgetter("packed"), instances))  # far fewer: targets and algorithms share them
        for axis in family.axes:
            fields = Counter[int]()
            for packed, found in signatures.items():
                fields[packed >> axis.shift & axis.field] += found
            by_code = {axis.code_in(field << axis.shift): found for field, found in fields.items()}
            by_axis[axis.name] = Counter({v: by_code[code] for code, v in enumerate(axis.values) if code in by_code})
        by_axis["target"] = Counter(map(attrgetter("target.name"), instances))
        words = {key: f"{how.pipeline} {how.shown}" for key, how in {id(i.how): i.how for i in instances}.items()}
        by_axis["algorithm"] = Counter(words[id(i.how)] for i in instances)
        rows: dict[str, list[str]] = {}  # axes by their text
        for name, counted in by_axis.items():
            if len(counted) > 1:
                rows.setdefault(", ".join(f"{value} {found:,}" for value, found in counted.items()), []).append(name)
        everywhere = [f"{name} {value}" for name, counted in by_axis.items() if len(counted) == 1 for value in counted]
        shown = [(", ".join(axes), text) for text, axes in rows.items()]
        shown += [("all", ", ".join(everywhere))] if everywhere else []
        parts.append(f"{family.name}: {len(instances):,} instances{_planned(plan)}\n{columns(shown)}")
    return "\n\n".join([*parts, f"targets: {', '.join(plan.targets)}", f"digest of all names: {plan.digest}"])


def targets(root: Tree) -> str:
    native = root.native()
    lines = []
    for target in (*root.targets.values(), *root.planned.values()):
        if target.planned:
            lines.append(_of_planned(root, target))
            continue
        runs = "the native target here" if target is native else "runs here" if target.usable else "does not run here"
        lines.append(f"{target.name}  ({runs})\n  {wrapped(target.about, 2)}")
        facts = [("backend", target.backend), ("isa", target.isa or "none"), ("machine", target.arch)]
        facts += [("flags", " ".join(target.flags) or "none"), ("cpuid", " ".join(target.cpuid) or "nothing")]
        facts += _limits(target)
        for family in root.families.values():
            algorithms = root.algorithms(target, family)
            facts.append((family.name, ", ".join(f"{a.pipeline} {a.shown}" for a in algorithms) or "no algorithm"))
            facts += [("refuses", f"{rule.name}: {rule.says}") for rule in root.refusals(target, family)]
        lines.append(columns(facts, 4))
    return "\n".join(lines)


def _limits(target: Target) -> list[tuple[str, str]]:
    text = ", ".join(f"{name} {value:,}" for name, value in target.limits.items())
    return [("limits", text)] if text else []


def _of_planned(root: Tree, target: Target) -> str:
    facts = [("backend", target.backend), ("machine", target.arch), ("flags", " ".join(target.flags) or "none")]
    facts += _limits(target)
    facts.append(("tiles", " ".join(target.tiles)))
    for family in root.families.values():
        if algorithms := root.algorithms(target, family):
            counted = Counter(how.pipeline for how in algorithms)
            facts.append((family.name, ", ".join(f"{name} {count}" for name, count in counted.items())))
            facts += [("refuses", f"{rule.name}: {rule.says}") for rule in root.refusals(target, family)]
    about = f"{target.name}  (planned: listed, no library holds its kernels yet)\n  {wrapped(target.about, 2)}"
    return f"{about}\n{columns(facts, 4)}"


def families(root: Tree) -> str:
    rows = []
    for family in root.families.values():
        size = f"{len(family.axes)} axes, {len(family.rules)} rules, pipelines {', '.join(family.pipelines)}"
        if family.main:
            size = f"companion of {family.main.name}, {size}"
        rows.append((family.name, f"{family.about} ({size})"))
    return columns(rows, 0)


def axes(root: Tree, name: str) -> str:
    return "\n\n".join(_axes(family) for family in ([root.family(name)] if name else root.families.values()))


def _axes(family: Family) -> str:
    rows = []
    for axis in family.axes:
        kind = "" if axis.kind != BOOLEAN else " (boolean)"
        rows.append((f"{axis.name}={'|'.join(axis.values)}{kind}", axis.about))
    lines = [f"{family.name}: {family.about}", columns(rows)]
    if table := family.table:
        listed = [(value, " ".join(table.of(code))) for code, value in enumerate(table.by.values)]
        lines += [f"{table.title} ({table.heading})", columns(listed)]
    if family.file.base:
        lines.append("base: what `keep` in a receipt can mean; it adds what it needs beyond")
        lines += [f"  {'or ' if at else ''}{select.text_of(family, clause)}" for at, clause in enumerate(family.base)]
    if family.rules:
        lines += ["rules", columns([(rule.name, rule.says) for rule in family.rules])]
    if family.main:
        lines.append(f"It comes with {family.main.name}: one for every signature that its instances need.")
    return "\n".join(lines)
