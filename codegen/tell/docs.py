# SPDX-License-Identifier: MIT
"""Reference pages, written from the tables that listings and builds use. Nothing in them depends on the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from codegen.emit import files
from codegen.emit.operators import reference
from codegen.schema import select
from codegen.schema.axes import Family
from codegen.schema.errors import CodegenError
from codegen.schema.operators import Operator
from codegen.schema.places import OUTSIDE
from codegen.schema.receipts import Receipt
from codegen.schema.tree import Tree
from codegen.tell.listing import count

FOLDER = "docs/reference"  # of the pages, in the tree
_MADE = "<!-- Made by `python -m codegen docs --write docs/reference`; edit the YAML files instead. -->"


def pages(root: Tree, commands: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Text by file name; `commands`: titles and texts of their help."""
    if root.places.outside:  # a tree's own pages are committed
        families = {stage: root.families[stage] for one in root.outside_operators.values() for stage in one.file.stages}
        return {f"operators/{one.name}.md": _operator(root, one) for one in root.outside_operators.values()} | {
            f"{name}.md": _family(root, family)
            for name, family in families.items()
            if family.room.startswith(f"{OUTSIDE}/") and not reference.only_stage(name, root.operators)
        }
    result = {"README.md": _index(root), "receipts.md": _receipts(root), "targets.md": _targets(root)}
    result |= {"codegen.md": _commands(commands)}
    result |= {f"operators/{one.name}.md": _operator(root, one) for one in root.operators.values()}
    return result | {f"{family.name}.md": _family(root, family) for family in _with_pages(root)}


def _with_pages(root: Tree) -> list[Family]:
    """Families that have pages of their own; the others stand on that of their operator."""
    return [one for one in root.families.values() if not reference.only_stage(one.name, root.operators)]


def _link(root: Tree, family: str) -> str:
    """A link to a family from a page of the folder."""
    return f"[{family}]({'operators/' if reference.only_stage(family, root.operators) else ''}{family}.md)"


def write(root: Tree, folder: str, commands: Sequence[tuple[str, str]]) -> str:
    made = {name: text.encode() for name, text in pages(root, commands).items()}
    for name in made:
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
    written = files.write_changed(folder, made)
    return "\n".join(f"{folder}/{name}: {'written' if name in written else 'up to date'}" for name in sorted(made))


def check(root: Tree, folder: str, commands: Sequence[tuple[str, str]]) -> None:
    """CodegenError when a page in the tree is not what would be written now."""
    stale = []
    for name, text in sorted(pages(root, commands).items()):
        path = os.path.join(root.root, folder, name)
        if not files.unchanged(path, text.encode()):
            stale.append(f"{folder}/{name}")
    if stale:
        raise CodegenError(f"out of date: {', '.join(stale)}\nwrite them: python -m codegen write")


def recorded(root: Tree) -> dict[str, int] | None:
    """The receipts and their instances as docs/reference/receipts.md has them; None without that page."""
    page = files.read(os.path.join(root.root, FOLDER, "receipts.md"))
    if page is None:
        return None
    rows = re.findall(r"^\| \d* \| \[(\w+)\]\(#\w+\) \| ([\d,]+) \|", page.decode(), re.MULTILINE)
    return {name: int(counted.replace(",", "")) for name, counted in rows}


def recorded_axes(root: Tree, family: str) -> dict[str, list[str]] | None:
    """The axes of a family with their values, as its page has them; None without that page."""
    own = files.read(os.path.join(root.root, FOLDER, f"{family}.md"))
    page = own or files.read(os.path.join(root.root, FOLDER, f"operators/{family}.md"))
    if page is None:
        return None
    table = page.decode().partition("## Axes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ((?:`[^`]+` ?)+)\|", table, re.MULTILINE)
    return {name: re.findall("`([^`]+)`", values) for name, values in rows}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", _MADE, *(part for part in parts if part)]) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def counts(root: Tree) -> dict[str, int]:
    """By receipt the instances on one target, as the page of receipts says them."""
    target = next(iter(root.targets))
    return {receipt.name: count(root, receipt, target) for receipt in root.all_receipts() if not receipt.outside}


