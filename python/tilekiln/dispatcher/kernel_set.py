# SPDX-License-Identifier: MIT
"""Kernel sets: the kernels that a program declares, for a build to make and for a registry to hold.

    decode = (
        KernelSet("decode", about="Our decoder's kernels.")
        .add(Signature("fwd").dtype("bf16").hdim(128).mask("causal").lse("any"), Algorithm(tile_m0=64))
        .add(Signature("fwd_splitkv").dtype("bf16").hdim(128).paged_kv("any"))
    )
    decode.write("decode.yaml")  # scons kernel_set=decode.yaml builds its library

TILEKILN_KERNEL_SET of C++ has the same words and gives the same YAML.
"""

from __future__ import annotations

from ._fields import USUAL
from .choice import Choice
from .declared import ANY, Algorithm, Signature, place, wrong
from .instance import FunctionInstance
from .key import Key
from .words import OFF, no_such, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import NoReturn, Self

    from ..api.library import Library
    from .instance import Instance
    from .libraries import LibraryInstance
    from .words import Value


class Declaration:
    """One kernel, or several where a word is any. place: file:line, and which kernel of the set it is."""

    __slots__ = ("algorithm", "place", "signature", "target")

    def __init__(self, signature: Signature, algorithm: Algorithm, target: str, place: str) -> None:
        self.signature, self.algorithm, self.target, self.place = signature, algorithm, target, place

    def meets(self, key: Key) -> bool:
        """Whether a kernel is one of those declared."""
        if key.family != self.signature.family or (self.target != ANY and self.target != key.target):
            return False
        asked = self.signature.values
        for axis in {**asked, **key.signature}:
            want, have = asked.get(axis), key.signature.get(axis)
            if want in (ANY, have):
                continue
            usual = USUAL.get(axis)
            if (want not in OFF and want != usual) or (have not in OFF and have != usual):
                return False
        # A word that says nothing of this target's kernels has no effect there.
        said = self.algorithm.in_axes(key.family).items()
        return all(key.algorithm.get(axis) in (None, value) for axis, value in said)


class KernelSet:
    """The kernels of a name."""

    def __init__(self, name: str, about: str = "") -> None:
        self.name, self.about = name, about
        self.declarations: list[Declaration] = []

    def __len__(self) -> int:
        return len(self.declarations)

    def add(self, signature: Signature, algorithm: Algorithm | None = None, target: str = ANY) -> Self:
        """target: cpu-avx512, ck-gfx942 (or gfx942), ...; "*" or "any": what the build is for.

        ArgumentError for anything but a Signature, and an algorithm that says two values of one axis.
        """
        if not isinstance(signature, Signature):
            raise wrong(refusal("signature", repr(signature), "a Signature"))
        at = f"{place()}: kernel set {self.name}, kernel {len(self) + 1}"
        of = ANY if target in ("*", "", ANY) else f"ck-{target}" if target.startswith("gfx") else target
        algorithm = algorithm or Algorithm()
        algorithm.in_axes(signature.family)
        self.declarations.append(Declaration(signature, algorithm, of, at))
        return self

    def merge(self, other: KernelSet) -> Self:
        """The declarations of another as well."""
        self.declarations += other.declarations
        return self

    @property
    def needs_expansion(self) -> bool:
        """Whether a declaration stands for several kernels."""
        return any(
            one.target == ANY or one.algorithm.values.get("pipeline") is None or ANY in one.signature.values.values()
            for one in self.declarations
        )

    def to_yaml(self) -> str:
        """The set as a build reads it, with the place of each declaration, which errors name."""
        from json.encoder import encode_basestring as quoted

        lines = [f"kernel_set: {self.name}", f"about: {quoted(self.about or f'Kernels of the set {self.name}.')}"]
        lines.append("kernels:" if self.declarations else "kernels: []")
        for one in self.declarations:
            lines.append(f"  - family: {one.signature.family}")
            asked = {
                axis: value for axis, value in one.signature.values.items()
                if value not in OFF and value != USUAL.get(axis)
            }  # fmt: skip
            for word, values in (("signature", asked), ("algorithm", one.algorithm.in_axes(one.signature.family))):
                if values:
                    lines.append(f"    {word}: {{{', '.join(f'{axis}: {value}' for axis, value in values.items())}}}")
            if one.target != ANY:
                lines.append(f"    target: {one.target}")
            lines.append(f"    declared: {quoted(one.place)}")
        return "\n".join([*lines, ""])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the kernel set to a YAML file, as `scons kernel_set=PATH` takes it."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_yaml())

    def of(self, library: Library) -> list[LibraryInstance]:
        """The kernels of a library that it declares, and those that run only for them, in plan order.

        FileError, file:line, for a word that the library's families do not have and a declaration that no kernel meets.
        """
        from .libraries import instances_of, operators_of

        every = instances_of(library, usable_only=True)
        targets, families = {one.key.target for one in every}, library.manifest["families"]
        taken: dict[int, LibraryInstance] = {}
        for declared in self.declarations:
            _check(declared, families)
            met = [one for one in every if declared.meets(one.key)]
            if not met and (declared.target == ANY or declared.target in targets):
                _fail(
                    declared,
                    f"library {library.receipt} has no kernel of it; `scons kernel_set=` builds what is declared",
                )
            taken.update((one.number, one) for one in met)
        main = {declared.signature.family for declared in self.declarations}
        stages = [of for of in operators_of(library).values() if of.main in main]
        companions = {family for of in stages for family in of.families if family != of.main}
        return [one for one in every if one.number in taken or one.key.family in companions]

    def listing(self) -> list[Instance]:
        """Every declaration as a kernel without code, to plan for a machine that is elsewhere: any answers all."""
        return [_listed(one) for one in self.declarations]


def _fail(declared: Declaration, message: str) -> NoReturn:
    from .errors import FileError

    raise FileError(f"{declared.place}: {message}")


def _check(declared: Declaration, families: dict[str, dict[str, list[str]]]) -> None:
    family = declared.signature.family
    if family not in families:
        _fail(declared, no_such("family", family, families))
    for axis, value in declared.signature.values.items():
        if axis not in families[family]["signature"] and value not in OFF and value != USUAL.get(axis):
            _fail(declared, no_such(f"axis of {family}", axis, families[family]["signature"]))


def _listed(declared: Declaration) -> Instance:
    asked, numbers = declared.signature.values, declared.algorithm.values
    signature: dict[str, Value] = {axis: None if value == ANY else value for axis, value in asked.items()}
    holds = [axis for axis in ("hdim_q", "hdim_v") if isinstance(signature.get(axis), int)]
    algorithm: dict[str, Value] = {word: value for word, value in numbers.items() if value is not None}
    rows, rank = algorithm.get("tile_m0"), algorithm.get("selection_rank")
    fit = [("seqlen_q", "tile_m0", rows)] if isinstance(rows, int) else []
    choice = Choice(holds, fit, rank=rank if isinstance(rank, int) else 0)
    target = "" if declared.target == ANY else declared.target
    return FunctionInstance(Key.of(declared.signature.family, signature, algorithm, target, ""), None, choice)


__all__ = ["Algorithm", "Declaration", "KernelSet", "Signature"]
