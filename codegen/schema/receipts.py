# SPDX-License-Identifier: MIT
"""Receipts: named products. Here they become clauses over each family's axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from codegen.schema import select, sizes, tuned, yaml_types
from codegen.schema.errors import SelectionError, no_such
from codegen.schema.places import OUTSIDE
from codegen.schema.select import Clause, Selected
from codegen.schema.yaml_io import Document

if TYPE_CHECKING:
    from codegen.schema.algorithms import Algorithm
    from codegen.schema.axes import Family
    from codegen.schema.operators import Operator
    from codegen.schema.targets import Target


class Receipt:
    """One receipts/*.yaml. `clauses[family]`: a legal signature that meets one of them is listed.

    `selected[family]`: where it is there, by these ways alone; only kernel sets say it.
    """

    selected: dict[str, list[Selected]]
    tuned: tuned.Tuned | None = None  # what its libraries take that was measured
    fixed = False  # whether each combination of features has a kernel of its own

    def __init__(self, document: Document, families: Mapping[str, Family], base: Receipt | None) -> None:
        self.document = document
        self.file = document.load(yaml_types.ReceiptFile)
        self.name, self.number, self.about = self.file.receipt, self.file.number, self.file.about
        self.base = base
        self.outside = document.path.startswith(f"{OUTSIDE}/")
        self.size_budget = self._size_budget()
        self.fixed = self.file.features == "fixed"
        self.tuned = tuned.beside(document, self.file.tuned, self.name)
        self.selected = {}
        if document.path.rpartition("/")[2] not in (f"{self.name}.yaml", "operator.yaml"):
            raise document.error(("receipt",), f"the file must be named {self.name}.yaml")
        self.clauses: dict[str, list[Clause]] = dict(base.clauses) if base else {}
        for index, name in enumerate(self.file.without):
            if name not in self.clauses:
                raise document.error(("without", index), no_such("inherited family", name, self.clauses))
            del self.clauses[name]
        if self.file.only is not None:
            self._narrow(families, self.file.only)
        for name, file in self.file.families.items():
            if name not in families:
                raise document.error(("families", f"<{name}>"), no_such("family", name, families, "families"))
            main = families[name].main
            if main:
                message = f"{name} comes with {main.name}: exactly what its instances need; name that family"
                raise document.error(("families", f"<{name}>"), message)
            self.clauses[name] = self._family(families[name], file)
        unable = [name for name in self.clauses if self.fixed and not families[name].file.fixed]
        if unable:
            able = ", ".join(name for name, family in families.items() if family.file.fixed)
            message = f"{unable[0]} has no kernels of fixed features; {able} has: leave out the others"
            raise document.error(("features",), message)
        if not self.clauses:
            raise document.error((), f"receipt '{self.name}' names no family and extends no receipt")

    def made(self, target: Target, family: Family, known: Sequence[Algorithm]) -> list[Algorithm]:
        """Algorithms that it has beside those of a target (kernel sets)."""
        return []

    @property
    def names(self) -> list[str]:
        """Its own and those that it extends."""
        return [self.name, *(self.base.names if self.base else [])]

    @property
    def number_text(self) -> str:
        """The number as text, "" if it has none."""
        return "" if self.number is None else str(self.number)

    @property
    def titled(self) -> str:
        """The name, and the number in brackets if it has one."""
        return self.name if self.number is None else f"{self.name} ({self.number})"

    def _size_budget(self) -> int | None:
        """Bytes."""
        if self.file.size_budget is None:
            return None
        try:
            return sizes.parse(self.file.size_budget)
        except ValueError as error:
            raise self.document.error(("size_budget",), str(error)) from error

    def _narrow(self, families: Mapping[str, Family], only: yaml_types.Selection) -> None:
        """Narrows the inherited families to `only`; a family that lacks an axis it names stays as it is."""
        try:
            texts = [only] if isinstance(only, str) else only
            named = {one.axis for text in texts for clause in select.parse(text) for one in clause}
        except SelectionError as error:
            raise self.document.selection_error(("only",), error) from error
        inherited = [families[name] for name in self.clauses]
        have = [family for family in inherited if named <= {*family.axis_of}]
        if not inherited:
            raise self.document.error(("only",), "this narrows what is inherited, and the receipt extends no other")
        for family in have or inherited:  # where none has them, the error says which is missing
            narrow = select.both(self.clauses[family.name], family.bind(only, ("only",), self.document))
            if not narrow:
                raise self.document.error(("only",), f"this leaves nothing of {family.name}; `without` leaves it out")
            self.clauses[family.name] = select.apart(narrow)

    def _family(self, family: Family, file: yaml_types.ReceiptFamilyFile) -> list[Clause]:
        """Inherited or own clauses, narrowed by `only`, then widened by every `add`."""
        path = ("families", family.name)
        clauses = list(self.clauses.get(family.name, []))
        if file.keep is not None and clauses and self.base:
            message = f"{family.name} is inherited from {self.base.name}: `only` narrows it, `add` widens it; "
            message += f"to keep something else, write `without: [{family.name}]` as well"
            raise self.document.error((*path, "keep"), message)
        if file.keep is not None:
            kept = select.apart(select.both(family.bind(file.keep, (*path, "keep"), self.document), family.base))
            if not kept:
                message = f"nothing of this is in the base of {family.name}; what is beyond it, a receipt adds (`add`)"
                raise self.document.error((*path, "keep"), message)
            clauses += kept
        if not clauses:
            raise self.document.error(path, f"receipt '{self.name}' keeps nothing of {family.name}: `keep` is missing")
        if file.only is not None:
            narrow = family.bind(file.only, (*path, "only"), self.document)
            clauses = select.apart(select.both(clauses, narrow))
            if not clauses:
                raise self.document.error((*path, "only"), "this leaves nothing of what the receipt keeps")
        for index, addition in enumerate(file.add):
            clauses = self._add(family, clauses, addition, (*path, "add", index))
        return clauses

    def _add(
        self, family: Family, clauses: list[Clause], addition: yaml_types.AdditionFile, path: tuple[str | int, ...]
    ) -> list[Clause]:
        """An addition widens axes: its values multiply out with everything a clause allows, or with its `where`."""
        text, path_of_values = addition.values, (*path, "values")
        try:
            parsed = select.parse(text)
            if len(parsed) != 1:
                raise SelectionError("an addition has no 'or'; write two additions", text, 0)
            widened = [(c, select.bind_clause(family, [c], text)) for c in parsed[0]]
        except SelectionError as error:
            raise self.document.selection_error(path_of_values, error) from error
        result = clauses
        if addition.where is not None:
            result = select.both(clauses, family.bind(addition.where, (*path, "where"), self.document))
            if not result:
                raise self.document.error((*path, "where"), "this is nothing of what the receipt keeps")
        for condition, clause in widened:
            at = family.axis_of[condition.axis].position
            result = [(*old[:at], old[at] | clause[at], *old[at + 1 :]) for old in result]
        result = select.apart([*clauses, *result])
        if result == clauses:
            raise self.document.error(path_of_values, f"'{text}' adds nothing: the receipt keeps it already")
        return result


def whole(operator: Operator, families: Mapping[str, Family]) -> str:
    """The text of a receipt that has the name of an operator, and its families with all that their base allows."""
    import json  # few have operators from outside

    lines = [f"receipt: {operator.name}", f"about: {json.dumps(operator.about)}", "families:"]
    for stage in operator.file.stages:
        family = families[stage]
        if family.main is None:
            axis = family.axes[0]
            lines += [f"  {stage}:", f"    keep: {axis.name}={','.join(axis.values)}"]
    return "\n".join(lines) + "\n"