def _index(root: Tree) -> str:
    operators = [[f"[{one.name}](operators/{one.name}.md)", one.about] for one in root.operators.values()]
    families = [[_link(root, family.name), family.about] for family in _with_pages(root)]
    others = [
        ["[receipts](receipts.md)", "The products: what each holds, and for whom."],
        ["[targets](targets.md)", "The hardware: flags, what a CPU must have, algorithms."],
        ["[codegen](codegen.md)", "The generator's commands, with their help."],
        ["[environment](environment.md)", "Every environment variable."],
        ["[special values](special-values.md)", "NaN, infinities, empty rows and extreme numbers."],
    ]
    return _page(
        "Reference",
        "## Operators\n\nWhat callers call: arguments, shapes, results, refusals.\n\n"
        + _table(["operator", ""], operators),
        "## Every call\n\nBeside each function of a library there are two with the same arguments: `NAME_find`, the "
        "instance the dispatcher would choose, and `NAME_why`, the choice in words. In C the three are "
        "`tilekiln_NAME`, `tilekiln_NAME_find` and `tilekiln_NAME_why` of `tilekiln/operators/NAME.h`, over a struct "
        "`tilekiln_NAME_args`. Arguments that every call has, by name:\n\n"
        + _table(["argument", "what", "default", ""], reference.common(next(iter(root.operators.values())))),
        "## Families\n\nThe kernels: axes, rules, pipelines, names. A signature has one value of each axis; a kernel's "
        "name is the words of the axes in the order of their page, then the algorithm. The family of an operator that "
        "has one stand on the operator's page; the others:\n\n" + _table(["family", ""], families),
        "## All else\n\n" + _table(["page", ""], others),
    )


def _operator(root: Tree, operator: Operator) -> str:
    """Its page, with its family where that is its one stage."""
    sections = [
        (f"## {heading}\n\n" if heading else "") + (body if isinstance(body, str) else _table(*body))
        for heading, body in reference.parts(operator, root.operators)
        if body
    ]
    one = reference.only_stage(operator.name, root.operators)
    return _page(operator.name, *sections, *(_of_family(root, root.families[operator.name]) if one else []))


def _receipts(root: Tree) -> str:
    listed, counted = root.all_receipts(), counts(root)
    rows = [[r.number_text, f"[{r.name}](#{r.name})", f"{counted[r.name]:,}", r.about] for r in listed]
    parts = [
        "A receipt is a named product: what `scons receipt=NAME` builds. Numbers work wherever names do. Counts are of "
        "instances on one CPU target; the CPU targets all have the same signatures.",
        _table(["number", "name", "instances", "for whom"], rows),
    ]
    for receipt in listed:
        lines = [f"## {receipt.name}", "", receipt.about]
        if receipt.base:
            lines += ["", f"Extends [{receipt.base.name}](#{receipt.base.name})."]
        said = {name: _said(root, receipt, name) for name in receipt.clauses}
        of_base = {name: _said(root, receipt.base, name) for name in receipt.base.clauses} if receipt.base else {}
        if same := [name for name, text in said.items() if of_base.get(name) == text]:
            lines[-1] += f" As there: {', '.join(_link(root, name) for name in same)}."
        for text in dict.fromkeys(text for name, text in said.items() if name not in same):
            names = [name for name, other in said.items() if other == text and name not in same]
            lines += ["", f"{', '.join(_link(root, name) for name in names)} where{text}"]
        companions = [family for family in root.families_of(receipt) if family.main]
        if companions:
            links = [f"{_link(root, f.name)} what {f.main.name} needs" for f in companions if f.main]
            lines += ["", f"And of {', of '.join(links)}."]
        parts.append("\n".join(lines))
    return _page("Receipts", *parts)


def _said(root: Tree, receipt: Receipt, name: str) -> str:
    """Selections of a family in a receipt, and what was added to them."""
    file = receipt.file.families.get(name)
    added = [f"* `{addition.text}`: {addition.reason}" for addition in (file.add if file else [])]
    clauses = [f"`{select.text_of(root.families[name], clause)}`" for clause in receipt.clauses[name]]
    lines = ["", "", *(f"* {clause}" for clause in clauses)] if len(clauses) > 1 else [f" {clauses[0]}"]
    lines += ["", "Of these, added beyond what its users' upstream builds:", "", *added] if added else []
    return "\n".join(lines)


def _family(root: Tree, family: Family) -> str:
    links = [f"[{o.name}](operators/{o.name}.md)" for o in root.operators.values() if family.name in o.file.stages]
    comes = ""
    if family.main:
        comes = (
            f"It comes with {_link(root, family.main.name)}: a plan has exactly the signatures that its instances need."
        )
    stage = f"A stage of {', '.join(links)}." if links else ""
    return _page(family.name, family.about, stage, comes, *_of_family(root, family))


