# SPDX-License-Identifier: MIT
"""The YAML files of a checkout, loaded when they are asked for."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from codegen.schema import kernel_sets, places, receipts, rooms
from codegen.schema.algorithms import Algorithm
from codegen.schema.axes import Family, Rule
from codegen.schema.backends import Backend
from codegen.schema.errors import CodegenError, no_such, warn
from codegen.schema.families import Families
from codegen.schema.kernel_sets import KernelSet
from codegen.schema.places import Folder, Places
from codegen.schema.receipts import Receipt
from codegen.schema.targets import Target, Targets, bind_algorithms, bind_refusals
from codegen.schema.tile_tables import TileTables, tables_of
from codegen.schema.yaml_io import Document

if TYPE_CHECKING:
    from codegen.schema.operators import Operator


class Tree:
    """`root` holds receipts/ and kernels/; `outside` are folders of others that hold operators, `sets` files of kernel
    sets."""

    def __init__(self, root: str, outside: Iterable[Folder] = (), sets: Iterable[str] = ()) -> None:
        self.root, self.places, self.sets = root, Places(root, outside), tuple(sets)
        self._receipts: dict[str, Receipt] = {}
        self.sieves: dict[object, Any] = {}  # the last ones of codegen/plan

    @cached_property
    def version(self) -> str:
        with open(os.path.join(self.root, "VERSION"), encoding="ascii") as file:
            return file.read().strip()

    def _names(self, folder: str) -> list[str]:
        """The YAML files of a folder, without their ending, sorted: nothing depends on the order of directories."""
        path = os.path.join(self.root, folder)
        if not os.path.isdir(path):
            raise CodegenError(f"{folder}: no such folder under {self.root}")
        return sorted(name[:-5] for name in os.listdir(path) if name.endswith(".yaml") and name[0] != ".")

    @cached_property
    def families(self) -> Families:
        return Families(self.places)

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """Operators declared by operator.yaml of all rooms, by name."""
        from codegen.schema import operator_types, operators

        areas = {folder: (one, one.load(operator_types.AreaFile)) for folder, one in rooms.areas(self.places).items()}
        documents = rooms.found(self.places, "operator.yaml")
        return {name: operators.load(document, areas, self.families) for name, document in documents.items()}

    def families_of(self, receipt: Receipt) -> list[Family]:
        """Those that a receipt lists instances of: the ones it names and their companions."""
        return [self.families[name] for name in self.families if self.families.main_of(name) in receipt.clauses]

    def family(self, name: str) -> Family:
        if name not in self.families:
            raise CodegenError(no_such("family", name, self.families, "families"))
        return self.families[name]

    @cached_property
    def backends(self) -> dict[str, Backend]:
        """By name, the host's first. What has no backend.yaml is none: kernels alone cannot be built or run."""
        folder = os.path.join(self.root, "kernels", "backends")
        names = [name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, "backend.yaml"))]
        listed = [Backend(Document(self.places, f"kernels/backends/{name}/backend.yaml")) for name in sorted(names)]
        devices: dict[int, str] = {}
        for backend in listed:
            if backend.planned:  # nothing is ever asked for its devices
                continue
            if devices.setdefault(backend.device, backend.name) != backend.name:
                taken = f"device {backend.device} is taken by {devices[backend.device]}"
                raise backend.document.error(("device",), taken)
        return {backend.name: backend for backend in sorted(listed, key=lambda backend: backend.device)}

    @cached_property
    def targets(self) -> dict[str, Target]:
        """By name, those of the host first, slowest first; without planned ones and those for tests alone."""
        return _built(self.every_target.values())

    @cached_property
    def of_host(self) -> dict[str, Target]:
        """Targets of `all`: one library for all machines like this. Others are named, or their backend is."""
        return self.of_machine(platform.machine())

    def of_machine(self, machine: str) -> dict[str, Target]:
        """The same of another kind of machine, as `uname -m` names it there."""
        return {name: one for name, one in _built(self.every_target.of_host()).items() if one.arch in ("any", machine)}

    def of_backend(self, name: str) -> dict[str, Target]:
        """Targets of a backend's name. CodegenError where it has no target that can be built."""
        known = self.of_host if name in self.backends and self.backends[name].host else self.targets
        found = {one.name: one for one in known.values() if one.backend == name}
        if not found:
            named = [one.name for one in self.every_target.values() if one.backend == name]
            raise CodegenError(
                f"backend {name}: its targets are listed and not built, and are named one by one: {', '.join(named)}"
            )
        return found

    @cached_property
    def planned(self) -> dict[str, Target]:
        """Those whose kernels no library holds yet: listed and explained where they are named."""
        return {name: one for name, one in self.every_target.items() if one.planned}

    @cached_property
    def every_target(self) -> Targets:
        """Those for tests too, which are built when they are named, and planned ones, which are not."""
        return Targets(self.places, self._names("kernels/targets"), self.backends)

    def target(self, name: str) -> Target:
        """By its name, or that of a GPU (gfx942, sm90a) of which one target can be built."""
        found = self.every_target[name] if name in self.every_target else self.of_gpu(name)
        if found is None:
            raise CodegenError(f"{self._no_target(name)}\ntargets: {', '.join(self.targets)}")
        return found

    def of_gpu(self, name: str) -> Target | None:
        """The only target of a GPU by its name."""
        found = [one for one in self.targets.values() if one.name.endswith(f"-{name}") and not self._of_host(one)]
        return found[0] if len(found) == 1 else None

    def _of_host(self, target: Target) -> bool:
        return bool(self.backends[target.backend].host)

    def _no_target(self, word: str) -> str:
        """With the nearest; `portable` is the first of the host."""
        if word.lower() == "portable":
            return f"no target '{word}'; nearest: {next(iter(self.of_host))}"
        return no_such("target", word, [*self.targets, *self.planned])

    def native(self) -> Target:
        """The best target of this machine's own processors."""
        usable = [target for target in self.of_host.values() if target.usable]
        if not usable:
            raise CodegenError("no target runs on this machine")
        return usable[-1]

    def natives(self) -> list[Target]:
        """Targets of `native`: the best of this machine, after the one beside it that answers what it does not."""
        best = self.native()
        return [*([self.target(best.beside)] if best.beside else []), best]

    @cache  # noqa: B019 (a tree lives as long as the process)
    def algorithms(self, target: Target, family: Family) -> list[Algorithm]:
        if target.tiles:
            tables = self.tile_tables(target.backend, family)
            return tables.algorithms(target.tiles) if tables else []
        return bind_algorithms(target, family, self.every_target)

    @cache  # noqa: B019
    def tile_tables(self, backend: str, family: Family) -> TileTables | None:
        """The tables of a room for a backend; None where it has none."""
        return tables_of(self.places, backend, family)

    @cache  # noqa: B019
    def refusals(self, target: Target, family: Family) -> list[Rule]:
        return bind_refusals(target, family, self.every_target)

    @cached_property
    def hows(self) -> dict[str, dict[str, list[str]]]:
        """By family, what its instances can have besides their signature, by axis: what selections may ask for."""
        return self.hows_of(self.families.values())

    def is_on_devices(self, families: Iterable[str]) -> bool:
        """Has one of the families an engine on a backend with kernels of its own?"""
        targets = [one for one in self.targets.values() if one.backend_.engine is not None]
        return any(self.algorithms(target, self.families[name]) for target in targets for name in families)

    def hows_of(self, families: Iterable[Family], also: Iterable[Target] = ()) -> dict[str, dict[str, list[str]]]:
        """The same of these families only, on these planned targets too."""
        listed = {**self.targets, **{target.name: target for target in also if target.planned}}
        found: dict[str, dict[str, list[str]]] = {}
        for family in families:
            own = found[family.name] = {"target": list(listed), "pipeline": list(family.pipelines)}
            for axis in family.algorithm_axes:
                own |= {name: [*axis.values] for name in (axis.name, *axis.of)}
            for target in listed.values():
                for algorithm in self.algorithms(target, family):
                    for name, value in algorithm.selectable(target.name).items():
                        values = own.setdefault(name, [])
                        if value not in values:
                            values.append(value)
        return found

    @cached_property
    def own_operators(self) -> dict[str, Operator]:
        """Those of the tree itself."""
        return {name: one for name, one in self.operators.items() if not one.outside}

    @cached_property
    def outside_operators(self) -> dict[str, Operator]:
        return {name: one for name, one in self.operators.items() if one.outside}

    @cached_property
    def receipt_names(self) -> list[str]:
        """In the order of their files, then those of operators from outside; no file of the tree is opened."""
        own = self._names("receipts")
        for name in self._outside_receipts:
            if name in own:
                raise self._outside_receipts[name].error(
                    ("receipt",), f"receipts/{name}.yaml is the receipt of this name"
                )
        return [*own, *self._outside_receipts, *self._kernel_sets]

    def _check_algorithms(self, operator: Operator) -> None:
        for stage in operator.file.stages:
            family = self.families[stage]
            if not any(self.algorithms(target, family) for target in self.every_target.values()):
                what = f"no target has an algorithm of {stage}: name under `algorithms` a target"
                raise family.document.error((), f"{what}, cpu-generic for every CPU, and its pipelines")

    @cached_property
    def _outside_receipts(self) -> dict[str, Document]:
        """Files in a folder receipts/ there; and of each operator one that has its name and all that it can do."""
        found: dict[str, Document] = {}
        for folder in self.places.outside:
            for path in self.places.walk(f"{folder.path}/receipts"):
                if path.endswith(".yaml"):
                    document = Document(self.places, path)
                    name = os.path.basename(path)[:-5]
                    if name in found:
                        raise document.error(("receipt",), f"{found[name].shown} is the receipt of this name")
                    found[name] = document
        for operator in self.outside_operators.values() if self.places.outside else []:
            self._check_algorithms(operator)
            if operator.name not in found:
                found[operator.name] = Document(
                    self.places, operator.document.path, receipts.whole(operator, self.families)
                )
        return found

    @cached_property
    def _kernel_sets(self) -> dict[str, Document]:
        """The files of kernel sets, by the name of the set."""
        found: dict[str, Document] = {}
        for path in self.sets:
            try:
                with open(path, encoding="utf-8") as file:
                    document = Document(self.places, path, file.read())
            except (OSError, UnicodeDecodeError) as error:
                raise CodegenError(f"{path}: cannot be read: {error}") from error
            name = kernel_sets.name_of(document.text, path)
            if name in found or name in [*self._names("receipts"), *self._outside_receipts]:
                taken = found[name].shown if name in found else f"receipts/{name}.yaml"
                raise document.error(("kernel_set",), f"{taken} has this name")
            found[name] = document
        return found

    @property
    def set_texts(self) -> list[str]:
        """Texts of kernel sets and of the tables that they pin: the inputs of a library of theirs."""
        sets = {name: self._load(name) for name in self._kernel_sets}
        return [text for one in sets.values() for text in (one.document.text, one.tuned.text if one.tuned else "")]

    def kernel_set(self, name: str) -> KernelSet:
        """One that was taken."""
        document = self._kernel_sets[name]

        def hows(family: Family, planned: bool) -> Mapping[str, Sequence[str]]:
            return self.hows_of([family], self.planned.values() if planned else ())[family.name]

        return KernelSet(document, self.families, self.every_target, hows)

    @property
    def kernel_sets(self) -> list[str]:
        """The names of those that were taken."""
        return list(self._kernel_sets)

    def _load(self, name: str, above: tuple[str, ...] = ()) -> Receipt:
        if name not in self._receipts and name in self._kernel_sets:
            self._receipts[name] = self.kernel_set(name)
        if name not in self._receipts:
            document = self._outside_receipts.get(name) or Document(self.places, f"receipts/{name}.yaml")
            base, extends = None, document.peek("extends")
            if extends is not None:
                if extends in (*above, name):
                    circle = " -> ".join((*above, name, extends))
                    raise document.error(("extends",), f"receipt '{name}' extends itself: {circle}")
                if extends not in self.receipt_names:
                    raise document.error(("extends",), no_such("receipt", extends, self.receipt_names))
                base = self._load(extends, (*above, name))
            self._receipts[name] = Receipt(document, self.families, base)
        return self._receipts[name]

    @cached_property
    def _sound_and_faults(self) -> tuple[list[Receipt], list[CodegenError]]:
        """The receipts whose files are right, by number, then those without one by name; what is wrong with others."""
        receipts, faults, numbers = list[Receipt](), list[CodegenError](), dict[int, str]()
        list(self.families.values())  # what is wrong with a family is no receipt's fault
        for name in self.receipt_names:
            try:
                receipt = self._load(name)
                if receipt.number is not None and numbers.setdefault(receipt.number, name) != name:
                    message = f"number {receipt.number} is taken by {numbers[receipt.number]}"
                    raise receipt.document.error(("number",), message)
            except CodegenError as fault:
                faults.append(fault)
            else:
                receipts.append(receipt)
        return sorted(receipts, key=lambda receipt: (receipt.number is None, receipt.number or 0, receipt.name)), faults

    def all_receipts(self) -> list[Receipt]:
        """Every receipt, by number, then those without one by name. CodegenError, with all that is wrong, if any is."""
        receipts, faults = self._sound_and_faults
        if faults:
            raise CodegenError("\n".join(dict.fromkeys(map(str, faults))))
        return receipts

    @cached_property
    def sound_receipts(self) -> list[Receipt]:
        """Every receipt whose file is right. A warning names the others: they stop nobody who does not ask for them."""
        receipts, faults = self._sound_and_faults
        for fault in dict.fromkeys(map(str, faults)):
            warn(f"left out: {fault}")
        return receipts

    def receipt(self, word: str) -> Receipt:
        """By name or number."""
        if word in self.receipt_names:
            return self._load(word)
        listed = self.sound_receipts
        for receipt in listed:
            if word == str(receipt.number):
                return receipt
        numbers = [str(receipt.number) for receipt in listed if receipt.number is not None]
        choices = numbers if word.isdigit() else [receipt.name for receipt in listed]
        table = ", ".join(f"{receipt.number_text} {receipt.name}".strip() for receipt in listed)
        raise CodegenError(f"{no_such('receipt', word, choices)}\nreceipts: {table}")


def tree(root: str = "") -> Tree:
    """The tree at `root`; by default the checkout that this package stands in, with what take_operators has named."""
    return _tree(root or ROOT, *((_outside, _sets) if root in ("", ROOT) else ((), ())))


def _built(targets: Iterable[Target]) -> dict[str, Target]:
    """Those that libraries hold: neither planned nor for tests alone."""
    return {one.name: one for one in targets if not one.for_tests and not one.planned}


def take_operators(given: Iterable[str], directory: str = "") -> None:
    """From now on `tree` has the operators in these folders too, which are relative to `directory`, and no others.

    CodegenError for what is no such folder.
    """
    global _outside
    _outside = places.outside(given, ROOT, directory)


def take_kernel_sets(files: Iterable[str]) -> None:
    """From now on `tree` has the sets in these files too, a receipt each, and no others."""
    global _sets
    _sets = tuple(dict.fromkeys(files))


@cache
def _tree(root: str, outside: tuple[Folder, ...], sets: tuple[str, ...]) -> Tree:
    return Tree(root, outside, sets)


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_outside: tuple[Folder, ...] = ()
_sets: tuple[str, ...] = ()
