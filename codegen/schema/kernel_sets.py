# SPDX-License-Identifier: MIT
"""Kernel sets: receipts of single kernels, each with its algorithm and target, as programs declare them.

A set is a YAML file anywhere, or C++ that writes one (include/tilekiln/dispatcher/kernel_set.hpp):

    kernel_set: decode
    about: What our decoder calls.
    kernels:
      - family: fmha_fwd
        signature: {dtype: bf16, hdim_q: 128, hdim_v: 128, mask: window, lse: any}
        algorithm: {tile_q: 64}
        target: cpu-avx512
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from codegen.schema import language, select, tuned, yaml_types
from codegen.schema.algorithms import Algorithm, AlgorithmAxis
from codegen.schema.axes import Axis, Family
from codegen.schema.errors import CodegenError, no_such
from codegen.schema.language import Condition
from codegen.schema.receipts import Receipt
from codegen.schema.select import Selected
from codegen.schema.targets import Target
from codegen.schema.yaml_io import Document

ANY = ("any", "*")
OFF = ("no", "none", "batch", "row", "same")
"""Values that stand for nothing asked: the feature is off, or as usual (Field::usual of the dispatcher)."""
KEPT = (
    "wave",
    "warp",
    "scheduler",
    "trload",
    "num_wave_groups",
    "max_splits_log2",
    "max_seq_len_q",
    "hdim_q_alignment",
    "hdim_v_alignment",
    "selection_rank",
    "constraint",
)
"""Words of an algorithm that say nothing of a plan: a dispatcher keeps them in the kernel's key."""

Given = bool | int | str | list[bool | int | str]
Hows = Callable[
    [Family, bool], Mapping[str, Sequence[str]]
]  # what algorithms have, with those of planned targets or not


class DeclarationFile(Struct, frozen=True, forbid_unknown_fields=True):
    family: yaml_types.Word
    signature: dict[str, Given] = {}
    algorithm: dict[str, Given] = {}
    target: str | list[str] = "any"
    declared: str = ""  # file:line of the C++ that it comes from


class KernelSetFile(Struct, frozen=True, forbid_unknown_fields=True):
    kernel_set: yaml_types.Word
    about: yaml_types.Text
    kernels: list[DeclarationFile]
    tuned: yaml_types.Text | None = None  # the table of measured choices that it pins, beside this file


class Declared(NamedTuple):
    """One declaration: what a plan must have at least one instance of, on targets that it is for."""

    at: int
    family: Family
    selected: list[Selected]
    targets: tuple[str, ...]  # empty: any


