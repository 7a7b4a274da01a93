# SPDX-License-Identifier: MIT
"""Everything that can be wrong about the YAML files and would not show up in the one receipt that someone lists."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from codegen.emit import files, kernels
from codegen.emit.operators import written
from codegen.plan.plan import resolve
from codegen.plan.sieve import Sieve
from codegen.schema import select, tile_tables
from codegen.schema.axes import Family
from codegen.schema.backends import Backend
from codegen.schema.errors import CodegenError, no_such
from codegen.schema.operators import Operator
from codegen.schema.receipts import Receipt
from codegen.schema.targets import Target
from codegen.schema.tree import Tree
from codegen.tell import docs
from codegen.tell.options import columns


def check(root: Tree) -> str:
    """Load all, resolve all. CodegenError at the first thing that is wrong; else what was checked."""
    receipts, names = root.all_receipts(), set[str]()
    for target in root.every_target.values():
        for key, named in (("algorithms", target.own_algorithms or {}), ("refuses", target.file.refuses)):
            for name in named:
                if name not in root.families:
                    raise target.document.error((key, f"<{name}>"), no_such("family", name, root.families, "families"))
    for family in root.families.values():
        _check_rules(root, family)
        _check_base(family)
        for backend in root.backends:
            if tables := root.tile_tables(backend, family):
                tile_tables.check(tables)
    _check_tables(root)
    for each in root.backends.values():
        check_absent(root, each)
    for target in root.targets.values():
        _check_kernels(root, target)
    total, listed = 0, set[str]()
    for receipt in sorted(receipts, key=lambda receipt: receipt.base is not None):  # a fault shows where it stands
        plan = resolve(receipt.name, ["all"], root=root)
        names |= {instance.name for instance in plan.instances}
        total += len(plan.instances)
        listed |= receipt.clauses.keys()
        for name, clauses in receipt.clauses.items():
            _check_clauses(receipt, root.families[name], clauses)
    for family in root.families.values():
        _check_files(root, family)
    for operator in root.own_operators.values():
        check_places(root, operator, listed)
        check_proof(root, operator)
    written.check(root)
    rules = sum(len(family.rules) for family in root.families.values())
    counts = [
        (len(receipts), "receipt"),
        (len(root.operators), "operator"),
        (len(root.families), "family"),
        (rules, "rule"),
        (len(root.every_target), "target"),
    ]
    checked = ", ".join(f"{count} {_plural(word, count)}" for count, word in counts)
    well = f"all is well: {checked}; {total:,} instances over all receipts and targets, {len(names):,} different"
    return "\n".join([well, *changed(root), *mixed(root)])


def check_absent(root: Tree, backend: Backend) -> None:
    """A backend gives no reason for the lack of what it has."""
    targets = [target for target in root.every_target.values() if target.backend == backend.name]
    lacked = {one.name for one in root.families.values() if not any(root.algorithms(t, one) for t in targets)}
    for name in backend.absent:
        if name not in lacked:
            known = f"a target of {backend.name} has kernels of {name}" if name in root.families else ""
            raise backend.document.error(
                ("absent",), known or no_such("family", name, root.families, "families").replace("\n", "; ")
            )


def _check_tables(root: Tree) -> None:
    """Every table of tiles that a target names is one of some family, and stands in the room that its tables say."""
    for target in root.every_target.values():
        listed = [root.tile_tables(target.backend, family) for family in root.families.values()]
        known = sorted({name for tables in listed if tables for name in tables.file.tables})
        for index, name in enumerate(target.tiles):
            if name not in known:
                message = no_such("table of tiles", name, known).replace("\n", "; ")
                raise target.document.error(("tiles", index), message)


def changed(root: Tree) -> list[str]:
    """The receipts that list more or less than the committed page says, a line each."""
    before, now = docs.recorded(root), docs.counts(root)
    if before is None or before == now:
        return []
    rows = [(name, f"{_counted(before, name)} -> {_counted(now, name)}") for name in dict.fromkeys([*now, *before])]
    rows = [(name, text) for name, text in rows if before.get(name) != now.get(name)]
    head = f"since {docs.FOLDER}/receipts.md was written, instances on one target have changed:"
    return [head, columns(rows), "if that is meant: python -m codegen write"]


def mixed(root: Tree) -> list[str]:
    """Values that the committed pages do not have and whose rows stand in sources among others, a line each."""
    lines = []
    for family in root.families.values():
        before = docs.recorded_axes(root, family.name)
        if before is None:
            continue
        for axis in family.axes:
            if axis.name in family.file.source_by:
                continue
            values = list(map(str, axis.values))
            # The first value of a new axis is what there was.
            known = before.get(axis.name, values[:1])
            new = [value for code, value in enumerate(values) if value not in known and code not in axis.apart]
            if new:
                words = ", ".join(f'"{value}"' if value in ("yes", "no") else value for value in new)
                lines.append(
                    f"{family.document.shown}: {axis.name}={','.join(new)} is new, and every source of rows that a "
                    f"receipt with it has is compiled again. `apart: [{words}]` gives its rows sources of their own"
                )
    return lines


def _counted(counts: Mapping[str, int], name: str) -> str:
    return f"{counts[name]:,}" if name in counts else "none"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word[:-1]}ies" if word[-1] == "y" else f"{word}s"


def _check_rules(root: Tree, family: Family) -> None:
    endings = Sieve(family, {"table": family.table_clauses}, [[family.everything]]).endings()
    for index, rule in enumerate(family.rules):
        if (f"rule {rule.name}",) not in endings:
            others = f"{family.table.title} and the other rules" if family.table else "the other rules"
            message = f"rule '{rule.name}' never applies: {others} allow nothing that it forbids"
            raise family.document.error(("rules", index, "when"), message)
    for target in root.every_target.values():
        hows = [algorithm.when for algorithm in root.algorithms(target, family)]
        if target.beside and not hows:  # it may say why the other one answers a whole family
            hows = [[family.everything]]
        refusals = root.refusals(target, family)
        endings = Sieve(family, {"table": family.table_clauses}, hows, refusals).endings() if refusals else set()
        for index, refusal in enumerate(target.file.refuses.get(family.name, [])):
            if (f"rule {refusal.name}",) not in endings:
                message = f"'{refusal.name}' never applies: {target.name} answers nothing that it forbids"
                raise target.document.error(("refuses", family.name, index, "when"), message)


def _check_base(family: Family) -> None:
    for index, clause in enumerate(family.base):
        if not _legal(family, clause):
            text = select.text_of(family, clause)
            raise family.document.error(("base", index), f"no legal signature of {family.name} has {text}")


def _check_clauses(receipt: Receipt, family: Family, clauses: Sequence[select.Clause]) -> None:
    """Each selection of `keep` has a legal signature, and so has what is left of all with `only`."""
    path: tuple[str | int, ...] = ("families", family.name)
    file = receipt.file.families.get(family.name)
    keep = file.keep if file is not None and file.keep is not None else []
    for index, text in enumerate([keep] if isinstance(keep, str) else keep):
        kept = family.bind(text, (*path, "keep"), receipt.document)
        if not any(_legal(family, clause) for clause in select.both(kept, family.base)):
            written = " or ".join(select.text_of(family, clause) for clause in kept)
            raise receipt.document.error((*path, "keep", index), f"no legal signature of {family.name} has {written}")
    if not any(_legal(family, clause) for clause in clauses):
        raise receipt.document.error(path, f"nothing that this keeps of {family.name} is legal")


def _legal(family: Family, clause: select.Clause) -> bool:
    lists: dict[str, Sequence[select.Clause]] = {"table": family.table_clauses, "clause": [clause]}
    return bool(Sieve(family, lists, [[family.everything]]).count())


def _check_files(root: Tree, family: Family) -> None:
    """Checks that the files named by a family are there."""
    own = [name for name in family.pipelines if family.owner(name) is family]
    named: list[tuple[str, tuple[str | int, ...]]] = []
    if family.engine_family is family:
        named.append((family.engine.header, ("engine", "header")))
    sharing = [other for other in root.families.values() if other is family or other.engine_family is family]
    used = {
        (target.backend, how.pipeline)
        for target in root.targets.values()
        for other in sharing
        for how in root.algorithms(target, other)
    }
    for index, name in enumerate(family.pipelines):
        if name not in own:
            continue
        backends = [backend for backend in root.backends if (backend, name) in used] or [*root.backends][:1]
        named += [(f"{family.room}/{backend}/{name}.cpp", ("pipelines", index, "name")) for backend in backends]
        named += [(path, ("pipelines", index, "shares", at)) for at, path in enumerate(family.shares(name))]
    for file, path in named:
        if not os.path.isfile(root.places.at(file)):
            raise family.document.error(path, f"{file} is missing")


def _check_kernels(root: Tree, target: Target) -> None:
    """Of a target whose kernels are compiled ahead, a family that it answers has one."""
    if not kernels.of_target(root, target.name):
        return
    answered = {name for one in root.families.values() for name in kernels.owners(root, target.name, one)}
    for name in sorted(answered):
        if not kernels.of_engine(root, target.name, name):
            raise CodegenError(kernels.absent(target, name))


def check_places(root: Tree, operator: Operator, listed: set[str]) -> None:
    """Host code of an operator is there, a target answers its main stage, and a receipt lists it."""
    host = f"{operator.room}/host.cpp"
    if not os.path.isfile(root.places.at(host)):
        raise operator.document.error(("operator",), f"{host} is missing: `fill` and `launch` stand there")
    family = root.families[operator.file.stages[operator.main]]
    if not any(root.algorithms(target, family) for target in root.targets.values()):
        message = (
            f"no target has a pipeline of {family.name}: name one under `algorithms:` of a file of kernels/targets, "
            "such as cpu-generic.yaml"
        )
        raise family.document.error(("family",), message)
    if family.name not in listed:
        message = f"no receipt has {family.name}: name it under `families:` of one, such as receipts/norm_default.yaml"
        raise family.document.error(("family",), message)


def check_proof(root: Tree, operator: Operator) -> None:
    """An operator has a reference that judges it, tests that name it, and a page."""
    name, file = operator.name, operator.file
    proofs = {
        "reference": f"python/tilekiln/reference/{file.reference or name}.py",
        "tests": f"tests/python/{file.tests or f'test_{name}'}.py",
        "page": f"{docs.FOLDER}/operators/{name}.md",
    }
    for what, path in proofs.items():
        said = (what,) if getattr(file, what, None) else ("operator",)
        found = files.read(os.path.join(root.root, path))
        if found is None:
            how = "python -m codegen write" if what == "page" else "write it"
            more = "" if what == "page" else f", or name another under `{what}`"
            raise operator.document.error(said, f"the {what} of {name}, {path}, must be there: {how}{more}")
        if what == "tests" and not re.search(rf"\b{name}\b", found.decode()):
            raise operator.document.error(said, f"the tests of {name}, {path}, must name it")
