# SPDX-License-Identifier: MIT
"""Targets: one piece of hardware each, with its flags, its place in the order and the algorithms it offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from codegen.schema import yaml_types
from codegen.schema.algorithms import SETTINGS, Algorithm, ReceiptFilter, read_values, size_rule
from codegen.schema.axes import Rule
from codegen.schema.backends import Backend
from codegen.schema.errors import CodegenError, SelectionError, no_such
from codegen.schema.places import Places
from codegen.schema.yaml_io import Document

if TYPE_CHECKING:
    from codegen.schema.axes import Family


class Target:
    """One kernels/targets/*.yaml. Attributes are those of the file; `flags` and `cpuid` are lists of text."""

    def __init__(self, document: Document, backends: Mapping[str, Backend]) -> None:
        self.document = document
        file = self.file = document.load(yaml_types.TargetFile)
        self.name, self.about, self.index, self.order = file.target, file.about, file.index, file.order
        self.isa, self.flags, self.cpuid = file.isa or "", list(file.flags), list(file.cpuid)
        self.arch: str = file.arch
        self.extends, self.engines, self.beside = file.extends, file.engines, file.beside
        self.own_algorithms = file.algorithms
        self.planned, self.tiles, self.limits = file.planned, list(file.tiles), file.limits
        if document.shown.rpartition("/")[2] != f"{self.name}.yaml":
            raise document.error(("target",), f"the file must be named {self.name}.yaml")
        if file.backend not in backends:
            known = [one.name for one in backends.values() if not one.for_tests and not one.planned]
            what = f"no backend '{file.backend}': nothing here compiles or runs its targets"
            raise document.error(("backend",), f"{what}; backends: {', '.join(known)}")
        self.backend_ = backends[file.backend]
        self.for_tests = file.for_tests or self.backend_.for_tests
        if not self.name.startswith(f"{self.backend}-"):
            raise document.error(("target",), f"the name must begin with that of its backend: {self.backend}-")
        if self.backend_.planned and not self.planned:
            what = f"backend {self.backend} is planned: it has no machine and no toolchain"
            raise document.error((), f"{what}, so its targets must be planned (planned: yes)")
        if self.tiles and file.algorithms is not None:
            raise document.error(("tiles",), "a target has algorithms of its own or tables of tiles, not both")
        self._check_limits()
        self.backend_.machine.check(self)

    def _check_limits(self) -> None:
        known = self.backend_.limits
        for name in self.limits:
            if name not in known:
                listed = f"; it has {', '.join(known)}" if known else ", which has none"
                raise self.document.error(
                    ("limits", f"<{name}>"), f"no limit '{name}' of backend {self.backend}{listed}"
                )
        for name, about in known.items():
            if name not in self.limits:
                what = f"'{name}' is missing here: {about}"
                raise self.document.error(("limits",) if self.limits else (), what)

    @property
    def backend(self) -> str:
        return self.backend_.name

    @property
    def word(self) -> str:
        """The name as part of C symbols and instance names."""
        return self.name.replace("-", "_")

    def place(self) -> tuple[int, int, str]:
        """Its place among targets: the host's come first, slow ones first."""
        return self.backend_.device, self.order, self.name

    @property
    def usable(self) -> bool:
        """Whether this machine can run it."""
        return self.backend_.machine.has(self)


class Targets(Mapping[str, Target]):
    """The targets of a tree by name, the host's first, slowest first.

    They are loaded when they are asked for, with the others of their backend; to go through all loads all. CodegenError
    as one is loaded whose file is wrong.
    """

    def __init__(self, places: Places, names: Iterable[str], backends: Mapping[str, Backend]) -> None:
        self._documents = {name: Document(places, f"kernels/targets/{name}.yaml") for name in names}
        self._backends, self._loaded = backends, dict[str, Target]()

    def __contains__(self, name: object) -> bool:
        return name in self._documents

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[str]:
        return iter([one.name for one in self._together(self._documents)])

    def __getitem__(self, name: str) -> Target:
        if name not in self._loaded:
            backend = self._documents[name].peek("backend")
            self._together(other for other, document in self._documents.items() if document.peek("backend") == backend)
        return self._loaded[name]

    def of_host(self) -> list[Target]:
        """Those of backends whose memory is the host's."""
        names = [name for name, of in self._documents.items() if self._is_host(of.peek("backend"))]
        return self._together(names)

    def _is_host(self, backend: str | None) -> bool:
        return backend is not None and backend in self._backends and self._backends[backend].host

    def _together(self, names: Iterable[str]) -> list[Target]:
        """Those targets, loaded and checked against each other; against all where one stands on another."""
        listed = [self._loaded.get(name) or Target(self._documents[name], self._backends) for name in names]
        own = {one.name for one in listed}
        if not own <= self._loaded.keys():
            bases = {base for one in listed for base in (one.extends, one.engines, one.beside) if base is not None}
            if len(own) < len(self) and not bases <= own:
                self._together(self._documents)
            else:
                check_together(listed)
                self._loaded |= {one.name: one for one in listed}
        return sorted((self._loaded[one.name] for one in listed), key=Target.place)


def check_limits(target: Target, kernel: str, needs: Mapping[str, int]) -> None:
    """CodegenError for a kernel that needs more than its target gives; `needs` by the names of `limits`."""
    for name, need in needs.items():
        if need > target.limits[name]:
            about = target.backend_.limits[name]
            raise CodegenError(
                f"{kernel}: {name} was {need:,}, must be at most {target.limits[name]:,} ({about}), as "
                f"{target.name} has it"
            )


def check_buildable(chosen: Iterable[Target]) -> None:
    """CodegenError for a target whose kernels no library holds yet."""
    for target in chosen:
        if target.planned:
            raise CodegenError(
                f"target {target.name} is planned: it is listed and explained, but no library holds its kernels yet, "
                "so nothing is built for it; `python -m codegen targets` says which targets are built"
            )


def bind_refusals(target: Target, family: Family, all_targets: Mapping[str, Target]) -> list[Rule]:
    """A target's refusals of a family, its own or those of the target that it extends, as rules."""
    found: list[Rule] = []
    known = {rule.name for rule in family.rules}
    owner: Target | None = all_targets[target.engines] if target.engines else target
    while owner is not None:
        said_of = family
        if family.answered_as and family.name not in owner.file.refuses:
            said_of = family.answered_as
        for index, file in enumerate(owner.file.refuses.get(said_of.name, [])):
            path = ("refuses", said_of.name, index)
            if file.name in known:
                raise owner.document.error((*path, "name"), f"{family.name} has a rule '{file.name}' already")
            known.add(file.name)
            clauses = family.bind_of(said_of, file.when, (*path, "when"), owner.document)
            if clauses:
                found.append(Rule(file.name, file.says, clauses))
        owner = all_targets[owner.extends] if owner.extends else None
    return found


def bind_algorithms(target: Target, family: Family, all_targets: Mapping[str, Target]) -> list[Algorithm]:
    """The algorithms of a target for a family, its own or those of the target it extends, best rank first."""
    for name in family.file.algorithms:
        if name not in all_targets:
            raise family.document.error(("algorithms", f"<{name}>"), no_such("target", name, all_targets))
    owner = all_targets[target.engines] if target.engines else target
    while (said := _said(owner, family)) is None:
        if owner.extends is None:
            return []
        owner = all_targets[owner.extends]
    document, said_of, where, entries = said
    result: list[Algorithm] = []
    for index, entry in enumerate(entries):
        path = ("algorithms", where, index)
        made = _algorithm(document, family, said_of, index, dict(entry), path)
        if not made.when:
            continue
        result.append(made)
        if any((a.pipeline, a.values) == (result[-1].pipeline, result[-1].values) for a in result[:-1]):
            shown = f"{result[-1].pipeline} {result[-1].shown}"
            raise document.error(path, f"{shown} stands here twice")
    return sorted(result, key=lambda algorithm: algorithm.rank)


def _said(target: Target, family: Family) -> tuple[Document, Family, str, list[yaml_types.Algorithm]] | None:
    """A family's algorithms in a target's file, or a target's in a family from outside; with place and family."""
    if target.own_algorithms is not None and family.name in target.own_algorithms:
        return target.document, family, family.name, target.own_algorithms[family.name]
    if target.name in family.file.algorithms:
        return family.document, family, target.name, family.file.algorithms[target.name]
    return _said(target, family.answered_as) if family.answered_as else None


def _wrong(key: str, value: Any) -> str:
    """The text of what a setting must be; "" when it is right."""
    if key == "rank":
        return "" if type(value) is int and 0 <= value <= 255 else "a number from 0 to 255"
    if key == "by_number":
        return "" if value is True or (isinstance(value, str) and value) else "yes, a selection, or left out"
    if key == "receipts":
        return "" if isinstance(value, list) and value and all(map(str, value)) else "a list of receipts"
    texts = value if key == "when" and isinstance(value, list) else [value]
    return "" if texts and all(isinstance(text, str) and text for text in texts) else "a text"


def _algorithm(
    document: Document, family: Family, said_of: Family, number: int, entry: dict[str, Any], path: tuple[str | int, ...]
) -> Algorithm:
    """One entry, which is emptied. `said_of`: the family whose it is."""
    settings: dict[str, Any] = {}
    for key in ("pipeline", *SETTINGS):
        value = entry.pop(key, None)
        if value is not None:
            wanted = _wrong(key, value)
            if wanted:
                raise document.error((*path, key), f"'{value}' must be {wanted}")
            settings[key] = value
    if "pipeline" not in settings:
        raise document.error(path, "'pipeline' is missing here")
    if settings["pipeline"] not in family.pipelines:
        message = no_such(f"pipeline of {family.name}", settings["pipeline"], family.pipelines).replace("\n", "; ")
        raise document.error((*path, "pipeline"), message)
    values = read_values(family.algorithm_axes, entry, document, path, family.name)
    when = [family.everything]
    if "when" in settings:
        when = family.bind_of(said_of, settings["when"], (*path, "when"), document)
    numbered = settings.get("by_number", ())
    if numbered:
        everything = numbered is True
        place = (*path, "by_number")
        numbered = [family.everything] if everything else family.bind_of(said_of, numbered, place, document)
    rules = {}
    for key in ("needs", "best"):
        try:
            rules[key] = size_rule(settings.get(key, ""), family.file.sizes, family.name)
        except SelectionError as error:
            raise document.selection_error((*path, key), error) from error
    rank = settings.get("rank", 0)
    return Algorithm(
        number,
        settings["pipeline"],
        family.algorithm_axes,
        values,
        rank,
        when,
        rules["needs"],
        rules["best"],
        ReceiptFilter(frozenset(map(str, settings["receipts"])), frozenset()) if "receipts" in settings else None,
        tuple(numbered),
    )


def check_together(listed: Sequence[Target]) -> None:
    """Checks across targets: unique numbers, and `extends` that names a target."""
    by_name = {target.name: target for target in listed}
    for field in ("index", "order", "isa"):
        seen: dict[tuple[str, int | str], str] = {}
        for target in listed:
            value = getattr(target, field)
            key = ("" if field == "index" else target.backend, value)
            if value != "" and key in seen:
                raise target.document.error((field,), f"{field} {value} is taken by {seen[key]}")
            seen[key] = target.name
    for target in listed:
        if target.engines is not None and target.engines not in by_name:
            raise target.document.error(("engines",), no_such("target", target.engines, by_name))
        if target.beside is not None and target.beside not in by_name:
            raise target.document.error(("beside",), no_such("target", target.beside, by_name))
        base, chain = target, [target.name]
        while base.extends is not None:
            if base.extends not in by_name:
                raise base.document.error(("extends",), no_such("target", base.extends, by_name))
            if by_name[base.extends].backend != base.backend:
                of = f"'{base.extends}' is of backend {by_name[base.extends].backend}"
                raise base.document.error(("extends",), f"{of}, must be of {base.backend} as '{base.name}' is")
            base = by_name[base.extends]
            if base.name in chain:
                raise target.document.error(("extends",), f"'{target.name}' extends itself")
            chain.append(base.name)
