# SPDX-License-Identifier: MIT
"""Variants of the build: each combination of options has a folder of its own, so none overwrites another."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from codegen.emit.flags import library_name, manifest_name


@dataclass(frozen=True)
class Variant:
    """`targets` are full names in the order of the table of targets; `every` says that they are all there are."""

    targets: tuple[str, ...]
    mode: str
    where: str = ""
    every: bool = False
    named: str = ""  # the folder, whatever is built there: objects that many plans share are made once
    machine: str = ""  # another kind of machine and system, for which a cross compiler makes code

    @property
    def name(self) -> str:
        mode = f"{self.machine}-{self.mode}" if self.machine else self.mode
        if self.named:
            return f"{self.named}-{mode}"
        short = "all" if self.every else "+".join(target.removeprefix("cpu-") for target in self.targets)
        # Blanks between the conditions mean nothing, so they make no other variant.
        where = " ".join(self.where.split())
        return f"{short}-{mode}" + (f"-{hashlib.sha256(where.encode()).hexdigest()[:8]}" if where else "")

    @property
    def directory(self) -> str:
        return f"build/{self.name}"

    def others(self) -> list[str]:
        """The directories of the other variants of this mode: they share `shared_directories`."""
        names = os.listdir("build") if os.path.isdir("build") else []
        same_mode = re.compile(rf"(?!python-|executor-).+-{self.mode}(-[0-9a-f]{{8}})?")
        return sorted(f"build/{name}" for name in names if same_mode.fullmatch(name) and name != self.name)

    def library(self, receipt: str) -> str:
        system = "macos" if self.machine.endswith("-macos") else ""
        return f"{self.directory}/lib/{library_name(receipt, system)}"

    def manifest(self, receipt: str) -> str:
        return f"{self.directory}/lib/{manifest_name(receipt)}"

    def program(self, name: str) -> str:
        return f"{self.directory}/bin/{name}"

    @property
    def python_directory(self) -> str:
        return f"build/python-{self.machine}-{self.mode}" if self.machine else f"build/python-{self.mode}"

    @property
    def executor_directory(self) -> str:
        return f"build/executor-{self.mode}"

    @property
    def shared_directories(self) -> tuple[str, ...]:
        """Folders shared by all variants of this mode."""
        return (self.python_directory, self.executor_directory)


def every_variant() -> list[str]:
    """The names of all that generated sources were ever written for, in any mode."""
    names = os.listdir("build") if os.path.isdir("build") else []
    return sorted(name for name in names if os.path.isdir(f"build/{name}/gen"))


def variant(
    targets: Sequence[str],
    everything: Sequence[str],
    mode: str,
    where: str = "",
    all_: int = 0,
    named: str = "",
    machine: str = "",
) -> Variant:
    """`all_`: how many of `everything`, the first, `all` means; 0: each."""
    chosen, count = tuple(name for name in everything if name in targets), all_ or len(everything)
    return Variant(chosen, mode, where, count > 1 and chosen == tuple(everything[:count]), named, machine)