def _of_family(root: Tree, family: Family) -> list[str]:
    """Sections of a family."""
    heads = ["axis", "values", ""]
    axes = [[f"`{a.name}`", " ".join(f"`{value}`" for value in a.values), a.about] for a in family.axes]
    if operator := reference.of_family(family.name, root.operators):
        heads, said = ["axis", "values", "set by", ""], reference.set_by(operator)
        axes = [[name, values, said.get(name.strip("`"), ""), about] for name, values, about in axes]
    rules = [
        [f"`{rule.name}`", rule.says, " or ".join(f"`{select.text_of(family, clause)}`" for clause in rule.when)]
        for rule in family.rules
    ]
    pipelines = [[f"`{p.name}`", p.about] for p in family.file.pipelines]
    how = "".join(axis.word(axis.name.upper()) for axis in family.algorithm_axes if axis.of)
    name = f"{family.name}{''.join(axis.words[0] for axis in family.axes)}_PIPELINE{how}_TARGET"
    integers = ""
    if table := family.table:
        rows = [[f"`{value}`", ", ".join(table.of(code))] for code, value in enumerate(table.by.values)]
        heads = [table.by.name, table.title if family.main else "pairs"]
        integers = (
            f"## {table.title.capitalize()}\n\n{table.heading}, by {table.by.name}. "
            f"An instance takes any {table.title} up to its own.\n\n{_table(heads, rows)}"
        )
    base = ""
    if family.file.base:
        base = "## Base\n\nWhat `keep` in a receipt can mean. A receipt adds what it needs beyond, with its reason.\n\n"
        base += "\n".join(f"* `{select.text_of(family, clause)}`" for clause in family.base)
    return [
        "## Axes\n\n" + _table(heads, axes),
        integers,
        base,
        "## Rules\n\nA signature that meets the selection is illegal, in every receipt.\n\n"
        + _table(["rule", "says", "selection"], rules)
        if rules
        else "",
        "## Pipelines\n\n" + _table(["pipeline", ""], pipelines),
        f"With the first value of each axis a kernel is named `{name}`.",
    ]


def _targets(root: Tree) -> str:
    rows = []
    algorithms: dict[tuple[str, ...], list[str]] = {}  # with the targets that have each
    for target in root.targets.values():
        flags = " ".join(f"`{flag}`" for flag in target.flags) or "none"
        cpuid = " ".join(f"`{feature}`" for feature in target.cpuid) or "nothing"
        isa = f"`{target.isa}`" if target.isa else "none"
        rows.append([f"`{target.name}`", target.backend, isa, target.arch, flags, cpuid, target.about])
    for family in root.families.values():
        for target in root.targets.values():
            for how in root.algorithms(target, family):
                when = " or ".join(f"`{select.text_of(family, clause)}`" for clause in how.when)
                key = (family.name, f"`{how.pipeline}`", how.shown, str(how.rank), when)
                algorithms.setdefault(key, []).append(f"`{target.name}`")
    planned = []
    for target in root.planned.values():
        limits = ", ".join(f"{name} {value:,}" for name, value in target.limits.items())
        tables = " ".join(f"`{name}`" for name in target.tiles)
        planned.append([f"`{target.name}`", target.backend, target.arch, limits, tables, target.about])
    return _page(
        "Targets",
        "Slowest first. At load a library takes the fastest of its targets that the machine has; `TILEKILN_ISA` forces "
        "one down.",
        _table(["target", "backend", "TILEKILN_ISA", "machine", "compiler flags", "the CPU must have", ""], rows),
        "## Algorithms\n\nEach gives one instance per signature that its selection allows, on each of its targets; of "
        "several of a target that fit, the lowest rank answers.\n\n"
        + _table(
            ["family", "pipeline", "tile", "rank", "answers", "targets"],
            _joined(algorithms),
        ),
        "## Planned\n\nTargets whose kernels no library holds yet. `python -m codegen list RECEIPT --target NAME` says "
        "which instances a receipt will have there, and all formats but names have CK's own names (`ck_name`). A build "
        "for one is refused. Their tiles stand in the rooms' `ck/tiles.yaml`.\n\n"
        + _table(["target", "backend", "machine", "limits", "tables of tiles", ""], planned),
    )


def _joined(algorithms: Mapping[tuple[str, ...], Sequence[str]]) -> list[list[str]]:
    """Rows of algorithms; families that have the same on the same targets share one."""
    families: dict[tuple[str, ...], list[str]] = {}
    for (family, *how), names in algorithms.items():
        families.setdefault((*how, " ".join(names)), []).append(family)
    return [[" ".join(found), *row] for row, found in families.items()]


def _commands(pages: Sequence[tuple[str, str]]) -> str:
    parts = [f"## {title}\n\n```text\n{text.rstrip()}\n```" for title, text in pages]
    return _page("The generator's commands", *parts)