class KernelSet(Receipt):
    """A receipt whose instances are those that are declared, and their companions'."""

    def __init__(
        self, document: Document, families: Mapping[str, Family], targets: Mapping[str, Target], hows: Hows
    ) -> None:
        own = document.load(KernelSetFile)
        self.own, self.document = own, document
        self.file = yaml_types.ReceiptFile(receipt=own.kernel_set, about=own.about, families={})
        self.name, self.number, self.about, self.base = own.kernel_set, None, own.about, None
        self.outside, self.size_budget, self.clauses, self.selected = True, None, {}, {}
        self.tuned = tuned.beside(document, own.tuned, self.name)
        self.declared = [self._read(at, families, targets, hows) for at in range(len(own.kernels))]
        if not self.declared:
            raise document.error(("kernels",), f"kernel set '{self.name}' declares no kernel")
        for one in self.declared:
            name = one.family.name
            clauses = [*self.clauses.get(name, []), *(selected.clause for selected in one.selected)]
            self.clauses[name] = select.apart(clauses)
            self.selected.setdefault(name, []).extend(one.selected)

    @property
    def targets(self) -> list[str]:
        """Those that declarations name."""
        return list(dict.fromkeys(name for one in self.declared for name in one.targets))

    def wrong(self, at: int, path: Sequence[str | int], message: str) -> CodegenError:
        """An error that names the place of a declaration: in YAML, or in the C++ it comes from."""
        declared = self.own.kernels[at].declared
        return (
            CodegenError(f"{declared}: {message}") if declared else self.document.error(("kernels", at, *path), message)
        )

    def _read(self, at: int, families: Mapping[str, Family], targets: Mapping[str, Target], hows: Hows) -> Declared:
        file = self.own.kernels[at]
        if file.family not in families:
            raise self.wrong(at, ("family",), no_such("family", file.family, families, "families"))
        family = families[file.family]
        if family.main:
            message = f"{family.name} comes with {family.main.name}: exactly what its instances need; name that family"
            raise self.wrong(at, ("family",), message)
        words = [file.target] if isinstance(file.target, str) else file.target
        named = tuple(word for word in words if word not in ANY)
        for word in named:
            if word not in targets:
                raise self.wrong(at, ("target",), no_such("target", word, targets, "targets"))
        clause = self._clause(at, family, file.signature)
        planned = any(targets[word].planned for word in named)
        here, everywhere = hows(family, planned), hows(family, True)
        conditions = self._algorithm(at, family, file.algorithm, here, everywhere)
        of_target = (_condition("target", named),) if named else ()
        return Declared(at, family, [Selected(clause, (*of_target, *conditions))], named)

    def _clause(self, at: int, family: Family, signature: Mapping[str, Given]) -> select.Clause:
        for name in signature:
            if name not in family.axis_of:
                message = language.no_axis(name, family.axis_of, f" in {family.name}")
                raise self.wrong(at, ("signature", f"<{name}>"), message)
        allowed = []
        for axis in family.axes:
            texts = _texts(signature.get(axis.name, _usual(axis)))
            if not texts:
                message = f"{axis.name} is not named, and no kernel is without it: name {', '.join(axis.values)} or any"
                raise self.wrong(at, (), message)
            for text in texts:
                if text not in axis.code_of and text not in ANY:
                    message = language.no_value(axis.name, text, [*axis.values, "any"], f" of {family.name}")
                    raise self.wrong(at, ("signature", axis.name), message)
            every = any(text in ANY for text in texts)
            allowed.append(axis.all_codes if every else sum({1 << axis.code_of[text] for text in texts}))
        return tuple(allowed)

    def _algorithm(
        self,
        at: int,
        family: Family,
        algorithm: Mapping[str, Given],
        here: Mapping[str, Sequence[str]],
        everywhere: Mapping[str, Sequence[str]],
    ) -> tuple[Condition, ...]:
        """Conditions of a declaration on algorithms of its targets; words of GPUs alone ask nothing of a CPU."""
        conditions = []
        for name, given in algorithm.items():
            texts = _texts(given)
            if (name.startswith(KEPT) and name not in everywhere) or any(text in ANY for text in texts):
                continue
            path = ("algorithm", name)
            if name not in everywhere:
                message = language.no_axis(name, [*everywhere, *KEPT], f" of {family.name}'s algorithms")
                raise self.wrong(at, ("algorithm", f"<{name}>"), message)
            values = here[name] if name in here and name != "pipeline" else everywhere[name]
            most = _most(family, name) if name in here else 0
            for text in texts:
                if most and not (text.isdecimal() and 1 <= int(text) <= most):
                    raise self.wrong(at, path, f"{name}: was {text}, must be a number from 1 to {most}")
                if not most and text not in values:
                    raise self.wrong(at, path, language.no_value(name, text, values, f" of {family.name}"))
            if name in here and (most or set(texts) & set(here[name])):
                conditions.append(_condition(name, texts))
        return tuple(conditions)

    def made(self, target: Target, family: Family, known: Sequence[Algorithm]) -> list[Algorithm]:
        """Algorithms beside those of a target: its own with the numbers that declarations ask for."""
        found = list[Algorithm]()
        for one in self.declared:
            if one.family is not family or (one.targets and target.name not in one.targets):
                continue
            asked = {c.axis: c.values for c in one.selected[0].how if _most(family, c.axis)}
            rest = [c for c in one.selected[0].how if c.axis not in asked]
            named = {c.axis for c in rest}
            bases = [
                how for how in known
                if (how.by_number != (family.everything,) or {*how.given} <= named | {a.name for a in how.axes if a.of})
                and all(c.holds(how.selectable(target.name).get(c.axis, "")) for c in rest)
            ]  # fmt: skip
            for how, numbers in itertools.product(bases if asked else [], itertools.product(*asked.values())):
                said = dict(zip(asked, numbers, strict=True))
                values = tuple(_with(axis, value, said) for axis, value in zip(how.axes, how.values, strict=True))
                if all((other.pipeline, other.values) != (how.pipeline, values) for other in (*known, *found)):
                    found.append(how._replace(number=len(known) + len(found), values=values))
        return found

    def nothing(self, one: Declared, chosen: Iterable[Target], reasons: Sequence[str]) -> CodegenError:
        """The error of a declaration that no instance meets."""
        where = ", ".join(target.name for target in chosen)
        said = "".join(f"\n  {reason}" for reason in reasons)
        return self.wrong(one.at, (), f"no kernel of {one.family.name} on {where} is as declared{said}")


def _most(family: Family, name: str) -> int:
    """Up to what a number of an algorithm may be chosen; 0: targets say which there are."""
    return next((axis.most[name] for axis in family.algorithm_axes if name in axis.most), 0)


def _with(axis: AlgorithmAxis, value: str, said: Mapping[str, str]) -> str:
    """A value of an axis with some of its numbers replaced."""
    if not axis.of:
        return value
    return "x".join(said.get(name, number) for name, number in zip(axis.of, value.split("x"), strict=True))


def _usual(axis: Axis) -> Given:
    """The value of an axis that a declaration does not name, or a name of a kernel; "" where it must."""
    unsaid = [value for value, word in zip(axis.values, axis.words, strict=True) if not word]
    return next((value for value in axis.values if value in OFF or value in unsaid or len(axis.values) == 1), "")


def _texts(given: Given) -> list[str]:
    listed = given if isinstance(given, list) else [given]
    return [("no", "yes")[one] if isinstance(one, bool) else str(one) for one in listed if one != ""]


def _condition(axis: str, values: Iterable[str]) -> Condition:
    texts = tuple(values)
    return Condition(axis, "=", texts, 0, (0,) * len(texts))


def name_of(text: str, shown: str) -> str:
    """The name of the set that a document is of. CodegenError where it is none."""
    for line in text.splitlines():
        if line.startswith("kernel_set:"):
            return line.partition(":")[2].strip().strip("'\"")
    raise CodegenError(f"{shown}:1:1: is no kernel set: it must begin with kernel_set: NAME")
