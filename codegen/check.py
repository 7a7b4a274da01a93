"""Everything that can be wrong about the YAML files and would not show up in the one receipt that someone lists."""

from __future__ import annotations

import os

from codegen import select
from codegen.plan import resolve
from codegen.sieve import Sieve
from codegen.tree import Tree


def check(root: Tree) -> str:
    """Load all, resolve all. CodegenError at the first thing that is wrong; else what was checked."""
    receipts, names = root.all_receipts(), set[str]()
    for family in root.families.values():
        _check_family(root, family.name)
    total = 0
    for receipt in receipts:
        plan = resolve(receipt.name, ["all"], root=root)
        names |= {instance.name for instance in plan.instances}
        total += len(plan.instances)
        for name, clauses in receipt.clauses.items():
            family = root.families[name]
            every = [[family.everything]]
            for index, clause in enumerate(clauses):
                if not Sieve(family, {"head_dims": family.head_dim_clauses, "clause": [clause]}, every).leaves():
                    text = select.text_of(family, clause)
                    path = ("families", name, "keep", index)
                    raise receipt.document.error(path, f"no legal signature of {name} has {text}")
    rules = sum(len(family.rules) for family in root.families.values())
    counts = [
        (len(receipts), "receipt"),
        (len(root.families), "family"),
        (rules, "rule"),
        (len(root.targets), "target"),
    ]
    checked = ", ".join(f"{count} {_plural(word, count)}" for count, word in counts)
    return f"all is well: {checked}; {total:,} instances over all receipts and targets, {len(names):,} different"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word[:-1]}ies" if word[-1] == "y" else f"{word}s"


def _check_family(root: Tree, name: str) -> None:
    family = root.families[name]
    endings = Sieve(family, {"head_dims": family.head_dim_clauses}, [[family.everything]]).endings()
    for index, rule in enumerate(family.rules):
        if f"rule {rule.name}" not in endings:
            message = f"rule '{rule.name}' never applies: head dims and the other rules allow nothing that it forbids"
            raise family.document.error(("rules", index, "when"), message)
    for target in root.targets.values():
        root.algorithms(target, family)
    sources: list[tuple[str, tuple[str | int, ...]]] = [("rows.cpp.jinja", ("family",))]
    sources += [(f"{pipeline}.cpp", ("pipelines", index, "name")) for index, pipeline in enumerate(family.pipelines)]
    for source, path in sources:
        if not os.path.isfile(os.path.join(root.root, "kernels", name, source)):
            raise family.document.error(path, f"kernels/{name}/{source} is missing")
    header = family.file.engine.header
    if not os.path.isfile(os.path.join(root.root, "include", header)):
        raise family.document.error(("engine", "header"), f"include/{header} is missing")
